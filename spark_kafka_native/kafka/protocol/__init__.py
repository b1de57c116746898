"""Bytes to messages and back. No socket, no clock, no thread: those belong to ``network``."""
