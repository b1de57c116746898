"""The driver's side of a write: begins and ends transactions, sums up."""
