"""How long a run of the exactly-once sink's processes goes on: until all has happened that it has to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.exactly_once.sink_processes import POINTS, Driver, Plan, await_kills, share


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(bootstrap_servers="nowhere", topic="t", folder=str(tmp_path), seed=0, batches=4, min_kills=3)


def test_there_are_more_batches_as_long_as_a_point_has_not_been_died_at(plan: Plan) -> None:
    driver, commits = Driver(plan, 1), Path(plan.folder, "commits")
    assert driver.next_batch() == 0
    for point in POINTS[1:]:
        driver.events.tell(f"killed at {point}")
    commits.write_text("0\n1\n2\n3\n4\n")
    assert driver.next_batch() == 5
    driver.events.tell(f"killed at {POINTS[0]}")
    assert driver.next_batch() is None
    commits.write_text("0\n1\n2\n")
    assert driver.next_batch() == 3


def test_a_batch_waits_for_the_brokers_that_are_to_die_before_it(plan: Plan) -> None:
    assert [share(plan.min_kills, plan, done) for done in range(7)] == [0, 0, 1, 2, 3, 3, 3]
    await_kills(plan, 0)
    Path(plan.folder, "kills").write_text("2")
    await_kills(plan, 2)
