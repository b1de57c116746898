"""The only code that opens sockets, sleeps or reads the time."""
