"""What kafka-python and aiokafka write, we read; what we write, they read: codec by codec, both kernels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from support.record_batches import EACH_KERNEL, using_kernel

from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.kafka.records.compression import Codec
from spark_kafka_native.kafka.records.decode import decode_record_set
from spark_kafka_native.kafka.records.encode import encode_record_batch, set_producer

pytestmark = EACH_KERNEL

N = 2000
KEYS = [None if i % 7 == 0 else b"" if i % 7 == 1 else b"key-%d" % i for i in range(N)]
VALUES = [None if i % 11 == 0 else b"" if i % 11 == 1 else b"%d" % i * (i % 90) for i in range(N)]
TIMESTAMPS = [1_700_000_000_000 + (i * 37) % 1000 - 500 for i in range(N)]
HEADERS = [[("h", b"x"), ("h", b""), ("ü", b"%d" % i)] if i % 13 == 0 else [] for i in range(N)]
COLUMNS = RecordColumns(
    length=N,
    timestamp_ms=np.array(TIMESTAMPS),
    key=pa.array(KEYS, pa.binary()),
    value=pa.array(VALUES, pa.large_binary()),
    headers=pa.array([[{"key": k, "value": v} for k, v in headers] for headers in HEADERS], HEADERS_TYPE),
)

KAFKA_PYTHON_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]
"""The others need libraries that it does not bring along; aiokafka has them."""


@pytest.fixture(autouse=True)
def _kernel(kernel):
    with using_kernel(kernel):
        yield


def assert_right(record_set: bytes) -> None:
    columns = decode_record_set(record_set, fetch_offset=0).columns
    assert columns.offset.tolist() == list(range(N))
    assert columns.timestamp_ms.tolist() == TIMESTAMPS
    assert columns.key.to_pylist() == KEYS
    assert columns.value.to_pylist() == VALUES
    expected = [[{"key": k, "value": v} for k, v in headers] or None for headers in HEADERS]
    assert columns.headers.to_pylist() == expected


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_kafka_python_writes_we_read(codec):
    builder = MemoryRecordsBuilder(2, int(codec), 1 << 30)
    for row in zip(TIMESTAMPS, KEYS, VALUES, HEADERS, strict=True):
        assert builder.append(*row) is not None
    builder.close()
    assert_right(builder.buffer())


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_writes_we_read(codec):
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 1 << 30)
    for offset, (timestamp, key, value, headers) in enumerate(
        zip(TIMESTAMPS, KEYS, VALUES, HEADERS, strict=True)
    ):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    assert_right(bytes(builder.build()))


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_we_write_kafka_python_reads(codec):
    (batch,) = MemoryRecords(bytes(encode_record_batch(COLUMNS, codec=codec)))
    assert batch.validate_crc()
    assert batch.compression_type == codec
    read = [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in batch]
    assert read == list(zip(range(N), TIMESTAMPS, KEYS, VALUES, HEADERS, strict=True))


@pytest.mark.parametrize("codec", list(Codec))
def test_we_write_aiokafka_reads(codec):
    data = encode_record_batch(
        COLUMNS, codec=codec, producer_id=4, producer_epoch=2, base_sequence=9, transactional=True
    )
    data = set_producer(data, 2**40, 3, 77)
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (2**40, 3, 77)
    assert batch.is_transactional
    assert not batch.is_control_batch
    assert (batch.first_timestamp, batch.max_timestamp) == (TIMESTAMPS[0], max(TIMESTAMPS))
    assert (batch.base_offset, batch.last_offset_delta) == (0, N - 1)
    read = [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in batch]
    assert read == list(zip(range(N), TIMESTAMPS, KEYS, VALUES, HEADERS, strict=True))
