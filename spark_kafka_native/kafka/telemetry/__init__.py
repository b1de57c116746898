"""What a client tells others while it works: streams of events, and metrics now and then. Who listens can't
hold it up."""
