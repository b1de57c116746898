"""The workers' side of a write: Arrow batches -> a producer -> a commit message."""
