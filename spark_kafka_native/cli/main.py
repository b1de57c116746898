"""Parses the command line and runs one command. Errors that carry advice become one-line messages; Ctrl-C,
SIGTERM and a closed terminal become one exception, so that every ``with`` block cleans up.

A command imports its own dependencies when it runs, because a person is waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

from ..kafka.errors import KafkaError
from ..version import __version__
from .options import NAME, VALUE_OPTIONS, BriefParser, CommandParser, did_you_mean
from .output import printable

_COMMANDS = (
    "topics", "describe", "offsets", "tail", "produce", "groups", "reset", "delete-records", "configs",
    "acls", "users", "tokens", "quotas", "transactions", "top", "exporter", "bench", "doctor", "completion",
    "broker", "demo", "zip",
)  # fmt: skip
"""Each but ``completion`` is a module of this package (``_`` for ``-``) with a function ``add_command``."""
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""Without -v, with -v, with -vv."""
_EXTRAS = {
    "pyspark": "testing",
    "trustme": "testing",
    "cryptography": "testing",
    "shtab": "completion",
    "prometheus_client": "prometheus",
}
"""Modules that may not be installed, and our extra that installs each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 0, 1 for an error, 2 for wrong usage; 130 after Ctrl-C and 143
    after SIGTERM, as shells expect. If the reader of a pipe hangs up (``| head``), the command's own exit
    code counts: that is 0, unless something was refused or did not answer.
    """
    _prepare_streams()
    words = _command_first(sys.argv[1:] if arguments is None else list(arguments))
    code: int = 0
    parsed = _parsed(words)
    verbose = min(getattr(parsed, "verbose", 0), len(_LEVELS) - 1)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=_LEVELS[verbose], stream=sys.stderr)
    try:
        with stopping_on_signals():
            code = parsed.run(parsed)
            sys.stdout.flush()
    except Stopped as stopped:
        _say("Stopped.")
        code = 128 + stopped.signal
    except BrokenPipeError:
        pass
    except (KafkaError, ModuleNotFoundError, RuntimeError, OSError, ValueError) as error:
        if (text := _explained(error)) is None:
            raise
        _say(text)
        code = 1
    try:
        sys.stdout.flush()
    except OSError:  # it has failed before, or the code is that of another error
        _leave_the_pipe()
    return code


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = command_line_parser(words)
    if not words:
        parser.error("which command?")
    if words[0] not in _COMMANDS and not words[0].startswith("-"):
        parser.error(f"no command {words[0]!r}{did_you_mean(words[0], _COMMANDS)}")
    parsed, unknown = parser.parse_known_args(_names_marked(words))
    for name, value in vars(parsed).items():
        if isinstance(value, list):
            setattr(parsed, name, [_unmarked(one) for one in value])
        else:
            setattr(parsed, name, _unmarked(value))
    if unknown:
        parsed.parser.error_of_unknown(list(map(_unmarked, unknown)))
    return parsed


def _names_marked(words: Sequence[str]) -> list[str]:
    """``words`` with those behind ``--`` that begin with a dash marked as names: argparse, when it parses
    options and names in any order, takes them for options."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[: at + 1], *(NAME + word if word.startswith("-") else word for word in words[at + 1 :])]


def _unmarked(value: Any) -> Any:
    return value.removeprefix(NAME) if isinstance(value, str) else value


def _command_first(words: list[str]) -> list[str]:
    """Return ``words`` with the options before the command moved behind it, as in ``-b host:9092 topics``."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in VALUE_OPTIONS else 1
    if at == 0 or at >= len(words) or words[at] not in _COMMANDS:
        return words
    return [words[at], *words[:at], *words[at + 1 :]]


