"""Leases, ends of connections, surrenders, deaths and frames in any order, against a model of four states.

The same for every owner of memory: a machine names the owner that it opens, and what its clients take of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcluster.errors import SessionEnded
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.testing.clock import ManualClock
from kvcluster.wire.socket import Fenced, Push

LEASE_S = 30
MOST_CLIENTS = 4
MOST_TAKEN = 3  # granules or blocks, of one client


class Model(Enum):
    LIVE = "live"
    FENCED = "fenced"  # its lease ended, and its connection stands
    ORPHANED = "orphaned"  # its connection ended
    OVER = "over"


class Service(Protocol):
    """What of either service is used here."""

    def heartbeat(self, session: str) -> None: ...
    def disconnected(self, session: str) -> None: ...
    def surrendered(self, session: str) -> None: ...
    def gone(self, session: str) -> None: ...
    def idle(self) -> None: ...
    def all_pushes(self) -> tuple[tuple[str, Push], ...]: ...
    def statistics(self) -> DeviceStatistics | PageStatistics: ...


@dataclass(frozen=True, slots=True)
class Leased:
    """An owner of memory. `held` says how many granules or blocks all accounts of a kind have, after an audit."""

    service: Service
    clock: ManualClock
    held: Callable[[str], int]


@dataclass(slots=True)
class Client:
    """`take` is an ask for one granule or block more."""

    session: str
    take: Callable[[], None]
    state: Model = Model.LIVE
    silent_s: float = 0.0
    taken: int = 0

    def expires(self) -> None:
        if self.state is Model.LIVE and self.silent_s >= LEASE_S:
            self.state = Model.FENCED


class LeaseMachine(RuleBasedStateMachine):
    """`opened` is the owner, and `arrived` a new client of it."""

    opened: Callable[[ExitStack], Leased]
    arrived: Callable[[], Client]

    @initialize()
    def begin(self) -> None:
        self.undo = ExitStack()
        self.owner = self.opened(self.undo)
        self.clients: list[Client] = []
        self.newly_fenced: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "undo"):
            for client in self.clients:
                self.owner.service.gone(client.session)
            assert self.owner.held("free") == self.owner.held("all")
            self.undo.close()

    @precondition(lambda self: len(self.clients) < MOST_CLIENTS)
    @rule()
    def arrive(self) -> None:
        self.clients.append(self.arrived())

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.state is not Model.LIVE:
            try:
                client.take()
            except SessionEnded:
                return
            raise AssertionError("a session that is over was served")
        if client.taken < MOST_TAKEN:
            client.take()
            client.taken += 1

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.owner.service.heartbeat(client.session)
        client.silent_s = 0.0

    @rule(seconds=st.integers(1, LEASE_S + 1))
    def watch(self, seconds: int) -> None:
        """The owner looks once a second."""
        for _ in range(seconds):
            self._look(1.0, counted_s=1.0)

    @rule(seconds=st.integers(3, 1000))
    def stand_still(self, seconds: int) -> None:
        """The owner was stopped: what it did not hear meanwhile is nobody's silence."""
        self._look(float(seconds), counted_s=2.0)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.owner.service.disconnected(client.session)
        if client.state is not Model.OVER:
            client.state = Model.ORPHANED if client.taken else Model.OVER

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), word=st.sampled_from(["surrendered", "gone"]))
    def end(self, data: st.DataObject, word: str) -> None:
        """The process says that it has nothing mapped, or the kernel that it is dead."""
        client = data.draw(st.sampled_from(self.clients))
        getattr(self.owner.service, word)(client.session)
        client.state = Model.OVER

    @invariant()
    def figures_are_those_of_the_model(self) -> None:
        if not hasattr(self, "owner"):
            return
        states = {client.session: client.state for client in self.clients}
        shown = {Model.LIVE: "live", Model.FENCED: "orphaned", Model.ORPHANED: "orphaned"}
        seen = self.owner.service.statistics()
        assert dict(seen.sessions) == {name: shown[state] for name, state in states.items() if state in shown}
        waiting = {client.session: client.taken for client in self.clients if shown.get(client.state) == "orphaned"}
        assert {name for name, taken in waiting.items() if taken} == set(seen.quarantined)
        assert self.owner.held("quarantine") == sum(waiting.values())
        assert self.owner.held("request") == sum(c.taken for c in self.clients if c.state is Model.LIVE)

    @invariant()
    def who_was_fenced_is_told_once_and_nobody_else(self) -> None:
        if not hasattr(self, "owner"):
            return
        told = {name for name, push in self.owner.service.all_pushes() if isinstance(push, Fenced)}
        assert told == self.newly_fenced
        self.newly_fenced.clear()

    def _look(self, seconds: float, *, counted_s: float) -> None:
        self.owner.clock.advance(seconds)
        self.owner.service.idle()
        for client in self.clients:
            before = client.state
            client.silent_s += counted_s
            client.expires()
            if client.state is not before:
                self.newly_fenced.add(client.session)
