"""From rows to encoded record batches: which partition, which batch, and the memory that they may take."""
