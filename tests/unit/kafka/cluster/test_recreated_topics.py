"""Which topics are others by now: never decided from a cache, nor by one broker that lags behind."""

from dataclasses import replace
from uuid import uuid4

import pytest
from support.brokers.scripted_broker import HangUp, ScriptedCluster, Silence, properties

from spark_kafka_native.kafka.cluster import recreated_topics as topic_ids
from spark_kafka_native.kafka.cluster.recreated_topics import find_recreated
from spark_kafka_native.kafka.cluster.router import Router
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.kafka.errors import DeadlineExceededError
from spark_kafka_native.kafka.model import TopicPartition
from spark_kafka_native.kafka.protocol.api.metadata import MetadataRequest
from spark_kafka_native.kafka.runtime.deadline import Deadline
from spark_kafka_native.kafka.runtime.retry import Backoff

pytestmark = pytest.mark.timed(0.1)


@pytest.fixture
def cluster():
    with ScriptedCluster(3) as cluster:
        cluster.create("t", 3)
        cluster.create("u")
        yield cluster


@pytest.fixture
def router(cluster):
    quick = properties(cluster.bootstrap_servers, default_api_timeout_ms=60_000)
    router = Router(ClientConfig.from_properties(quick))
    yield router
    router.close()


def connect(router):
    """To all brokers: a loaded machine may need longer for that than a test waits in vain."""
    ready = Deadline.after_ms(60_000)
    for node_id in router.metadata(deadline=ready).brokers:
        router.connection(node_id, ready)


def asked(cluster):
    return sum(len(broker.requests(MetadataRequest)) for broker in cluster.brokers.values())


def lag(cluster, node_id, topic_id, answers=1_000_000, then=None):
    """That broker still gives ``topic_id`` for the topic t, this number of times."""
    left = iter(range(answers))

    def answer(request, version):
        response = cluster.metadata(request, version)
        if next(left, None) is None:
            return response if then is None else then
        topics = [
            replace(topic, topic_id=topic_id) if topic.name == "t" else topic for topic in response.topics
        ]
        return replace(response, topics=topics)

    cluster[node_id].on(MetadataRequest, answer)


def test_what_is_known_may_confirm(cluster, router):
    expected = dict(cluster.topic_ids)
    assert find_recreated(router, expected) == {}
    before = asked(cluster)
    assert find_recreated(router, expected) == {}
    assert find_recreated(router, {}) == {}
    assert asked(cluster) == before
    assert find_recreated(router, expected, refresh=True) == {}
    assert asked(cluster) == before + 4  # any broker for the leaders, then these


def test_another_topic_is_one_that_several_answers_call_so(cluster, router):
    expected = dict(cluster.topic_ids)
    router.metadata(expected)
    cluster.topic_ids["t"] = uuid4()
    assert find_recreated(router, expected) == {}  # not asked: the known metadata has the expected ids
    assert find_recreated(router, expected, refresh=True) == {"t": cluster.topic_ids["t"]}
    cluster.topic_ids["u"] = uuid4()
    before = len(cluster[1].requests(MetadataRequest))
    assert find_recreated(router, {"u": expected["u"]}, refresh=True) == {"u": cluster.topic_ids["u"]}
    assert len(cluster[1].requests(MetadataRequest)) - before >= 3  # its one leader


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_a_leader_that_lags_behind_is_asked_until_it_does_not(cluster, router, node_id):
    for former, current in (uuid4(), cluster.topic_ids["t"]), (cluster.topic_ids["t"], uuid4()):
        expected = {"t": cluster.topic_ids["t"]}
        cluster.topic_ids["t"] = current
        lag(cluster, node_id, former, answers=5)
        found = find_recreated(router, expected, refresh=True)
        assert found == ({} if current == expected["t"] else {"t": current})


def test_leaders_that_never_agree_are_no_answer(cluster, router):
    expected = dict(cluster.topic_ids)
    connect(router)
    lag(cluster, 3, uuid4())
    with pytest.raises(DeadlineExceededError, match="the brokers disagree about the ids of t, u"):
        find_recreated(router, expected, refresh=True, deadline=Deadline.after_ms(1_000))


def test_a_caller_may_limit_the_wait_for_leaders_to_agree(cluster, router, monkeypatch):
    expected = dict(cluster.topic_ids)
    connect(router)
    lag(cluster, 3, uuid4())
    monkeypatch.setattr(Router, "deadline", lambda *_: pytest.fail("the caller's own one counts"))
    with pytest.raises(DeadlineExceededError, match="the brokers disagree about the ids of t, u"):
        find_recreated(router, expected, refresh=True, deadline=Deadline.after_ms(1_000))


def test_a_leader_that_disagreed_and_answers_no_more_is_not_passed_over(cluster, router):
    """The time runs out while it is asked again: that is no consent."""
    expected = dict(cluster.topic_ids)
    connect(router)
    lag(cluster, 3, uuid4(), answers=2, then=Silence)
    with pytest.raises(DeadlineExceededError, match="the brokers disagree about the ids of t, u"):
        find_recreated(router, expected, refresh=True, deadline=Deadline.after_ms(1_000))


@pytest.mark.parametrize("answers_with", ["the expected id", "another id"])
def test_a_leader_that_disagreed_and_goes_down_is_not_passed_over(cluster, router, answers_with):
    """Not in the seconds until another broker leads its partitions, whichever of them lags behind."""
    expected = {"t": cluster.topic_ids["t"]}
    connect(router)
    if answers_with == "the expected id":
        cluster.topic_ids["t"] = uuid4()
        lag(cluster, 3, expected["t"], answers=2, then=HangUp)
    else:
        lag(cluster, 3, uuid4(), answers=2, then=HangUp)
    with pytest.raises(DeadlineExceededError, match="asking for the ids of t"):
        find_recreated(router, expected, refresh=True, deadline=Deadline.after_ms(1_000))


