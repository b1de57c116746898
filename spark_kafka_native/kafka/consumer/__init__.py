"""Reading: where partitions begin and end, what a group has committed, and the records themselves."""
