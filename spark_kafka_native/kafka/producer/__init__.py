"""The buffered producer: records in, record batches out, each ending in a known state."""
