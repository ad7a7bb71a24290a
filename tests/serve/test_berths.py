"""Replicas of a deployment spread over its devices, whoever of them dies or starts, and whenever."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.berths import MOST_ROUNDS, Berth, NoBerth, take_berth

DEVICES = ("host:0", "host:1", "host:2")
HOLDER = """
import sys
from actors.berths import take_berth
berth = take_berth(sys.argv[1], ["host:0"], each=1)
print(berth.device, flush=True)
sys.stdin.read()
"""


class Replicas(RuleBasedStateMachine):
    """Up to two at each device, which end and are replaced in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = uuid4().hex
        self.held: list[Berth] = []

    @precondition(lambda self: len(self.held) < 2 * len(DEVICES))
    @rule()
    def one_starts(self) -> None:
        self.held.append(take_berth(self.owner, DEVICES, each=2, wait_s=0))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(min_value=0))
    def one_ends(self, number: int) -> None:
        self.held.pop(number % len(self.held)).close()

    @invariant()
    def no_device_has_more_than_its_part(self) -> None:
        assert all(count <= 2 for count in Counter(berth.device for berth in self.held).values())

    def teardown(self) -> None:
        for berth in self.held:
            berth.close()


TestReplicas = Replicas.TestCase


def test_replicas_of_two_deployments_take_no_berth_from_each_other() -> None:
    one, other = (take_berth(uuid4().hex, ["host:0"], each=1, wait_s=0) for _ in range(2))
    assert one.device == other.device == "host:0"
    one.close()
    other.close()


def test_a_replica_beyond_the_berths_takes_one_beside_them() -> None:
    owner = uuid4().hex
    held = [take_berth(owner, ["host:0", "host:1"], each=1, wait_s=0) for _ in range(4)]
    assert Counter(berth.device for berth in held) == {"host:0": 2, "host:1": 2}
    for berth in held:
        berth.close()


def test_where_every_name_is_taken_none_is_held() -> None:
    owner = uuid4().hex
    held = [take_berth(owner, ["host:0"], each=1, wait_s=0) for _ in range(MOST_ROUNDS)]
    with pytest.raises(NoBerth, match="end what holds them"):
        take_berth(owner, ["host:0"], each=1, wait_s=0)
    for berth in held:
        berth.close()


def test_the_berth_of_a_process_that_was_killed_is_free_at_once() -> None:
    owner = uuid4().hex
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, owner], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"host:0\n"
        other = take_berth(owner, ["host:0", "host:1"], each=1, wait_s=0)
        holder.kill()
        holder.wait()
        mine = take_berth(owner, ["host:0", "host:1"], each=1, wait_s=0)
    assert (other.device, mine.device) == ("host:1", "host:0")
    other.close()
    mine.close()
