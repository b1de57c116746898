"""What a client counts and measures. No I/O; it never raises into the client's path."""
