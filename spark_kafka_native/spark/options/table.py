"""`OPTIONS`: the table of all options. Parsing, errors and docs/options.md come from this one place.

Names, defaults and the words of errors are those of Spark's own Kafka connector wherever it has the option.
``python -m spark_kafka_native.spark.options`` prints docs/options.md. Properties under ``kafka.`` are not
here: the client's configs declare them, and the page lists them from there.
"""

from __future__ import annotations

from typing import Final

from .format_table import FORMAT_OPTIONS
from .option import INT32_MAX, Option, OptionType, Scope
from .registry_table import REGISTRY_OPTIONS

_READS: Final = Scope.READ | Scope.STREAM
_ALL: Final = _READS | Scope.WRITE
_TIME: Final = (
    "milliseconds, ISO-8601 (UTC unless it has an offset), or relative to now: `-1h`, `-15 minutes`"
)
_OFFSETS_JSON: Final = '`{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}` (-1 latest, streams only; -2 earliest)'
_ENDS_JSON: Final = '`{"topicA":{"0":23,"1":-1},"topicB":{"0":50}}` (-1 latest; -2, earliest, is refused)'
_TIMESTAMPS_JSON: Final = '`{"topicA":{"0":1700000000000}}`'

OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="subscribe",
        scope=_READS,
        values="topic names, comma-separated",
        sentence="The topics to read. Give exactly one of `subscribe`, `subscribePattern` and `assign`.",
    ),
    Option(
        name="subscribePattern",
        scope=_READS,
        values="Java regular expression",
        sentence=(
            "Reads every topic whose name contains a match of the pattern, anywhere in it; internal "
            "topics are left out."
        ),
    ),
    Option(
        name="assign",
        scope=_READS,
        values='`{"topicA":[0,1],"topicB":[2,4]}`',
        sentence="The partitions to read; those that a topic does not have are left out.",
    ),
    Option(
        name="startingOffsets",
        scope=_READS,
        default="earliest",
        stream_default="latest",
        values=f"`earliest`, `latest` (streams), `latest-1000`, `committed`, or {_OFFSETS_JSON}",
        sentence=(
            "Where to start. JSON must list every partition that is read. `latest-1000` starts 1000 "
            "offsets before the end of each partition, `committed` where the group `kafka.group.id` has "
            "committed."
        ),
    ),
    Option(
        name="endingOffsets",
        scope=Scope.READ,
        default="latest",
        values=f"`latest` or {_ENDS_JSON}",
        sentence="Where to end (exclusive). JSON must list every partition that is read.",
    ),
    Option(
        name="startingTimestamp",
        scope=_READS,
        values=_TIME,
        sentence=(
            "Starts each partition at its first record at or after this time. Takes precedence over the "
            "other starting options."
        ),
    ),
    Option(
        name="endingTimestamp",
        scope=Scope.READ,
        values=_TIME,
        sentence=(
            "Ends each partition before its first record at or after this time, or at its end if there is "
            "none. Takes precedence over the other ending options."
        ),
    ),
    Option(
        name="startingOffsetsByTimestamp",
        scope=_READS,
        values=_TIMESTAMPS_JSON,
        sentence=(
            "Like `startingTimestamp`, with a time in milliseconds for each partition. Takes precedence "
            "over `startingOffsets`."
        ),
    ),
    Option(
        name="endingOffsetsByTimestamp",
        scope=Scope.READ,
        values=_TIMESTAMPS_JSON,
        sentence=(
            "Like `endingTimestamp`, with a time in milliseconds for each partition. Takes precedence "
            "over `endingOffsets`."
        ),
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        scope=_READS,
        type=OptionType.CHOICE,
        default="error",
        choices=("error", "latest"),
        sentence=(
            "What to do with a partition that has no record at or after the starting time: fail, or start "
            "at its end."
        ),
    ),
    Option(
        name="committedOffsetsFallback",
        scope=_READS,
        type=OptionType.CHOICE,
        default="earliest",
        ours=True,
        choices=("earliest", "latest", "error"),
        sentence=(
            "Where `startingOffsets=committed` starts a partition for which the group has committed "
            "nothing; `error` fails the query."
        ),
    ),
    Option(
        name="failOnDataLoss",
        scope=_READS,
        type=OptionType.BOOLEAN,
        default="true",
        sentence=(
            "Whether the query fails when offsets that it should read are gone (retention, a deleted or "
            "recreated topic). With `false` it goes on at the first offset available, and a warning says "
            "how many were lost."
        ),
    ),
    Option(
        name="bindOffsets",
        scope=Scope.READ,
        type=OptionType.CHOICE,
        choices=("task", "load"),
        default="task",
        ours=True,
        sentence=(
            "When `earliest`, `latest` and times after the last record become offsets. `task`: when a task "
            "runs, so that each execution sees what has arrived, as in Spark's connector. `load`: once, when "
            "the DataFrame is first executed, so that a task that runs again reads the same records. See "
            "[reading](reading.md#when-offsets-are-bound)."
        ),
    ),
    Option(
        name="minPartitions",
        scope=_READS,
        type=OptionType.INT,
        minimum=1,
        maximum=INT32_MAX,
        sentence=(
            "The minimum number of tasks to aim for: large ranges are split. Without it there is one task "
            "per topic-partition."
        ),
    ),
    Option(
        name="maxRecordsPerPartition",
        scope=_READS,
        type=OptionType.INT,
        minimum=1,
        sentence="The maximum number of offsets per task: larger ranges are split evenly.",
    ),
    Option(
        name="maxPartitions",
        scope=_READS,
        type=OptionType.INT,
        minimum=1,
        maximum=INT32_MAX,
        ours=True,
        sentence=(
            "The maximum number of tasks: small ranges are packed together, evenly by size (in a batch read "
            "up to `latest` by leader first), and one fetch asks for many partitions. Takes precedence over "
            "`minPartitions` and `maxRecordsPerPartition`."
        ),
    ),
    Option(
        name="includeHeaders",
        scope=_READS | Scope.WRITE,
        type=OptionType.BOOLEAN,
        default="false",
        sentence=(
            "Adds the column `headers`. Writing needs no option: the column `headers` is written if there "
            "is one."
        ),
    ),
    *FORMAT_OPTIONS,
    *REGISTRY_OPTIONS,
    Option(
        name="filterPushdown",
        scope=Scope.READ,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence=(
            "Plans only what filters on `topic`, `partition`, `offset` and the earliest `timestamp` "
            "leave, if the session has `spark.sql.python.filterPushdown.enabled=true`. [Only for a "
            "DataFrame that is used with a single filter](reading.md#pushed-filters)."
        ),
    ),
    Option(
        name="unknownOptions",
        scope=_READS | Scope.WRITE,
        type=OptionType.CHOICE,
        default="warn",
        ours=True,
        choices=("error", "warn", "ignore"),
        sentence=(
            "What to do about options that do not exist, those under `kafka.` included: fail, log a warning "
            "that names each with the nearest one that exists, or nothing. For writes, too."
        ),
    ),
    Option(
        name="groupIdPrefix",
        scope=_READS,
        default="spark-kafka-relation",
        stream_default="spark-kafka-source",
        values="text",
        sentence="Accepted for compatibility: reading joins no consumer group. Only error messages show it.",
    ),
    Option(
        name="kafkaConsumer.pollTimeoutMs",
        scope=_READS,
        type=OptionType.INT,
        default="120000",
        minimum=1,
        cap=INT32_MAX,
        sentence="A task fails if one of its partitions makes no progress for this many milliseconds.",
    ),
    Option(
        name="fetchOffset.numRetries",
        scope=_READS,
        type=OptionType.INT,
        default="3",
        minimum=0,
        maximum=INT32_MAX,
        sentence="How often the driver tries again when topics or offsets can't be found.",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        scope=_READS,
        type=OptionType.INT,
        default="1000",
        minimum=0,
        cap=INT32_MAX,
        sentence="Milliseconds between those attempts.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        scope=Scope.STREAM,
        type=OptionType.INT,
        minimum=1,
        sentence=(
            "The maximum number of offsets in a micro-batch, shared among the partitions in proportion to "
            "what each has."
        ),
    ),
    Option(
        name="minOffsetsPerTrigger",
        scope=Scope.STREAM,
        type=OptionType.INT,
        minimum=0,
        sentence=(
            "A micro-batch waits until this many offsets are available, but no longer than "
            "`maxTriggerDelay`; 0: it does not wait."
        ),
    ),
    Option(
        name="maxTriggerDelay",
        scope=Scope.STREAM,
        type=OptionType.DURATION,
        default="15m",
        minimum=0,
        sentence="How long `minOffsetsPerTrigger` may delay a micro-batch.",
    ),
    Option(
        name="maxBytesPerTrigger",
        scope=Scope.STREAM,
        type=OptionType.INT,
        minimum=1,
        ours=True,
        sentence=(
            "The maximum number of bytes of keys, values and headers, uncompressed, in a micro-batch, by "
            "[an estimate](streaming.md#how-much-a-batch-reads). If `maxOffsetsPerTrigger` is given too, the "
            "stricter of the two applies."
        ),
    ),
    Option(
        name="commitOffsets",
        scope=Scope.STREAM,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence=(
            "Commits the offsets of completed micro-batches to `kafka.group.id`, so that tools can show "
            "the group's lag. The stream itself always continues from Spark's checkpoint, never from the "
            "group. If a commit fails, a warning is logged."
        ),
    ),
    Option(
        name="delegationTokens",
        scope=_ALL,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence=(
            "The driver logs in with the credentials of the options and creates a delegation token; tasks "
            "get the token, and never the credentials. See [the limits](security.md#tokens-for-tasks)."
        ),
    ),
    Option(
        name="delegationTokens.mechanism",
        scope=_ALL,
        type=OptionType.CHOICE,
        choices=("scram-sha-512", "scram-sha-256"),
        default="scram-sha-512",
        ours=True,
        sentence="The mechanism by which tasks log in; their listener must offer it.",
    ),
    Option(
        name="delegationTokens.bootstrapServers",
        scope=_ALL,
        values="`host:port`, comma-separated",
        ours=True,
        sentence=(
            "The listener for tasks where it is not that of `kafka.bootstrap.servers`: SASL_SSL if the "
            "driver uses TLS, else SASL_PLAINTEXT. Needed with `kafka.security.protocol=SSL`."
        ),
    ),
    Option(
        name="delegationTokens.maxLifetime",
        scope=_ALL,
        type=OptionType.DURATION,
        minimum=60_000,
        ours=True,
        sentence=(
            "The maximum lifetime of a token that is created; one that its job leaves behind ends by then. "
            "A stream creates another one in time. Default, and limit: `delegation.token.max.lifetime.ms` "
            "of the brokers (7 days)."
        ),
    ),
    Option(
        name="topic",
        scope=Scope.WRITE,
        values="topic name",
        sentence="The topic to write to; takes precedence over the column `topic`.",
    ),
    Option(
        name="timestampColumn",
        scope=Scope.WRITE,
        values="column name",
        ours=True,
        sentence=(
            "The column of type timestamp that becomes the records' timestamps (null: the time of writing). "
            "Without it no column does, as with Spark's own connector. Retention deletes by these "
            "timestamps: old ones may be deleted as soon as they are written."
        ),
    ),
    Option(
        name="createTopics",
        scope=Scope.WRITE,
        type=OptionType.BOOLEAN,
        default="false",
        ours=True,
        sentence="Creates topics that don't exist instead of failing.",
    ),
    Option(
        name="createTopics.partitions",
        scope=Scope.WRITE,
        type=OptionType.INT,
        minimum=1,
        maximum=100_000,
        ours=True,
        sentence=(
            "The number of partitions of a topic that is created; by default the broker's `num.partitions`."
        ),
    ),
    Option(
        name="createTopics.replicationFactor",
        scope=Scope.WRITE,
        type=OptionType.INT,
        minimum=1,
        maximum=32767,
        ours=True,
        sentence=(
            "The number of replicas of a topic that is created; by default the broker's "
            "`default.replication.factor`."
        ),
    ),
    Option(
        name="deliveryGuarantee",
        scope=Scope.WRITE,
        type=OptionType.CHOICE,
        choices=("at-least-once", "exactly-once"),
        default="at-least-once",
        ours=True,
        sentence=(
            "With `exactly-once` readers with `read_committed` see each row of a deterministic streaming "
            "query once, whichever process dies: see [the limits](exactly-once.md#what-it-needs). A batch "
            "write is all or nothing with it, and [written by one task](exactly-once.md#all-or-nothing), or "
            "has a `writeId`."
        ),
    ),
    Option(
        name="transactionalIdPrefix",
        scope=Scope.WRITE | Scope.STREAM,
        default="pykafka",
        values="text",
        ours=True,
        sentence=(
            "What the transactional ids and the groups of an exactly-once write begin with. Keep it as long "
            "as the query lives. In a stream the query's id and the number of the task follow; in a batch "
            "write `-batch`, and the next run aborts what this one has left (without the option each run has "
            "a name of its own); with `writeId` `-write/` and that name; with `mode=dlq` the query's id, "
            "`-dlq-` and the topic-partition. [ACLs](exactly-once.md#what-it-needs)."
        ),
    ),
    Option(
        name="transactionTimeout",
        scope=Scope.WRITE,
        type=OptionType.DURATION,
        default="10m",
        minimum=1_000,
        maximum=INT32_MAX,
        ours=True,
        sentence=(
            "How long a transaction may be open, from a task's first row to the commit of the micro-batch or "
            "of the job; at most the broker's `transaction.max.timeout.ms` (15 minutes). One that exceeds it "
            "is aborted: its micro-batch runs again, with the same offsets, or its job fails."
        ),
    ),
    Option(
        name="writeId",
        scope=Scope.WRITE,
        values="1 to 200 ASCII letters, digits and `. _ - : +`",
        ours=True,
        sentence=(
            "The name of an exactly-once batch write, which any number of tasks then write. Run it again "
            "under the same name after a failure: it writes what is missing, and nothing twice; rows that "
            "differ are refused. See [the limits](exactly-once.md#a-write-with-a-name)."
        ),
    ),
    Option(
        name="transactionMarkerTopic",
        scope=Scope.WRITE,
        values="topic name",
        ours=True,
        sentence=(
            "A compacted topic where an exactly-once stream, or a batch with a `writeId`, keeps its commit "
            "markers, instead of in groups whose offsets expire (`offsets.retention.minutes`). It must exist "
            "with `cleanup.policy=compact`; one partition is enough, and many queries may share it."
        ),
    ),
    Option(
        name="summaryPath",
        scope=Scope.WRITE,
        values="path of a file on the driver",
        ours=True,
        sentence=(
            "Where a write puts a summary of what it wrote, as JSON: records, bytes, retries, and the "
            "first and last offset of each topic-partition. A stream leaves that of its last micro-batch, "
            "with `batchId`. A file that can't be written is a warning, as the rows are written by then."
        ),
    ),
)
"""Every option, in the order of the documentation."""
