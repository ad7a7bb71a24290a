"""A device in one process against a plain dictionary, with faults of its driver at any moment.

The model knows, for each memory, how many tokens are committed, and how many bytes were given up for lost. After each
step the device's audit holds, and the device, the memories and the kernel agree.
"""

from __future__ import annotations

import warnings
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from kvcluster.errors import DriverError, GrantRefused, KvClusterError, NeverFits, NotAllowed, OutOfBudget, Quarantined
from kvcluster.geometry.layout import Layout
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.asks import Ask, End, Grow, Shed
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.sequence import Grant, SequenceMemory
from kvcluster.testing.faulty_driver import failing, failing_every, failing_then, never
from kvcluster.testing.invariants import assert_ledger_balances
from tests.examples import examples
from tests.services.gpu_model import OnGpu
from tests.services.world import (
    GRANULE,
    Sizes,
    WireClient,
    World,
    commit_op,
    digest,
    fill,
    grant_op,
    open_op,
    pieces,
    refusal,
)

MOST = 160
CAPACITY = 32
tokens = st.integers(1, MOST)
plans = st.one_of(
    st.builds(failing, st.integers(1, 12)),
    st.builds(failing_then, st.integers(1, 12), st.integers(1, 4)),
    st.builds(failing_every, st.sampled_from(["create", "map", "set_access", "unmap", "release", "synchronize"])),
)


