"""What users see of the data source in Spark's processes: log lines with a prefix (`prefix_log_lines`,
`inform`, `captured_outputs`), advice that is given once in a session (`note_once`, `advise`), and errors
without the frames that led to them (`HideTracebacks`), also from where Spark pickles (`as_pickle_error`).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from pathlib import Path
from pickle import PickleError
from types import TracebackType
from typing import Final

from ..kafka.errors import KafkaError
from ..kernel_choice import ENVIRONMENT_VARIABLE, wants_compiled

_LOG: Final = logging.getLogger("spark_kafka_native")

_SOCKETS: Final = (
    "Spark speaks TCP with its Python workers. With spark.python.unix.domain.socket.enabled=true (or the "
    "environment variable PYSPARK_UDS_MODE=true) before the session starts, reads are up to a third "
    "faster, and where Spark runs on another system than Linux, a task takes some 40 ms less"
)

_NO_KERNEL: Final = (
    "the compiled kernel is not installed, and NumPy does its work: records are decoded three to six times "
    "slower. Install a wheel, or the package where there is a C compiler; %s=numpy hides this warning"
)


def prefix_log_lines() -> None:
    """Have our log lines begin with ``pykafka:`` where logging is not configured, as in the processes in
    which Spark plans, reads, writes and commits: their lines stand in a log among those of others."""
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("pykafka: %(message)s"))
        handler.setLevel(logging.WARNING)
        # With logging configured later, the lines go through the root logger, and not twice.
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        _LOG.addHandler(handler)


def inform(line: str) -> None:
    """Log ``line`` at INFO; print it where logging is not configured."""
    if logging.getLogger().handlers or _LOG.isEnabledFor(logging.INFO):
        _LOG.info("%s", line)
    else:
        print(f"pykafka: {line}", file=sys.stderr)


def captured_outputs() -> AbstractContextManager[None]:
    """What PySpark has around all calls but pickling: with ``spark.sql.pyspark.worker.logging.enabled`` log
    lines go into its table of worker logs."""
    try:
        from pyspark.logger.worker_io import capture_outputs
    except ImportError:  # an older PySpark
        return nullcontext()
    found: AbstractContextManager[None] = capture_outputs()
    return found


def note_once(what: str) -> bool | None:
    """True if this is the session's first process that asks for ``what``; None where that can't be noted.

    Spark plans each query in a process of its own, and commits each micro-batch in another. What they share
    is the session's local folder, which goes with the session: the first one makes a file there.
    """
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if not folder:
        return None
    try:
        Path(folder, f"pykafka-{what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return None
    return True


def advise() -> None:
    """Say once in a session what would make it faster: the compiled kernel, and sockets of the other kind."""
    _warn_without_kernel()
    _advise_sockets()


def _warn_without_kernel() -> None:
    """On the driver only: its installation is the executors', as a rule, and a worker has no session."""
    from ..kafka.records import kernel  # late: it imports numpy

    if not kernel.COMPILED and wants_compiled() and note_once("warned-without-kernel"):
        _LOG.warning(_NO_KERNEL, ENVIRONMENT_VARIABLE)


def _advise_sockets() -> None:
    """Say once in a session what Spark's other kind of sockets would bring, where it could have it."""
    is_on = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true"
    if not is_on and hasattr(socket, "AF_UNIX") and note_once("told-about-sockets"):
        inform(_SOCKETS)


TRACEBACKS: Final = "PYKAFKA_TRACEBACKS"
"""Set to ``true`` in the environment of driver and executors, errors come with all their frames."""

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's own switch. It looks at it when it formats an error, and ends the process right after that."""


class HideTracebacks(ContextDecorator):
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


def as_pickle_error(error: KafkaError) -> KafkaError:
    """``error``, to be raised while PySpark pickles, which wraps each exception that is no `PickleError`. Its
    class name and notes, which Spark shows, stay the same."""
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    both: type[KafkaError] = type(kind.__name__, (kind, PickleError), names)
    found = both.__new__(both)
    found.args = error.args
    found.__dict__.update(error.__dict__)
    return found


def stop_on_sigterm(stop: Callable[[], None]) -> None:
    """Have SIGTERM, by which Spark ends the process of a streaming query, end it as an exception does:
    Spark's program in it then calls the reader's ``stop()``. It is called at exit as well, as the signal may
    come just when that call has begun, and end it."""
    if _is_process_of_spark() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        atexit.register(stop)


def ignore_sigterm() -> None:
    """For what a process of Spark does at its end, and is to complete."""
    if _is_process_of_spark():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _is_process_of_spark() -> bool:
    """True if PySpark's worker or planner is the program, and not one that builds sessions or runs tests."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
