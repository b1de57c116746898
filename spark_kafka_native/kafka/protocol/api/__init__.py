"""Declarations of Kafka's messages, one file per family of APIs; nothing here reads or writes bytes."""
