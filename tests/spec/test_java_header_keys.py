"""U+FFFD stands where Java's ``new String(bytes, UTF_8)`` puts it: what a Java consumer shows of a header
key, so that one job and another see the same key.
"""

from __future__ import annotations

import itertools
import random

from spark_kafka_native.kafka.records.columns import replace_malformed
from spark_kafka_native.testing.java import run_java

JAVA = """
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

public class Utf8 {
    public static void main(String[] args) throws Exception {
        HexFormat hex = HexFormat.of();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String key = new String(hex.parseHex(line), StandardCharsets.UTF_8);
            out.append(hex.formatHex(key.getBytes(StandardCharsets.UTF_8))).append("\\n");
        }
        System.out.print(out);
    }
}
"""

EDGES = bytes.fromhex("41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 f7 f8 ff")
"""Each side of every bound that UTF-8 has."""


def test_every_malformed_sequence_is_replaced_as_java_does() -> None:
    keys = [bytes(key) for length in (1, 2, 3) for key in itertools.product(EDGES, repeat=length)]
    keys += [b"\xf0" + bytes(rest) for rest in itertools.product(EDGES, repeat=3)]
    keys += [b"\xf4" + bytes(rest) for rest in itertools.product(EDGES, repeat=3)]
    rng = random.Random(3)
    keys += [bytes(rng.choices(EDGES, k=rng.randrange(5, 20))) for _ in range(20_000)]
    # Java's strings have two forms inside, and a reader for each.
    keys += ["\u20ac".encode() + key for key in keys[:5_000]]
    lines = run_java(JAVA, input_text="".join(f"{key.hex()}\n" for key in keys)).splitlines()
    wrong = [
        (k.hex(), line) for k, line in zip(keys, lines, strict=True) if replace_malformed(k).hex() != line
    ]
    assert wrong == []
