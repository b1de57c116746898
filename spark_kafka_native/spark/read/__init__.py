"""Reading: options -> offsets -> ranges -> tasks on the driver; ranges -> Arrow batches on the workers."""
