"""Errors of schema registries. None of them shows credentials."""

from __future__ import annotations

from ..errors import FormatError


class RegistryError(FormatError):
    """The registry can't be asked, refuses, or gives an answer that makes no sense. Names its URL and the
    subject or the id."""


class UnknownSchemaError(RegistryError):
    """The registry says that it has no such schema."""


class CredentialsError(RegistryError):
    """The registry does not accept the credentials, or not for this request."""