class DeviceModel(RuleBasedStateMachine):
    gpu = ""
    memories = Bundle("memories")
    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Sizes(capacity=CAPACITY, pool=3), self.gpu)
        self.committed: dict[SequenceMemory, int] = {}  # tokens; a memory that is not closed
        self.broken: set[SequenceMemory] = set()  # memories that may take no more commits
        self.content: dict[SequenceMemory, str] = {}
        self.old: dict[SequenceMemory, list[tuple[int, int]]] = {}
        self.strangers: dict[WireClient, int] = {}  # other processes, and the granules that each has
        self.orphans: dict[WireClient, int] = {}
        warnings.simplefilter("ignore", LeakedOnPurpose)

    @rule(plan=plans)
    def the_driver_breaks(self, plan: object) -> None:
        self.world.driver.follow(plan)  # type: ignore[arg-type]

    @rule()
    def the_driver_heals(self) -> None:
        self.world.driver.follow(never())

    @rule(target=memories, layout=st.sampled_from([Layout.TOKEN_MAJOR, Layout.SEQ_MAJOR]))
    def opens(self, layout: Layout) -> object:
        try:
            memory = self.world.open(MOST, layout=layout)
        except DriverError:
            return multiple()
        self.committed[memory] = 0
        self.remember(memory)
        return memory

    @rule(target=grants, memory=memories, amount=tokens)
    def asks_a_grant(self, memory: SequenceMemory, amount: int) -> object:
        try:
            return memory.grant(amount)
        except (OutOfBudget, NeverFits):
            return multiple()
        except NotAllowed:
            assert memory not in self.committed
            return multiple()

    @rule(grant=grants, memory=memories, amount=tokens)
    def spends(self, grant: Grant, memory: SequenceMemory, amount: int) -> None:
        before = memory.windows
        try:
            memory.commit(amount, grant)
        except (GrantRefused, NotAllowed):
            assert memory.windows == before
        except KvClusterError as error:
            self.failed(memory, error)
        else:
            assert grant.identity.request == memory.request
            self.grew(memory, amount)

    @rule(grant=grants, memory=memories)
    def gives_back(self, grant: Grant, memory: SequenceMemory) -> None:
        try:
            memory.give_back(grant)
        except (GrantRefused, NotAllowed, KvClusterError):
            return
        assert grant.identity.request == memory.request

    @rule(data=st.data(), mine=st.lists(memories, min_size=1, max_size=3, unique=True))
    def asks_for_several_in_one_frame(self, data: st.DataObject, mine: list[SequenceMemory]) -> None:
        asks: list[Ask] = []
        for memory in mine:
            if memory in self.committed:
                kind = data.draw(st.sampled_from(["grow", "grow", "shed", "end"]))
                amount = data.draw(tokens)
                asks.append({"grow": Grow(memory, amount), "shed": Shed(memory), "end": End(memory)}[kind])
        for outcome in self.world.device.port.submit(asks).settle():
            self.came_of(outcome.ask, outcome.error)

    def came_of(self, ask: Ask, error: KvClusterError | None) -> None:
        match ask:
            case Grow(memory, amount) if error is None:
                self.grew(memory, amount)
            case Grow(memory):
                if not isinstance(error, OutOfBudget | NeverFits):
                    self.failed(memory, error)
            case Shed(memory):
                self.emptied(memory, error)
            case End(memory):
                self.ended(memory)

    @rule(memory=memories)
    def releases(self, memory: SequenceMemory) -> None:
        try:
            memory.release()
        except NotAllowed:
            assert memory not in self.committed
        except Quarantined as error:
            self.emptied(memory, error)
        else:
            self.emptied(memory, None)

    @rule(memory=memories)
    def closes(self, memory: SequenceMemory) -> None:
        with suppress(Quarantined, DriverError):
            memory.close()
        self.ended(memory)

    @rule(granules=st.integers(1, 6))
    def another_process_takes_windows(self, granules: int) -> None:
        stranger = WireClient(self.world.service)
        reply = stranger.ask(open_op(1), grant_op(1, 1, granules), commit_op(1, 1, granules))
        self.strangers[stranger] = 0 if refusal(reply) else granules

    @rule(data=st.data(), alive=st.booleans())
    def another_process_ends(self, data: st.DataObject, alive: bool) -> None:
        both = [*self.strangers, *self.orphans]
        if not both:
            return
        stranger = data.draw(st.sampled_from(both))
        had = self.strangers.pop(stranger, 0) + self.orphans.pop(stranger, 0)
        if alive:
            self.world.service.disconnected(stranger.session)
            self.orphans[stranger] = had
        else:
            self.world.service.gone(stranger.session)

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    # --- the model ------------------------------------------------------------------------------------------------

    def grew(self, memory: SequenceMemory, amount: int) -> None:
        assert memory not in self.broken or amount <= self.committed[memory]
        self.committed[memory] = max(self.committed[memory], amount)
        assert self.digest_of_old(memory) == self.content[memory]
        fill(memory)
        self.remember(memory)

    def failed(self, memory: SequenceMemory, error: KvClusterError | None) -> None:
        if isinstance(error, NotAllowed):
            assert memory in self.broken
        if memory in self.committed and memory.committed_bytes > self.usable(memory):
            assert isinstance(error, Quarantined) or memory in self.broken
            self.broken.add(memory)

    def emptied(self, memory: SequenceMemory, error: KvClusterError | None) -> None:
        assert (error is None) == (memory.committed_bytes == 0)
        self.committed[memory] = 0
        if error:
            self.broken.add(memory)
        self.remember(memory)

    def ended(self, memory: SequenceMemory) -> None:
        self.committed.pop(memory, None)
        assert memory.state is MemoryState.CLOSED

    def remember(self, memory: SequenceMemory) -> None:
        self.old[memory] = pieces(memory)
        self.content[memory] = digest(memory)

    def digest_of_old(self, memory: SequenceMemory) -> str:
        return digest(memory, self.old[memory])

    def usable(self, memory: SequenceMemory) -> int:
        shape = memory.range.range_map.shape
        return shape.window_count(memory.windows) * GRANULE

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def the_books_sum_and_match_what_the_memories_hold(self) -> None:
        seen = assert_ledger_balances(self.world.device)
        charged = sum(size for account, size in seen.accounts.items() if account.startswith("request/"))
        strangers = sum(self.strangers.values()) * GRANULE
        assert charged == sum(self.usable(memory) for memory in self.committed) + strangers == seen.committed_bytes
        assert seen.accounts.get("quarantine", 0) >= sum(self.orphans.values()) * GRANULE
        for memory, amount in self.committed.items():
            shape = memory.range.range_map.shape
            assert memory.windows == shape.windows(amount)
            assert memory.committed_bytes >= self.usable(memory)
            assert digest(memory) == self.content[memory]

    def teardown(self) -> None:
        self.world.driver.follow(never())
        for memory in list(self.committed):
            memory.close()
        for stranger in [*self.strangers, *self.orphans]:
            self.world.service.gone(stranger.session)
        seen = assert_ledger_balances(self.world.device)
        assert set(seen.accounts) <= {"free", "granted", "quarantine"}
        assert seen.open_requests == 0
        self.world.clear()


TestDeviceModel = DeviceModel.TestCase
TestDeviceModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


class GpuModel(OnGpu, DeviceModel):
    """The same on a stand-in's GPU."""


TestGpuModel = GpuModel.TestCase
TestGpuModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
