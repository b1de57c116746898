from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_kafka_native.spark import write_task
from spark_kafka_native.spark.rows import RowColumns

OPTIONS = SimpleNamespace(client=None, producer=None, topic="t")
COLUMNS = RowColumns(names=("value",), topic="t")


class FakeDelivery:
    def __init__(self, done):
        self.done = lambda: done

    def first_failure(self):
        return None


class FakeProducer:
    def __init__(self, *deliveries):
        self.deliveries = [FakeDelivery(done) for done in deliveries]
        self.is_closed = False

    def send_columns(self, _rows, _topic):
        return self.deliveries.pop(0)

    def flush(self):
        pass

    def close(self, timeout_ms):
        self.is_closed = timeout_ms == 0


def test_rows_that_nobody_confirmed_are_not_committed(monkeypatch):
    producer = FakeProducer(True, False, False)
    monkeypatch.setattr(write_task, "router_for", lambda _client: None)
    monkeypatch.setattr(write_task, "settle_worker", lambda: None)
    monkeypatch.setattr(write_task, "Producer", lambda *_arguments, **_options: producer)
    batch = pa.record_batch({"value": ["a", "b", "c"]})
    with pytest.raises(write_task.WriteFailedError, match="rows 3 to 8 are not all confirmed"):
        write_task.write_rows(iter([batch] * 3), COLUMNS, OPTIONS)
    assert producer.is_closed
