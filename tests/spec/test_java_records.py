"""Java reads the record batches that we write, and we read the ones that it writes: every codec, both
kernels.

The oracle is the code inside every broker and Java client (``MemoryRecords``), checksum and framing included.
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from support.record_batches import KERNELS, using_kernel

from spark_kafka_native.kafka.model import AbortedTransaction
from spark_kafka_native.kafka.records.columns import HEADERS_TYPE, RecordColumns
from spark_kafka_native.kafka.records.compression import Codec
from spark_kafka_native.kafka.records.decode import decode_record_set
from spark_kafka_native.kafka.records.encode import encode_record_batch, set_producer
from spark_kafka_native.testing.java import run_java

JAVA = """
import java.io.*;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.internal.*;

public class Records {
    static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(words[1])));
            switch (words[0]) {
                case "read" -> out.append(list(records));
                case "aborted" -> out.append(aborted());
                default -> out.append(rewrite(records, words[0], TimestampType.forName(words[2])));
            }
            out.append("\\n");
        }
        System.out.print(out);
    }

    static String list(MemoryRecords records) {
        StringBuilder out = new StringBuilder();
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            out.append(String.join(",", batch.compressionType().name, "" + batch.producerId(),
                "" + batch.producerEpoch(), "" + batch.baseSequence(), "" + batch.isTransactional(),
                "" + batch.maxTimestamp(), "" + batch.lastOffset()));
            for (org.apache.kafka.common.record.internal.Record record : batch) {
                record.ensureValid();
                out.append(" ").append(record.offset()).append(",").append(record.timestamp());
                out.append(",").append(hex(record.key())).append(",").append(hex(record.value()));
                for (Header header : record.headers()) {
                    out.append(",").append(hex(ByteBuffer.wrap(header.key().getBytes())));
                    out.append(",").append(header.value() == null ? "-" : HEX.formatHex(header.value()));
                }
            }
        }
        return out.toString();
    }

    static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "-";
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return HEX.formatHex(copy);
    }

    static String rewrite(MemoryRecords records, String codec, TimestampType type) {
        ByteBuffer buffer = ByteBuffer.allocate(1 << 22);
        MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, RecordBatch.CURRENT_MAGIC_VALUE,
            Compression.of(codec).build(), type, 1000L, 4242L);
        for (org.apache.kafka.common.record.internal.Record record : records.records()) {
            builder.append(record.timestamp(), record.key(), record.value(), record.headers());
        }
        return hex(builder.build().buffer());
    }

    static String aborted() {
        ByteBuffer buffer = ByteBuffer.allocate(1 << 16);
        SimpleRecord record = new SimpleRecord(7L, "k".getBytes(), "v".getBytes());
        Compression none = Compression.NONE;
        put(buffer, MemoryRecords.withTransactionalRecords(0L, none, 5L, (short) 0, 0, 0, record, record));
        put(buffer, marker(2L, 5L, ControlRecordType.ABORT));
        put(buffer, MemoryRecords.withTransactionalRecords(3L, none, 5L, (short) 0, 2, 0, record));
        put(buffer, marker(4L, 5L, ControlRecordType.COMMIT));
        buffer.flip();
        return hex(buffer);
    }

    static MemoryRecords marker(long offset, long producerId, ControlRecordType type) {
        return MemoryRecords.withEndTransactionMarker(offset, 9L, 0, producerId, (short) 0,
            new EndTransactionMarker(type, 3));
    }

    static void put(ByteBuffer buffer, MemoryRecords records) {
        buffer.put(records.buffer().duplicate());
    }
}
"""

N = 700
RNG = random.Random(11)
KEYS = [None if i % 5 == 0 else RNG.randbytes(i % 9) for i in range(N)]
VALUES = [
    None if i % 17 == 0 else RNG.choice([b"", RNG.randbytes(300), b"again " * (i % 50)]) for i in range(N)
]
TIMESTAMPS = [1_700_000_000_000 + RNG.randrange(-(10**6), 10**6) for _ in range(N)]
HEADERS = [[("h", b"1"), ("h", None), ("ключ", b"")][: i % 4] for i in range(N)]
COLUMNS = RecordColumns(
    length=N,
    timestamp_ms=np.array(TIMESTAMPS),
    key=pa.array(KEYS, pa.binary()),
    value=pa.array(VALUES, pa.binary()),
    headers=pa.array([[{"key": k, "value": v} for k, v in one] for one in HEADERS], HEADERS_TYPE),
)


def hexed(data: bytes | None) -> str:
    return "-" if data is None else data.hex()


def listing(codec: Codec, *, producer: str) -> str:
    """What Java says of the batch if it reads what we meant."""
    words = [f"{codec.name.lower()},{producer},{max(TIMESTAMPS)},{N - 1}"]
    for offset, (timestamp, key, value, headers) in enumerate(
        zip(TIMESTAMPS, KEYS, VALUES, HEADERS, strict=True)
    ):
        parts = [str(offset), str(timestamp), hexed(key), hexed(value)]
        for name, content in headers:
            parts += [name.encode().hex(), hexed(content)]
        words.append(",".join(parts))
    return " ".join(words)


def encode(codec: Codec) -> list[bytes]:
    out = []
    for kernel in KERNELS:
        with using_kernel(kernel):
            out.append(bytes(encode_record_batch(COLUMNS, codec=codec)))
    return out


@pytest.fixture(scope="module")
def plain() -> bytes:
    return encode(Codec.NONE)[0]


def test_java_reads_what_we_write() -> None:
    lines, expected = [], []
    for codec in Codec:
        for data in encode(codec):
            lines.append(f"read {data.hex()}")
            expected.append(listing(codec, producer="-1,-1,-1,false"))
        data = encode_record_batch(COLUMNS, codec=codec, transactional=True)
        lines.append(f"read {set_producer(data, 2**50, 7, 2**31 - 1).hex()}")
        expected.append(listing(codec, producer=f"{2**50},7,{2**31 - 1},true"))
    for got, wanted in zip(run_java(JAVA, input_text="\n".join(lines)).splitlines(), expected, strict=True):
        assert got == wanted


def test_we_read_what_java_writes(plain: bytes) -> None:
    lines = [
        f"{codec.name.lower()} {plain.hex()} {kind}"
        for codec in Codec
        for kind in ("CreateTime", "LogAppendTime")
    ]
    written = [bytes.fromhex(line) for line in run_java(JAVA, input_text="\n".join(lines)).splitlines()]
    assert len(written) == len(lines)
    expected_headers = [[{"key": k, "value": v} for k, v in one] or None for one in HEADERS]
    for number, data in enumerate(written):
        log_append_time = number % 2 == 1
        for kernel in KERNELS:
            with using_kernel(kernel):
                columns = decode_record_set(data, fetch_offset=0).columns
            assert columns.offset.tolist() == list(range(1000, 1000 + N))
            assert columns.timestamp_ms.tolist() == ([4242] * N if log_append_time else TIMESTAMPS)
            assert columns.timestamp_type.tolist() == [int(log_append_time)] * N
            assert columns.key.to_pylist() == KEYS
            assert columns.value.to_pylist() == VALUES
            assert columns.headers.to_pylist() == expected_headers


def test_we_understand_java_s_markers(plain: bytes) -> None:
    data = bytes.fromhex(run_java(JAVA, input_text=f"aborted {plain.hex()}").strip())
    decoded = decode_record_set(data, fetch_offset=0)
    assert (decoded.columns.offset.tolist(), decoded.next_offset) == ([0, 1, 3], 5)
    transactions = [AbortedTransaction(producer_id=5, first_offset=0)]
    decoded = decode_record_set(data, fetch_offset=0, aborted_transactions=transactions)
    assert (decoded.columns.offset.tolist(), decoded.next_offset) == ([3], 5)
    assert decoded.aborted_transactions == ()
