"""Which idle entry goes next: never one in use, what is worth least, and at a cost that does not grow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcluster.index.retention import GHOSTS, POPULATION, SAMPLE, Retention

DRAWS = 3  # for one that is looked at: of runs that weigh as much, one of them, and which of its entries


def test_what_is_held_and_given_back_is_worth_what_it_was_and_is_not_idle_meanwhile() -> None:
    retention: Retention[str] = Retention()
    for key in ("older", "newer"):
        retention.use(key)
        retention.idle(key, at=7)
    for _ in range(10):
        retention.hold("older")
        assert (len(retention), retention.victim()) == (1, "newer")
        retention.idle("older", at=9)
    assert retention.victim() == "older"
    assert (retention.idle_since("older"), retention.idle_since("newer")) == (9, 7)
    for _ in range(10):
        retention.use("older")
        retention.idle("older")
    assert retention.victim() == "newer"


def test_a_part_of_a_run_that_is_held_leaves_the_rest_idle() -> None:
    retention: Retention[int] = Retention()
    retention.use(*range(8))
    retention.idle(*range(8), at=3)
    retention.hold(0, 1, 2)
    assert (len(retention), retention.entries) == (5, 8)
    gone = []
    while (victim := retention.victim()) is not None:
        gone.append(victim)
        retention.forget(victim)
    assert gone == [3, 4, 5, 6, 7]
    retention.idle(0, 1, 2)
    assert (len(retention), retention.entries) == (3, 3)


def test_nothing_goes_where_nothing_is_idle() -> None:
    retention: Retention[int] = Retention()
    retention.use(1)
    assert retention.victim() is None
    assert len(retention) == 0


def test_an_entry_goes_once_it_is_idle_and_stays_until_it_is_forgotten() -> None:
    retention: Retention[int] = Retention()
    retention.idle(1)
    assert retention.victim() == retention.victim() == 1
    retention.forget(1)
    retention.forget(1)
    assert retention.victim() is None


def test_one_that_is_used_again_does_not_go() -> None:
    retention: Retention[int] = Retention()
    for key in (1, 2):
        retention.idle(key)
    retention.use(1)
    assert retention.victim() == 2
    retention.forget(2)
    assert retention.victim() is None


def test_as_long_as_nothing_was_learned_the_older_goes_first_and_what_was_used_twice_later() -> None:
    retention: Retention[int] = Retention()
    for key in range(8):
        retention.use(key)
    retention.use(0)
    for key in range(8):
        retention.idle(key)
    assert retention.victim() == 1


def test_what_is_remembered_of_the_dead_is_bounded() -> None:
    retention: Retention[int] = Retention()
    for key in range(5_000):
        retention.idle(key)
        if key >= 100:
            retention.forget(key - 100)
    assert len(retention) == 100
    assert retention.remembered <= GHOSTS * 101


@pytest.mark.no_cover
def test_what_comes_again_and_again_outlives_what_comes_once() -> None:
    retention: Retention[int] = Retention()
    here: set[int] = set()
    popular, hits = list(range(50)), 0
    draws = random.Random(1)
    for turn in range(10_000):
        key = draws.choice(popular) if turn % 4 == 0 else 1_000 + turn
        hits += key in here and turn >= 5_000
        here.add(key)
        retention.use(key)
        retention.idle(key)
        while len(here) > 60:
            victim = retention.victim()
            assert victim is not None
            here.remove(victim)
            retention.forget(victim)
    assert hits > 1_000  # of 1,250; among the last 60 that came are a quarter of them


def test_what_went_and_comes_again_is_known_for_what_it_was() -> None:
    retention: Retention[int] = Retention()
    for key in (1, 2):
        retention.use(key)
        retention.idle(key)
    retention.forget(1)
    assert retention.remembered == 1
    for key in (1, 3, *[4] * 30):
        retention.use(key)
    assert retention.remembered == 0
    for key in (1, 3):
        retention.idle(key)
    retention.forget(2)
    assert retention.victim() == 3  # 30 uses old, 1 is 31, but was used before


@pytest.mark.no_cover
def test_a_conversation_outlives_documents_that_come_once_while_its_user_thinks() -> None:
    retention: Retention[tuple[str, int]] = Retention()
    here: set[tuple[str, int]] = set()
    hits = 0
    for turn in range(3_000):
        keys = [("once", 3 * turn + at) for at in range(3)] + [("chat", turn % 40)]
        hits += keys[-1] in here and turn >= 1_500
        for key in keys:
            retention.use(key)
        for key in reversed(keys):
            retention.idle(key)
        here.update(keys)
        while len(here) > 80:  # a chat comes back after 160 uses: the oldest of 80 is far younger
            victim = retention.victim()
            assert victim is not None
            here.remove(victim)
            retention.forget(victim)
    assert hits > 1_200  # of 1,500


def test_of_blocks_that_are_left_children_first_the_last_one_goes_first() -> None:
    retention: Retention[int] = Retention()
    for block in range(8):
        retention.use(block)
    for block in reversed(range(8)):
        retention.idle(block)
    gone = []
    while (victim := retention.victim()) is not None:
        children = [child for child in range(victim, 8) if child not in gone]
        gone.append(children[-1])  # the caller goes to the leaf
        retention.forget(children[-1])
    assert gone == list(reversed(range(8)))


def test_what_is_used_apart_from_the_rest_outlives_the_rest() -> None:
    retention: Retention[int] = Retention()
    retention.use(*range(10))
    retention.use(*range(4))
    retention.idle(*range(10))
    gone = []
    while (victim := retention.victim()) is not None:
        gone.append(victim)
        retention.forget(victim)
    assert gone == [*range(4, 10), *range(4)]


def test_of_what_was_left_in_parts_only_what_is_idle_goes() -> None:
    retention: Retention[int] = Retention()
    retention.use(*range(10))
    retention.idle(8, 9, 2)
    gone = set()
    while (victim := retention.victim()) is not None:
        gone.add(victim)
        retention.forget(victim)
    assert gone == {2, 8, 9}
    retention.use(*range(10))
    assert retention.remembered == len(retention) == 0


@pytest.mark.no_cover
def test_blocks_of_one_call_are_worth_what_they_are_worth_one_by_one() -> None:
    found = []
    for together in (True, False):
        retention: Retention[int] = Retention()
        here: set[int] = set()
        hits, draws = 0, random.Random(2)
        for turn in range(1_500):
            of = draws.randrange(20) if turn % 3 == 0 else 1_000 + turn
            keys = [10 * of + at for at in range(draws.randint(1, 9))]
            hits += len(here.intersection(keys))
            here.update(keys)
            for part in [keys] if together else [[key] for key in keys]:
                retention.use(*part)
            retention.idle(*keys)
            while len(here) > 200:
                victim = retention.victim()
                assert victim is not None
                here.remove(victim)
                retention.forget(victim)
        found.append(hits)
    assert found[0] == pytest.approx(found[1], rel=0.05)


@pytest.mark.parametrize("entries", [2_000, 20_000])
def test_an_eviction_and_a_learning_look_at_no_more_of_many_than_of_few(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    honest = random.Random.random

    def counting(self: random.Random) -> float:
        drawn.append(honest(self))
        return drawn[-1]

    monkeypatch.setattr(random.Random, "random", counting)
    retention: Retention[int] = Retention()
    for key in range(entries):
        retention.idle(key)
    retention.victim()
    assert len(drawn) == DRAWS * (SAMPLE + POPULATION)
    drawn.clear()
    for _ in range(10):
        victim = retention.victim()
        assert victim is not None
        retention.forget(victim)
    assert len(drawn) == 10 * DRAWS * SAMPLE


KEYS = st.lists(st.integers(0, 12), unique=True, max_size=13)


class RetentionMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.retention: Retention[int] = Retention()
        self.idle: set[int] = set()
        self.known: set[int] = set()

    @rule(keys=KEYS)
    def use(self, keys: list[int]) -> None:
        self.retention.use(*keys)
        self.known.update(keys)
        self.idle.difference_update(keys)

    @rule(keys=KEYS)
    def leave(self, keys: list[int]) -> None:
        self.retention.idle(*keys)
        self.known.update(keys)
        self.idle.update(keys)

    @rule(length=st.integers(0, 13))
    def use_and_leave_a_beginning(self, length: int) -> None:
        self.use([*range(length)])
        self.leave([*range(length)])

    @rule(key=st.integers(0, 12))
    def forget(self, key: int) -> None:
        self.retention.forget(key)
        self.known.discard(key)
        self.idle.discard(key)

    @precondition(lambda self: self.idle)
    @rule()
    def evict(self) -> None:
        victim = self.retention.victim()
        assert victim in self.idle
        self.retention.forget(victim)
        self.idle.discard(victim)

    @invariant()
    def as_many_are_idle_as_were_left(self) -> None:
        if hasattr(self, "idle"):
            assert len(self.retention) == len(self.idle)
            assert (self.retention.victim() is None) == (not self.idle)
            assert self.retention.remembered <= GHOSTS * SAMPLE


TestRetentionModel = RetentionMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=400))
def test_any_load_leaves_a_victim_among_those_that_are_idle(acts: list[tuple[int, bool]]) -> None:
    retention: Retention[int] = Retention()
    idle: set[int] = set()
    for key, stays in acts:
        retention.use(key)
        idle.discard(key)
        if not stays:
            retention.idle(key)
            idle.add(key)
    assert retention.victim() in (idle or {None})