def command_line_parser(words: Sequence[str] = ()) -> BriefParser:
    """Return the parser of the command in ``words``, or of every command if the first word is none."""
    parser = BriefParser(
        prog="pykafka",
        allow_abbrev=False,
        description="Looks into Kafka, writes to it, administers it; also python -m spark_kafka_native.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    # If the command is known, only that one is imported: importing all takes as long as a request.
    meant = words[0] if words and words[0] in _COMMANDS else None
    for name in _COMMANDS if meant is None else (meant,):
        if name == "completion":
            _add_completion(commands)
        else:
            import_module(f".{name.replace('-', '_')}", __package__).add_command(commands)
    return parser


def _add_completion(commands: Any) -> None:
    """Declare ``completion``, which needs the parsers of all commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description='Prints the script. bash: put eval "$(pykafka completion bash)" into ~/.bashrc; zsh: '
        "write it to a file _pykafka in a folder of $fpath.",
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.set_defaults(run=_print_completion, parser=parser)


def _print_completion(arguments: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(command_line_parser(), arguments.shell))
    return 0


def _explained(error: Exception) -> str | None:
    """Return one line for an error that the user can fix; None for a bug of ours."""
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        return None if extra is None else f"{error}: pip install 'spark-kafka-native[{extra}]'"
    if isinstance(error, RuntimeError):
        from ..testing.errors import BrokerStartError, BrokerUnavailableError, ClusterStartError

        if not isinstance(error, BrokerUnavailableError | ClusterStartError):
            return None
        reason = error.reason if isinstance(error, BrokerStartError) else error
        return f"{type(error).__name__}: {reason}"
    if isinstance(error, ValueError) and not isinstance(error, KafkaError):
        from ..kafka.protocol.message_codec import UnencodableError

        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UnicodeEncodeError):
            cause = cause.__cause__
        if isinstance(cause, UnicodeEncodeError):
            return f"this is not UTF-8: {cause.object!a}"
        return str(error) if isinstance(error, UnencodableError) else None
    # An OSError comes from standard output, as on a full disk: the client raises its own errors.
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def _prepare_streams() -> None:
    """Open a closed output as the null device (or messages would go to standard output if standard error is
    closed), and escape characters that the encoding lacks.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print("\n".join(printable(line) for line in text.splitlines()), file=sys.stderr, flush=True)


def _leave_the_pipe() -> None:
    """Discard the buffer of standard output, so that its flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


# --- signals ------------------------------------------------------------------------------------------------


_AGAIN_S = 0.01


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end. Not an `Exception`, so that no handler of errors catches it.

    A `KeyboardInterrupt`, because Py4J drops the connection of an interrupted call only on that: else
    stopping Spark waits until the call has ended, a write of hours for example.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class _SignalAgain:
    """Sends signals to the main thread once it is not in ``hook``: an exception of their handler would be
    dropped there, too, and the hook may take its time.
    """

    def __init__(self, hook: CodeType) -> None:
        self._hook = hook
        self._ended = threading.Event()
        self._sending = threading.Lock()

    def send(self, number: int) -> None:
        threading.Thread(target=self._send, args=(number,), daemon=True).start()

    def end(self) -> None:
        """Send none from now on: the signals get their former handlers again."""
        with self._sending:
            self._ended.set()

    def _send(self, number: int) -> None:
        thread = threading.main_thread().ident
        assert thread is not None
        while not self._ended.wait(_AGAIN_S):
            stack = traceback.walk_stack(sys._current_frames().get(thread))
            if all(frame.f_code is not self._hook for frame, _ in stack):
                with self._sending:
                    if not self._ended.is_set():
                        signal.pthread_kill(thread, number)
                return


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `Stopped` in the main thread on SIGINT, SIGTERM and SIGHUP, except for those that are ignored, as
    with ``nohup``.

    Only once: a second signal is ignored, because it would interrupt the clean-up. Python drops what a
    destructor or a callback of a weak reference raises; then the signal is sent again.
    """
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Stopped):
            hook_before(unraisable)
            return
        number = unraisable.exc_value.signal
        signal.signal(number, stop)
        again.send(number)

    again = _SignalAgain(dropped.__code__)
    before = {number: signal.signal(number, stop) for number in numbers}
    hook_before, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        again.end()
        sys.unraisablehook = hook_before
        for number, old in before.items():
            signal.signal(number, old)
