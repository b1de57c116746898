"""Planning, on the driver: options -> offsets -> ranges -> tasks."""
