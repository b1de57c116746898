"""A transactional producer that ends as if its process had been killed."""

from __future__ import annotations

from spark_kafka_native.kafka import TransactionalProducer


def close_as_killed(producer: TransactionalProducer, timeout: float) -> None:
    """Close the connections and leave the transaction open, as it is; `close` would abort it.

    With a ``timeout`` of more than 0 seconds everything that was sent is in the log.
    """
    producer._end_open_work = lambda _timeout: None  # type: ignore[method-assign]
    producer.close(timeout=timeout)
