"""Record sets to columns and back: numpy and pyarrow, no I/O, never a Python object per record."""
