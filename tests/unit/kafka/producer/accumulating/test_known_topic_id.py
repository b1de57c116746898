"""Which of the ids that brokers give is that of the topic that has the name now."""

from __future__ import annotations

from uuid import UUID

from spark_kafka_native.kafka.producer.accumulating.known_topic_id import LAG_S, KnownTopicId

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def test_a_new_id_counts_at_once_and_a_former_one_or_none_does_not() -> None:
    known = KnownTopicId()
    assert known.learn(None, 0)
    assert known.current is None
    for given, current in ((A, A), (None, A), (B, B), (A, B), (None, B), (C, C), (A, C), (B, C), (C, C)):
        assert known.learn(given, 0) is (given in (current, None))
        assert known.current == current


def test_a_former_id_that_is_given_for_long_is_that_of_now() -> None:
    """The first broker that was asked has answered right, and one that lags behind after it."""
    known = KnownTopicId()
    for given in (B, A):
        known.learn(given, 0)
    for now in (1, 1 + LAG_S - 0.1):
        assert not known.learn(B, now)
        assert known.current == A
    assert known.learn(B, 1 + LAG_S)
    assert known.current == B
    assert not known.learn(A, 1 + LAG_S)
    assert known.current == B
    assert known.learn(B, 1 + LAG_S)


def test_the_time_counts_from_the_last_answer_of_the_other_id() -> None:
    known = KnownTopicId()
    for given in (A, B):
        known.learn(given, 0)
    for begin in (1, 2 * LAG_S, 4 * LAG_S):
        assert not known.learn(A, begin)
        assert known.learn(None, begin + 1)
        assert not known.learn(A, begin + LAG_S - 1)
        assert known.learn(B, begin + LAG_S)
    assert known.current == B
