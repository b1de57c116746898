"""Avro: schemas, their resolution, and the programs by which a kernel turns payloads into columns."""
