"""CSV: lines under a schema."""
