"""SASL mechanisms: challenge and response, no I/O. None yet."""
