"""JSON: objects under a schema, JSON Schema, and JSON as it is."""
