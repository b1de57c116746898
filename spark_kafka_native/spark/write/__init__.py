"""Writing: Arrow batches -> records on the workers; what they hand back -> commit or abort on the driver."""