@pytest.mark.parametrize("is_recreated", [False, True])
def test_who_leads_nothing_of_it_has_no_say(cluster, router, is_recreated):
    """However long it lags behind; and no leader of other partitions either."""
    expected = {"t": cluster.topic_ids["t"]}
    cluster.topic_ids["t"] = uuid4() if is_recreated else expected["t"]
    for node_id in (1, 2):
        lag(cluster, node_id, expected["t"] if is_recreated else uuid4())
    found = find_recreated(router, expected, refresh=True, at=[TopicPartition("t", 2)])
    assert found == ({"t": cluster.topic_ids["t"]} if is_recreated else {})


def test_old_metadata_refute_nothing(cluster, router):
    current = cluster.topic_ids["t"]
    cluster.topic_ids["t"] = uuid4()
    router.metadata({"t"})
    cluster.topic_ids["t"] = current
    assert find_recreated(router, {"t": current}) == {}
    assert router.snapshot.topic("t").topic_id == current


def test_a_broker_that_is_down_is_passed_over(cluster, router):
    expected = dict(cluster.topic_ids)
    router.metadata(expected)
    cluster[2].stop()
    cluster.topic_ids["t"] = uuid4()
    assert find_recreated(router, expected, refresh=True) == {"t": cluster.topic_ids["t"]}


@pytest.mark.parametrize("names", ["t", "tu"])
def test_a_topic_that_is_missing_is_not_another_one(cluster, router, names):
    """Nor is it an error, if no leader of another topic can be asked."""
    expected = {name: cluster.topic_ids[name] for name in names}
    del cluster.topic_ids["t"]
    assert find_recreated(router, expected, refresh=True) == {}


def test_asking_for_a_deleted_topic_does_not_create_it(cluster, router):
    """Brokers may create a topic that a request names, unless the request forbids it."""
    expected = dict(cluster.topic_ids)
    router.metadata(expected)
    del cluster.topic_ids["t"]
    assert find_recreated(router, expected, refresh=True) == {}
    requests = [one for broker in cluster.brokers.values() for one in broker.requests(MetadataRequest)]
    assert not [one for one in requests if one.allow_auto_topic_creation]


def test_ids_that_change_with_each_answer_are_no_answer(cluster, router):
    expected = dict(cluster.topic_ids)

    def answer(request, version):
        cluster.topic_ids["t"] = uuid4()
        return cluster.metadata(request, version)

    connect(router)
    for broker in cluster.brokers.values():
        broker.on(MetadataRequest, answer)
    with pytest.raises(DeadlineExceededError, match="asking for the ids of t"):
        find_recreated(router, expected, refresh=True, deadline=Deadline.after_ms(1_000))


def test_all_brokers_together_have_the_time_of_one_call(router, cluster, monkeypatch):
    deadlines = []
    send_to = router.send_to

    def send(node_id, request, deadline):
        deadlines.append(deadline)
        return send_to(node_id, request, deadline)

    monkeypatch.setattr(router, "send_to", send)
    assert find_recreated(router, dict(cluster.topic_ids), refresh=True) == {}
    assert len(deadlines) > 1
    assert len({id(deadline) for deadline in deadlines}) == 1
    assert deadlines[0] is not None


X, Y = {"t": uuid4()}, {"t": uuid4()}


@pytest.mark.parametrize(
    "rounds",
    [
        [[X], [Y], [X], [X], [X]],
        [[X, X], [X, {}], [X, X], [X, X]],
        [[X, X, X]],
        [[X, {}], [{}, {}]],
        [[X], [X], [{}]],
    ],
)
def test_answers_count_in_a_row_only(router, monkeypatch, rounds):
    left = iter(rounds)
    monkeypatch.setattr(topic_ids, "_ask_leaders", lambda *_: next(left))
    assert find_recreated(router, {"t": uuid4()}, refresh=True) == rounds[-1][-1]
    assert next(left, None) is None


@pytest.mark.parametrize("own", [None, Backoff(first_ms=3, max_ms=4)])
def test_a_caller_may_have_waits_of_its_own(monkeypatch, own):
    """With those of a patient client its time would end before the leaders have answered three times."""
    used = []
    monkeypatch.setattr(topic_ids, "retry", lambda *_, backoff, **__: used.append(backoff) or {})
    config = ClientConfig(bootstrap_servers=("a:1",), retry_backoff_ms=500, retry_backoff_max_ms=9_000)
    assert find_recreated(Router(config), {"t": uuid4()}, refresh=True, backoff=own) == {}
    assert used == [own or Backoff(first_ms=500, max_ms=9_000)]


def test_a_leader_that_names_no_brokers_yet_confirms_nothing(cluster, router):
    expected = {"t": cluster.topic_ids["t"]}
    router.metadata(expected)
    cluster.topic_ids["t"] = uuid4()
    for node_id in (1, 2, 3):
        answer = replace(cluster.metadata(MetadataRequest(topics=[]), 12), brokers=[], topics=[])
        cluster[node_id].push(MetadataRequest, cluster.metadata, answer)
    assert find_recreated(router, expected, refresh=True) == {"t": cluster.topic_ids["t"]}
