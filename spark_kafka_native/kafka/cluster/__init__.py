"""Who leads what: snapshots of the cluster's metadata, and the connections to its brokers."""
