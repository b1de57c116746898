"""The planner of a stream against a naive model: a world of topics that are written, grow, are cut by
retention, deleted and made anew at any moment, and an engine like Spark's that dies anywhere and is started
again with other options. What reaches a sink that keeps one result for each batch is compared with the world.
"""

import json
import random
from dataclasses import dataclass, field
from itertools import count

import pytest
from support.hooks.fresh_seeds import try_seeds

from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.spark.error_conditions import KafkaConditionError
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.read.driver.admission_control import SizeEstimate
from spark_kafka_native.spark.read.driver.micro_batch import LogEnds, StreamOffset
from spark_kafka_native.spark.read.driver.stream_planner import StreamPlanner
from spark_kafka_native.spark.read.offset_range import At
from spark_kafka_native.spark.read.read_options import StreamOptions

PARTS = 4


class Killed(Exception):  # noqa: N818
    """The driver."""


class Lost(Exception):  # noqa: N818
    """A task found that offsets are gone."""


@dataclass
class Log:
    first: int = 0
    end: int = 0


@dataclass
class Topic:
    id: str
    logs: list[Log]


@dataclass
class World:
    """Topics by name. A record is (topic id, partition, offset)."""

    random: random.Random
    topics: dict[str, Topic] = field(default_factory=dict)
    ids: count = field(default_factory=count)
    retains: bool = True
    deletes: bool = True
    hides: bool = False
    hidden: set = field(default_factory=set)
    """Partitions that brokers leave out for now: one lags behind, or the topic may not be described."""

    def create(self, name):
        logs = [Log() for _ in range(self.random.choice([1, 1, 2, 3]))]
        self.topics[name] = Topic(f"{next(self.ids):032x}", logs)

    def change(self):
        """One thing happens."""
        what, name = self.random.random(), self.random.choice("ab")
        topic = self.topics.get(name)
        if self.hides and self.random.random() < 0.2:
            self.hidden = {tp for tp, _, _ in self.partitions() if self.random.random() < 0.3}
        elif topic is None:
            self.create(name)
        elif what < 0.7:
            self.random.choice(topic.logs).end += self.random.choice([1, 2, 7, 40])
        elif what < 0.8:
            topic.logs.append(Log())
        elif what < 0.9 and self.retains:
            log = self.random.choice(topic.logs)
            log.first = self.random.randint(log.first, log.end)
        elif self.deletes:
            del self.topics[name]
            if self.random.random() < 0.8:
                self.create(name)
                for log in self.topics[name].logs:
                    log.end = self.random.choice([0, 1, 7, 50])

    def partitions(self):
        for name, topic in self.topics.items():
            for index, log in enumerate(topic.logs):
                yield TopicPartition(name, index), topic, log

    def visible(self):
        return [found for found in self.partitions() if found[0] not in self.hidden]


@dataclass
class Logs:
    """What `StreamLogs` would find, the world going on between its questions."""

    world: World
    start: str
    pause: object

    def find_start(self):
        ends = {
            tp: (log.first if self.start == "earliest" else log.end) for tp, _, log in self.world.visible()
        }
        return StreamOffset(positions=ends, topic_ids=self.names(), start=ends)

    def names(self):
        return {tp.topic: topic.id for tp, topic, _ in self.world.visible()}

    def find_ends(self, _start, _held=None):
        ids = self.names()
        listed = [tp for tp, _, _ in self.world.visible()]
        self.pause()
        now = {tp: log.end for tp, _, log in self.world.partitions()}
        if not set(listed) <= set(now):  # the leader does not know it: everything is asked for again
            return self.find_ends(_start, _held)
        return LogEnds(latest={tp: now[tp] for tp in listed}, topic_ids=ids)

    def find_beginnings(self, topic_partitions):
        self.pause()
        now = {tp: log.first for tp, _, log in self.world.visible()}
        return {tp: now[tp] for tp in topic_partitions if tp in now}

    def sample_sizes(self, begin, latest, _ids):
        odd = [tp for tp in latest if tp.partition % 2 and latest[tp] > begin.get(tp, 0)]
        return SizeEstimate(bytes_per_offset=dict.fromkeys(odd, 100.0))


