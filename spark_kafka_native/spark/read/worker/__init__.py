"""Reading, on the workers: a task -> offsets -> fetched records -> Arrow batches."""
