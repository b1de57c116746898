"""`Admin`: describes and changes a cluster. One module per family of requests."""

from .admin import Admin
from .topics import NewTopic

__all__ = ["Admin", "NewTopic"]
