"""`ask_each_partition`: one question about several partitions, an answer or a failure of each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from ..errors import ClientClosedError, KafkaError
from ..model import TopicPartition
from ..runtime.deadline import Deadline
from .router import Router

A = TypeVar("A")


def ask_each_partition(
    router: Router,
    wanted: Collection[TopicPartition],
    ask: Callable[[list[TopicPartition], dict[TopicPartition, A]], dict[TopicPartition, KafkaError]],
    *,
    what: str,
    deadline: Deadline,
    give_up_after_ms: float = float("inf"),
) -> tuple[dict[TopicPartition, A], dict[TopicPartition, KafkaError]]:
    """``ask`` puts the answers about some partitions into a dict, and returns why the rest gave none; it is
    called again for those that are missing.

    With ``give_up_after_ms`` that ends so much later where any has answered: the failures of the others are
    returned beside. Without it, or where none has answered, the first failure is raised.
    """
    found: dict[TopicPartition, A] = {}
    failures: dict[TopicPartition, KafkaError] = {}
    patient = Deadline.after_ms(give_up_after_ms)

    def attempt() -> None:
        failures.clear()
        failures.update(ask([tp for tp in wanted if tp not in found], found))
        if failures and not (found and patient.expired):
            raise next(iter(failures.values()))

    try:
        router.retry(attempt, what=what, deadline=deadline, topics={tp.topic for tp in wanted})
    except ClientClosedError:
        raise
    except KafkaError:
        if not found or give_up_after_ms == float("inf"):
            raise
    return found, {tp: error for tp, error in failures.items() if tp not in found}
