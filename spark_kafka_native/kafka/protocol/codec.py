"""The former name of `message_codec`."""

import warnings

from .message_codec import MessageCodec, codec

__all__ = ["MessageCodec", "codec"]
warnings.warn(f"{__name__} is now {MessageCodec.__module__}", DeprecationWarning, stacklevel=2)
