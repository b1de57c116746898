"""What a run of a write with a ``writeId`` is about to commit, and whether it may. Only decides."""

from __future__ import annotations

from collections.abc import Sequence

from .commit_marker import CommitMarker
from .commit_message import KafkaCommitMessage, hash_of_tasks


def intent_of(messages: Sequence[KafkaCommitMessage], topic: str | None) -> CommitMarker:
    """All tasks of a run, in order: equal for equal rows in equal tasks."""
    return CommitMarker(
        batch_id=0,
        rows=sum(message.records + message.skipped for message in messages),
        hash=hash_of_tasks(messages),
        tasks=len(messages),
        topic=topic or "",
    )


def refusal(
    before: CommitMarker | None,
    wanted: CommitMarker,
    messages: Sequence[KafkaCommitMessage],
    void: int | None,
) -> str | None:
    """Why ``wanted`` must not be committed; None if it may be.

    ``before`` is the last intent of the same name, ``void`` the revision of one of which nothing is committed
    and nothing ever will be: it binds nobody.
    """
    finds = any(message.skipped for message in messages)
    writes = any(message.transaction is not None for message in messages)
    if before is None:
        return _forgotten("of the whole write") if finds else None
    if _rows(before) != _rows(wanted):
        return None if before.batch_id == void and not finds else _other_rows(before, wanted)
    return _forgotten("of some tasks") if before.is_complete and writes else None


def _rows(intent: CommitMarker) -> tuple[int, int, int, str]:
    return intent.tasks, intent.rows, intent.hash, intent.topic


def _describe(intent: CommitMarker) -> str:
    where = f" for topic {intent.topic}" if intent.topic else ""
    return f"{intent.rows} rows in {intent.tasks} tasks{where} (hash {intent.hash:016x})"


def _other_rows(before: CommitMarker, wanted: CommitMarker) -> str:
    state = "completed" if before.is_complete else "began to commit"
    return (
        f"this run has {_describe(wanted)}, and an earlier one {state} {_describe(before)}. Nothing of this "
        "run is committed. Run it with the same input, topic and number of partitions as then (rand(), "
        "current_timestamp() or a source that has changed make other rows); if it is another write, give it "
        "another writeId. If the earlier run committed nothing, running it again settles that, too"
    )


def _forgotten(of_what: str) -> str:
    return (
        "an earlier run has committed rows under this name, and its markers are there only in part: those "
        f"{of_what} have expired (offsets.retention.minutes) or were deleted. Nothing of this run is "
        "committed, as it might write rows twice: read what is in the topic, and write what is missing with "
        "another writeId"
    )
