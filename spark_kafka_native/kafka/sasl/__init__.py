"""SASL mechanisms, client side: challenge in, response out. No I/O, no clock, no thread."""
