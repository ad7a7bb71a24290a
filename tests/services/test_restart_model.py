"""Random requests of three clients, and a device that dies or is silent at any moment: no byte changes or is lost.

The model is what was written: each memory's first tokens carry its own mark, in every granule. After each rule every
mark is read again, and what the device says of bytes is what the memories hold.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcluster.errors import DeviceUnreachable, NotAllowed, NotShareable, OutOfBudget, SessionEnded
from kvcluster.services.asks import Grow
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from tests.examples import examples
from tests.services.restarts import RestartWorld, Way
from tests.services.world import GRANULE, TOKENS

CAPACITY = 40
REFUSED = (OutOfBudget, NotShareable, NotAllowed, DeviceUnreachable)
picks = st.integers(0, 11)


class RestartMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = RestartWorld(CAPACITY)
        self.marks: dict[SequenceMemory, list[bytes]] = {}
        self.prefixes: list[tuple[Prefix, list[bytes]]] = []
        self.count = 0
        for _ in range(3):
            self.world.open_port(most_registered=2)

    # --- what clients do ------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 2), granules=st.integers(1, 6))
    def open(self, who: int, granules: int) -> None:
        memory = self.world.memory(self.world.ports[who], 0)
        self.marks[memory] = []
        self._grow(memory, granules)

    @precondition(lambda self: self.marks)
    @rule(pick=picks, more=st.integers(1, 4))
    def grow(self, pick: int, more: int) -> None:
        memory = self._one(pick)
        self._grow(memory, min(16, len(self.marks[memory]) + more))

    @precondition(lambda self: self.marks)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        memory = self._one(pick)
        with suppress(DeviceUnreachable):  # it is done here, all the same
            memory.release()
        self.marks[memory] = []

    @precondition(lambda self: self.marks)
    @rule(pick=picks)
    def close(self, pick: int) -> None:
        memory = self._one(pick)
        memory.close()
        del self.marks[memory]

    @precondition(lambda self: self.marks)
    @rule(pick=picks)
    def publish(self, pick: int) -> None:
        memory = self._one(pick)
        try:
            prefix = memory.publish(max(1, len(self.marks[memory])) * TOKENS)
        except (*REFUSED, ValueError):
            return
        self.prefixes.append((prefix, list(self.marks[memory])))

    @precondition(lambda self: self.prefixes)
    @rule(who=st.integers(0, 2), pick=picks)
    def join(self, who: int, pick: int) -> None:
        prefix, marks = self.prefixes[pick % len(self.prefixes)]
        memory = self.world.memory(self.world.ports[who], 0)
        self.marks[memory] = []
        try:
            memory.join(prefix, prefix.tokens + 1)
        except REFUSED:
            return
        self.marks[memory] = marks[: memory.tokens // TOKENS]

    # --- what happens to them -------------------------------------------------------------------------------------

    @rule()
    def die(self) -> None:
        """Whoever does not look goes on without a device."""
        self.world.die()

    @rule(who=st.integers(0, 2))
    def look(self, who: int) -> None:
        self.world.in_touch(self.world.ports[who])

    @rule(who=st.integers(0, 2), frames=st.integers(1, 3))
    def die_while_it_registers(self, who: int, frames: int) -> None:
        self.world.die()
        self.world.limit_frames(frames)
        self.world.look(self.world.ports[who])
        self.world.limit_frames(0)

    @precondition(lambda self: self.marks)
    @rule(pick=picks)
    def die_with_a_reply(self, pick: int) -> None:
        """A growth was executed, and nobody hears of it."""
        memory = self._one(pick)
        way = memory._port.exchange.line
        assert isinstance(way, Way)
        way.loses_replies = True
        pending = memory._port.submit([Grow(memory, min(16, len(self.marks[memory]) + 2) * TOKENS)])
        self.world.die()
        [outcome] = pending.settle()
        assert outcome.error is None or isinstance(outcome.error, (DeviceUnreachable, NotAllowed))

    @rule()
    def be_silent(self) -> None:
        """Every lease ends; every client hears of it, and has nothing any more."""
        self.world.all_in_touch()
        self.world.fence()
        for port in self.world.ports:
            try:
                while not port.in_touch():
                    threading.Event().wait(0.001)
            except SessionEnded:
                continue
        self.world.all_in_touch()
        self.marks.clear()

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def every_mark_is_there(self) -> None:
        for memory, marks in self.marks.items():
            for number, mark in enumerate(marks):
                assert ctypes.string_at(memory.address + number * GRANULE, len(mark)) == mark

    @invariant()
    def the_device_counts_what_its_clients_hold(self) -> None:
        figures = self.world.service.audit()
        own = sum(memory.committed_bytes for memory in self.marks)
        if any(port.exchange.is_lost or port.welcome.epoch != figures.epoch for port in self.world.ports):
            assert figures.capacity_bytes - figures.free_bytes >= own
            return
        kept = [size for name, size in figures.accounts.items() if name.startswith("foreign/prefix/")]
        booked = figures.foreign_bytes - sum(kept)
        assert booked + sum(s for n, s in figures.accounts.items() if n.startswith("request/")) == own
        assert figures.accounts.get("quarantine", 0) == 0

    def teardown(self) -> None:
        self.world.all_in_touch()
        for memory in list(self.marks):
            memory.close()
        accounts = self.world.service.audit().accounts
        assert sum(size for name, size in accounts.items() if name.startswith(("free", "retained"))) == 40 * GRANULE
        self.world.close()

    def _one(self, pick: int) -> SequenceMemory:
        return list(self.marks)[pick % len(self.marks)]

    def _grow(self, memory: SequenceMemory, granules: int) -> None:
        try:
            memory.commit(granules * TOKENS, memory.grant(granules * TOKENS))
        except REFUSED:
            return
        for number in range(len(self.marks[memory]), granules):
            self.count += 1
            mark = b"granule %d" % self.count
            ctypes.memmove(memory.address + number * GRANULE, mark, len(mark))
            self.marks[memory].append(mark)


TestRestarts = RestartMachine.TestCase
TestRestarts.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
