"""The version, on its own so that the build can read it without importing numpy or pyarrow."""

__version__ = "0.1.0"
