"""`COLUMN_TYPES`: Kafka's columns with the types that they can be read as, and the full schema.

Apart from row_layout.py, as ``load()`` needs no more than this: Spark asks for the schema in a process of its
own, where numpy and pyarrow would have to be loaded first.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

COLUMN_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "offset": (LongType(),),
    "timestamp": (TimestampType(),),
    "timestampType": (IntegerType(),),
    "headers": (HEADERS,),
}
"""Each column in the order of the full schema, with the types it can be read as; the first is the default."""


def full_schema(include_headers: bool) -> StructType:
    """The schema of the JVM connector: all columns nullable, ``headers`` only when asked for."""
    names = [name for name in COLUMN_TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMN_TYPES[name][0], True) for name in names])
