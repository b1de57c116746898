"""`ShortErrors`: what Spark shows of an error of ours: the sentence, without the frames that led to it."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ContextDecorator
from types import TracebackType
from typing import Final

from ..kafka.errors import KafkaError

TRACEBACKS: Final = "PYKAFKA_TRACEBACKS"
"""Set to ``true`` in the environment of driver and executors, errors come with all their frames."""
_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's own switch. It looks at it when it formats an error, and ends the process right after that."""
_LOG: Final = logging.getLogger("spark_kafka_native")


class ShortErrors(ContextDecorator):
    """Around everything that Spark calls: a `KafkaError` that leaves it, and so the process, is shown as its
    one sentence. Other exceptions, which are defects, keep their frames."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if isinstance(error, KafkaError) and _is_process_of_spark():
            _LOG.debug("%s", error, exc_info=error)
            if os.environ.get(TRACEBACKS, "").lower() != "true":
                os.environ[_HIDE] = "true"


def _is_process_of_spark() -> bool:
    """True if PySpark's worker or planner is the program, and not one that builds sessions or runs tests."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
