"""Consumer groups: membership, assignors, committed offsets, and `GroupConsumer`."""
