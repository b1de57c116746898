"""Keys and values of records as typed Arrow columns: bytes in, columns out, and back.

Nothing here knows Kafka or Spark. `load_format` finds a format by its name: one of ours, or one that another
package offers under the entry point `ENTRY_POINT`.
"""

from .errors import EncodeError, FormatError
from .format import ENTRY_POINT, BadRows, Decoded, Decoder, Encoder, Format, format_names, load_format

__all__ = [
    "ENTRY_POINT",
    "BadRows",
    "Decoded",
    "Decoder",
    "EncodeError",
    "Encoder",
    "Format",
    "FormatError",
    "format_names",
    "load_format",
]
