"""Keys and values of records as typed Arrow columns: bytes in, columns out, and back.

Nothing here knows Kafka or Spark. `load_format` finds a format by its name: one of ours, or one that another
package offers under the entry point `ENTRY_POINT`.
"""

from .column_format import ColumnFormat
from .errors import EncodeError, FormatError
from .format import (
    ENTRY_POINT,
    BadRows,
    Decoded,
    Decoder,
    Encoder,
    Format,
    HeaderDecoder,
    HeaderEncoder,
    InferringFormat,
    Resolved,
    SchemaFormat,
    format_names,
    is_own_schema,
    load_format,
)
from .header_ids import header_ids, with_header_ids

__all__ = [
    "ENTRY_POINT",
    "BadRows",
    "ColumnFormat",
    "Decoded",
    "Decoder",
    "EncodeError",
    "Encoder",
    "Format",
    "FormatError",
    "HeaderDecoder",
    "HeaderEncoder",
    "InferringFormat",
    "Resolved",
    "SchemaFormat",
    "format_names",
    "header_ids",
    "is_own_schema",
    "load_format",
    "with_header_ids",
]
