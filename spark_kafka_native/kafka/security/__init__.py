"""SASL mechanisms, TLS contexts, credentials and tokens: everything that holds a secret."""