class Engine:
    """A checkpoint and a sink, and Spark's micro-batches between them."""

    def __init__(self, seed, **world):
        self.random = random.Random(seed)
        self.world = World(self.random, **world)
        self.start = self.random.choice(["earliest", "latest"])
        self.now = 0.0
        self.offsets, self.committed, self.sink = [], 0, {}
        self.die = 0.1
        for name in self.random.choice(["a", "ab"]):
            self.world.create(name)

    def pause(self):
        """Between any two steps the world may change, and the driver may die."""
        while self.random.random() < self.die * 2:
            self.world.change()
        if self.random.random() < self.die / 2:
            raise Killed

    def new_process(self, fail):
        options = {
            "kafka.bootstrap.servers": "h:1",
            "subscribePattern": ".",
            "failOnDataLoss": str(fail).lower(),
        }
        for name, value in [
            ("maxOffsetsPerTrigger", self.random.choice([1, 3, 10])),
            ("maxBytesPerTrigger", self.random.choice([100, 1000])),
            ("minOffsetsPerTrigger", 1),
            ("maxPartitions", 1),
            ("minPartitions", 4),
            ("maxRecordsPerPartition", 2),
        ]:
            if self.random.random() < 0.3:
                options[name] = str(value)
        parsed = StreamOptions.parse(OptionValues.parse(options, Scope.STREAM))
        self.fail = fail
        self.limited = parsed.limits.any
        self.planner = StreamPlanner(Logs(self.world, self.start, self.pause), parsed, clock=lambda: self.now)

    def trigger(self):
        """One trigger; whether there was a batch."""
        batch = self.committed
        start = json.loads(self.offsets[batch - 1]) if batch else self.planner.initial()
        if len(self.offsets) == batch:
            self.pause()
            end = json.dumps(self.planner.latest(start, limited=self.limited))
            if batch and end == self.offsets[-1]:
                return False
            self.pause()
            self.check_progress(start, end)
            self.offsets.append(end)
        self.pause()
        tasks = self.planner.plan(start, json.loads(self.offsets[batch]))
        records = [record for task in tasks for one in task for record in self.read(one)]
        assert len(records) == len(set(records))
        self.sink[batch] = records
        self.pause()
        self.committed += 1
        return True

    def check_progress(self, start, end):
        before, after = StreamOffset.from_json(start), StreamOffset.from_json(json.loads(end))
        if self.offsets:
            assert before.positions != after.positions or before.topic_ids != after.topic_ids

    def read(self, planned):
        self.pause()
        assert isinstance(planned.start, At)
        topic = self.world.topics.get(planned.topic)
        here = None
        if topic is not None and topic.id == planned.topic_id and planned.partition < len(topic.logs):
            here = topic.logs[planned.partition]
        first, end = planned.start.offset, planned.end.offset
        if here is None or here.first > first or here.end < end:
            if self.fail:
                raise Lost
            if here is None:
                return
            first, end = max(first, here.first), min(end, here.end)
        for offset in range(first, end):
            yield topic.id, planned.partition, offset

    def run(self):
        """Until the driver dies, the stream fails or a while has gone by; whether it failed for a loss."""
        if self.random.random() < 0.5:
            self.planner.freeze()
        try:
            for _ in range(self.random.randint(1, 12)):
                self.trigger()
        except Killed:
            pass
        except (KafkaConditionError, Lost):
            return True
        return False

    def drain(self):
        """Read all records to the end, while nothing else happens."""
        self.die = 0.0
        self.world.hidden = set()
        self.planner.freeze()
        for _ in range(2000):
            if not self.trigger():
                return
        raise AssertionError("AvailableNow does not end")

    def expected(self, records):
        """Those of ``records`` that are after the start of the stream."""
        first = StreamOffset.from_json(json.loads(self.offsets[0])) if self.offsets else None
        names = {}
        for offset in map(json.loads, self.offsets):
            names |= {i: name for name, i in StreamOffset.from_json(offset).topic_ids.items()}
        begun = first.start or {}
        first_ids = first.topic_ids
        found = set()
        for topic_id, partition, offset in records:
            tp = TopicPartition(names.get(topic_id, "?"), partition)
            if first_ids.get(tp.topic) != topic_id or offset >= begun.get(tp, 0):
                found.add((topic_id, partition, offset))
        return found

    def delivered(self):
        return [record for batch in sorted(self.sink) for record in self.sink[batch]]

    def check_order(self):
        for batch in self.sink.values():
            assert len(batch) == len(set(batch))
        at = {}
        for batch in sorted(self.sink):
            for topic_id, partition, offset in sorted(self.sink[batch]):
                assert at.get((topic_id, partition), -1) < offset, "read twice, or backwards"
                at[topic_id, partition] = offset


def live(world):
    return {
        (topic.id, tp.partition, offset)
        for tp, topic, log in world.partitions()
        for offset in range(log.first, log.end)
    }


def check_what_is_there(seed):
    engine = Engine(seed, hides=bool(seed % 2))
    for _ in range(engine.random.randint(1, 8)):
        engine.new_process(engine.random.random() < 0.3)
        engine.run()
    engine.new_process(fail=False)
    engine.drain()
    engine.check_order()
    assert engine.expected(live(engine.world)) <= set(engine.delivered())


def check_losses(seed):
    engine = Engine(seed, deletes=bool(seed % 3), retains=bool(seed % 2))
    written = set()
    change = engine.world.change

    def remember():
        written.update(live(engine.world))
        change()
        written.update(live(engine.world))

    engine.world.change = remember
    failed = False
    for _ in range(engine.random.randint(1, 8)):
        engine.new_process(fail=True)
        failed = engine.run()
        if failed:
            break
    if not failed:
        engine.new_process(fail=True)
        try:
            engine.drain()
        except (KafkaConditionError, Lost):
            failed = True
    if failed:
        assert seed % 3 or seed % 2, "nothing was lost"
        return
    seen = {}
    for offset in map(json.loads, engine.offsets):
        parsed = StreamOffset.from_json(offset)
        for tp in parsed.positions:
            seen[parsed.topic_ids[tp.topic], tp.partition] = True
    engine.check_order()
    missing = engine.expected(r for r in written if r[:2] in seen) - set(engine.delivered())
    assert not missing


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_there_in_the_end_is_read_once_whatever_happened(part):
    try_seeds(check_what_is_there, f"stream {part}", range(part, 120, PARTS))


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_unless_the_stream_says_so(part):
    try_seeds(check_losses, f"stream with losses {part}", range(part, 120, PARTS))
