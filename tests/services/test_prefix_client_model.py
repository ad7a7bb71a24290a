"""Requests that share, against plain dicts: any order of verbs, and any driver call that fails in the middle.

The model knows what each prefix held when it was sealed, and what each request should be able to use. After every
step: the books sum; requests are charged what their memories have mapped, but for what is in quarantine; whoever has
a prefix mapped reads what was sealed; and a memory that says that it holds so many tokens can be read and written so
far.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcluster.errors import KvClusterError
from kvcluster.geometry.layout import Layout
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.asks import Grow, Join
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.faulty_driver import failing, never
from tests.examples import examples
from tests.services.prefixes import own_pieces
from tests.services.world import GRANULE, TOKENS, Sizes, World, digest

MOST, GRANULES = 12 * TOKENS, 40
tokens = st.integers(TOKENS, MOST)
faults = st.none() | st.integers(1, 12)


@dataclass
class Held:
    """A memory, and what it uses: by prefix number, how many tokens of it."""

    memory: SequenceMemory
    uses: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Shared:
    """A prefix, its windows of each fragment, and the hash of their bytes."""

    prefix: Prefix
    windows: tuple[int, ...]
    content: str


class Sharers(RuleBasedStateMachine):
    """Five memories; one that is closed makes room for another. Each verb may meet a driver that fails once."""

    layout = Layout.TOKEN_MAJOR

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Sizes(capacity=GRANULES, pool=3))
        self.held = [self.opened() for _ in range(5)]
        self.shared: dict[int, Shared] = {}  # by number: what may be there, and what was sealed
        self.stamp = 0

    def opened(self) -> Held:
        return Held(self.world.open(MOST, layout=self.layout))

    def verb(self, act: Callable[[], object], fault: int | None = None) -> bool:
        """Whether `act` succeeded, where the driver call of this number fails; every failure is one of ours."""
        if fault is not None:
            self.world.driver.follow(failing(fault))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LeakedOnPurpose)
                act()
        except (KvClusterError, ValueError):
            return False
        finally:
            self.world.driver.follow(never())
        return True

    def full(self) -> list[Held]:
        """Those that a prefix can be made of."""
        return [held for held in self.held if held.memory.tokens >= TOKENS]

    def empty(self) -> list[Held]:
        return [held for held in self.held if not held.memory.range.mapped_bytes]

    def mapped(self) -> list[Held]:
        return [held for held in self.held if held.memory.range.mapped_bytes]

    def sharing(self) -> list[Held]:
        return [held for held in self.held if held.memory.holdings.prefix_count]

    # --- verbs ----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), count=tokens, fault=faults)
    def grow(self, data: st.DataObject, count: int, fault: int | None) -> None:
        held = data.draw(st.sampled_from(self.held))

        def grown() -> None:
            [outcome] = self.world.device.port.submit([Grow(held.memory, count)]).settle()
            if outcome.error:
                raise outcome.error

        if self.verb(grown, fault):
            assert held.memory.tokens >= count
            self.write(held.memory)

    @precondition(lambda self: self.full())
    @rule(data=st.data(), fault=faults)
    def publish(self, data: st.DataObject, fault: int | None) -> None:
        held = data.draw(st.sampled_from(self.full()))
        count = data.draw(st.integers(TOKENS, held.memory.tokens))
        made: list[Prefix] = []
        if self.verb(lambda: made.append(held.memory.publish(count)), fault):
            held.uses.append(made[0].number)
            windows = held.memory.sealed
            self.shared[made[0].number] = Shared(made[0], windows, self.content(held.memory, windows))
        elif held.memory.tokens == 0:
            held.uses.clear()

    @precondition(lambda self: self.empty() and self.shared)
    @rule(data=st.data(), grow_to=st.none() | tokens, fault=faults)
    def join(self, data: st.DataObject, grow_to: int | None, fault: int | None) -> None:
        held = data.draw(st.sampled_from(self.empty()))
        prefix = self.shared[data.draw(st.sampled_from(sorted(self.shared)[-3:]))].prefix
        count = data.draw(st.sampled_from([prefix.tokens, prefix.tokens // 2 + 1]))
        before = held.memory.shared_bytes

        def joined() -> None:
            [outcome] = self.world.device.port.submit([Join(held.memory, prefix, count, grow_to)]).settle()
            if outcome.error:
                raise outcome.error

        if self.verb(joined, fault) or (held.memory.holdings.prefix_count and not held.uses and not before):
            held.uses.append(prefix.number)
            self.write(held.memory)

    @precondition(lambda self: self.sharing())
    @rule(data=st.data(), fault=faults)
    def leave(self, data: st.DataObject, fault: int | None) -> None:
        held = data.draw(st.sampled_from(self.sharing()))
        self.verb(held.memory.leave, fault)
        if not held.memory.holdings.prefix_count:
            held.uses.clear()

    @precondition(lambda self: self.mapped())
    @rule(data=st.data(), fault=faults)
    def release(self, data: st.DataObject, fault: int | None) -> None:
        held = data.draw(st.sampled_from(self.mapped()))
        self.verb(held.memory.release, fault)
        held.uses.clear()
        assert held.memory.tokens == 0

    @precondition(lambda self: self.mapped())
    @rule(data=st.data(), retain=st.sampled_from([0, 40, MOST]), fault=faults)
    def close(self, data: st.DataObject, retain: int, fault: int | None) -> None:
        held = data.draw(st.sampled_from(self.mapped()))
        count = min(retain, held.memory.tokens)
        windows = held.memory.holdings.shape.shared_windows(count)
        content = self.content(held.memory, windows)
        kept: list[Prefix | None] = []
        self.verb(lambda: kept.append(held.memory.close(retain_tokens=count)), fault)
        assert held.memory.state is MemoryState.CLOSED
        self.verb(held.memory.close)  # once more, where the driver failed
        self.held[self.held.index(held)] = self.opened()
        if kept and kept[0]:
            self.shared[kept[0].number] = Shared(kept[0], windows, content)

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def the_books_sum_and_requests_are_charged_what_they_have(self) -> None:
        mapped = sum(held.memory.committed_bytes for held in self.held) // GRANULE
        charged = self.world.granules("requests")
        assert charged <= mapped + self.residue_bytes() // GRANULE
        assert mapped <= charged + self.world.granules("quarantine")

    @invariant()
    def whoever_shares_reads_what_was_sealed(self) -> None:
        for held in self.held:
            shared = self.shared[held.uses[-1]] if held.uses and held.memory.tokens else None
            if shared and held.memory.sealed == shared.windows:
                assert self.content(held.memory, shared.windows) == shared.content

    @invariant()
    def what_is_said_to_be_there_can_be_written(self) -> None:
        for held in self.held:
            for address, size_bytes in own_pieces(held.memory) if held.memory.tokens else ():
                ctypes.memset(address + size_bytes - 1, 1, 1)

    def residue_bytes(self) -> int:
        return sum(held.memory.shared_bytes for held in self.held)

    def content(self, memory: SequenceMemory, windows: tuple[int, ...]) -> str:
        """A hash of the first `windows` of each fragment."""
        range_map = memory.range.range_map
        return digest(
            memory,
            [
                (memory.address + range_map.fragment_offset_bytes(group, fragment), windows[group] * GRANULE)
                for group, shape in enumerate(range_map.shape.groups)
                for fragment in range(shape.fragments)
            ],
        )

    def write(self, memory: SequenceMemory) -> None:
        """Another byte everywhere that is its own."""
        self.stamp = self.stamp % 250 + 1
        for address, size_bytes in own_pieces(memory):
            ctypes.memset(address, self.stamp, size_bytes)

    def teardown(self) -> None:
        self.world.clear()


class SharersOfFourFragments(Sharers):
    layout = Layout.SEQ_MAJOR


_SETTINGS = settings(
    max_examples=examples(30), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSharers = Sharers.TestCase
TestSharers.settings = _SETTINGS
TestSharersOfFourFragments = SharersOfFourFragments.TestCase
TestSharersOfFourFragments.settings = _SETTINGS
