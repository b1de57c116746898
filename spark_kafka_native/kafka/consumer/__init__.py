"""Reading: where partitions begin and end, and the records themselves."""
