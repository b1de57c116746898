"""Schema registries: the schemas under which payloads were written, and what stands before such payloads.

For the formats Avro, protobuf and JSON. A format asks `SchemaRegistry.from_settings`, chooses a schema in the
driver (`schema_to_read`, `schema_to_write`), and wraps its decoders and encoders.
"""

from .errors import CredentialsError, RegistryError, UnknownSchemaError
from .framing import frame_id
from .registered_schema import RegisteredSchema, SchemaReference
from .registry_formats import FramedDecoder, RegistryDecoder, RegistryEncoder
from .schema_choice import REGISTERED, frame_to_write, is_true, schema_to_read, schema_to_write, subject_of
from .schema_registry import SchemaRegistry

__all__ = [
    "REGISTERED",
    "CredentialsError",
    "FramedDecoder",
    "RegisteredSchema",
    "RegistryDecoder",
    "RegistryEncoder",
    "RegistryError",
    "SchemaReference",
    "SchemaRegistry",
    "UnknownSchemaError",
    "frame_id",
    "frame_to_write",
    "is_true",
    "schema_to_read",
    "schema_to_write",
    "subject_of",
]
