"""PEM as users give it, brought into the form that OpenSSL takes: `trust`, `in_lines`, `private_file`.

Files of certificates have comments between them, in any language, and in a continued line of a .properties
file a block has blanks for line breaks, which Java takes.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-]*(?:-(?!----)[^-]*)*)-----END \1-----")
_BODY: Final = re.compile(r"\s*+((?:(?:Proc-Type|DEK-Info):\s*+\S++\s++)*)([A-Za-z0-9+/=\s]++)")
"""Possessive: runs of blanks, which two parts of it could take, are not tried at each length."""
_CERTIFICATE: Final = ("CERTIFICATE", "X509 CERTIFICATE")
_LINE: Final = 64


def trust(context: ssl.SSLContext, pem: str) -> None:
    """Trust the certificates in ``pem``. Raises `ValueError` if it has none, or one that can't be read.

    As in Java each of them is an anchor, an authority without its root and a server's own.
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # OpenSSL skips text around certificates, such as comments, in a file, but not in memory.
    found = "\n".join(_lines(block) for block in _BLOCK.finditer(pem) if block[1] in _CERTIFICATE)
    try:
        context.load_verify_locations(cadata=found)
    except (TypeError, ssl.SSLError):  # TypeError: it is not ASCII
        raise ValueError("no certificate that can be read") from None


def in_lines(pem: str) -> str:
    """``pem``, with each block in lines."""
    return _BLOCK.sub(_lines, pem)


@contextmanager
def private_file(content: str) -> Iterator[str]:
    """A path from which OpenSSL can read ``content``: in memory if the system supports that, else a file that
    only this user can read.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("pykafka", os.MFD_CLOEXEC)
        with open(descriptor, "wb") as file:
            file.write(content.encode())
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.TemporaryDirectory(prefix="spark-kafka-native-") as folder:  # mode 0700
        path = os.path.join(folder, "client.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content.encode())
        yield path


def _lines(block: re.Match[str]) -> str:
    body = _BODY.fullmatch(block[2])
    if body is None:  # OpenSSL says that it can't be read
        return block[0] + "\n"
    headers, text = "".join(f"{name} {value}\n" for name, value in _pairs(body[1])), "".join(body[2].split())
    lines = "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))
    blank = "\n" if headers else ""
    return f"-----BEGIN {block[1]}-----\n{headers}{blank}{lines}\n-----END {block[1]}-----\n"


def _pairs(headers: str) -> Iterator[tuple[str, str]]:
    words = iter(headers.replace(":", ": ").split())
    return zip(words, words, strict=True)
