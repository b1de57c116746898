"""`Admin`: everything that changes or describes a cluster, apart from its records. One module per family."""

from .admin import Admin
from .topics import NewTopic

__all__ = ["Admin", "NewTopic"]
