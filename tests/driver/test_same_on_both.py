"""The same calls on the host driver and on the CUDA driver have the same outcomes, call by call.

Left out is what the protocol leaves to each: whether sealed memory that was shared is sealed for the other handle too.
A script names ranges and handles by the order in which they came, so that it means the same on both. An outcome is
what a caller may build on: which error, and the bytes. Addresses and an error's code are each backend's own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.errors import DriverError, LimitReached
from kvcluster.testing.driver_contract import Bench
from kvcluster.testing.stand_in_cuda import fresh_stand_in
from tests.examples import examples

GRANULE = 4 << 10
CAPACITY = 12  # granules
REASONS = {
    "EINVAL": "a rule",
    "CUDA_ERROR_INVALID_VALUE": "a rule",
    "ENOMEM": "no memory",
    "CUDA_ERROR_OUT_OF_MEMORY": "no memory",
    "EBUSY": "a capture",
}
LEFT_OUT = "left out"
Outcome = str | bytes | int


@dataclass(frozen=True, slots=True)
class Step:
    """A verb, with numbers that each verb understands in its own way."""

    verb: str
    which: int
    offset: int
    count: int
    is_captured: bool


@dataclass(slots=True)
class Stage:
    """One driver under a script; ranges and handles in the order in which they came, given back or not."""

    bench: Bench
    ranges: list[tuple[int, int]] = field(default_factory=list)  # address, granules
    handles: list[PhysicalHandle] = field(default_factory=list)
    mapped: list[tuple[int, int]] = field(default_factory=list)
    shared: set[PhysicalHandle] = field(default_factory=set)
    sealed: set[PhysicalHandle] = field(default_factory=set)

    @property
    def driver(self) -> Driver:
        return self.bench.driver

    def range_of(self, step: Step) -> tuple[int, int]:
        return self.ranges[step.which % len(self.ranges)] if self.ranges else (0, 1)

    def address_of(self, step: Step) -> int:
        """In the range, where the neighbours are no matter; in halves of a granule, so that some are misaligned."""
        address, granules = self.range_of(step)
        return address + step.offset % (2 * granules) * (GRANULE // 2)

    def run_of(self, step: Step) -> tuple[int, int]:
        """An address and a size; at count 0 those of something that was mapped, as it may still be."""
        if self.mapped and step.count == 0:
            return self.mapped[step.which % len(self.mapped)]
        return self.address_of(step), step.count * GRANULE

    def handle_of(self, step: Step) -> PhysicalHandle:
        return self.handles[step.which % len(self.handles)]

    def play(self, step: Step) -> Outcome:
        """What came of it."""
        try:
            if not step.is_captured:
                return VERBS[step.verb](self, step)
            with capture_gate.closed(Meanwhile.REFUSE):
                return VERBS[step.verb](self, step)
        except DriverError as refusal:
            return f"{refusal.call}: {REASONS[refusal.name]}, {refusal.size_bytes} bytes"
        except LimitReached as refusal:
            return refusal.limit


def _reserve(stage: Stage, step: Step) -> Outcome:
    stage.ranges.append((stage.bench.reserve(step.count), step.count))
    return "reserved"


def _create(stage: Stage, step: Step) -> Outcome:
    stage.handles.append(stage.bench.create(step.count))
    address = stage.bench.reserve(step.count)
    stage.bench.map(address, stage.handles[-1])
    stage.bench.poke(address, bytes([len(stage.handles)]) * (step.count * GRANULE))
    stage.driver.unmap(address, step.count * GRANULE)
    return "created and filled with its number"


def _map(stage: Stage, step: Step) -> Outcome:
    handle = stage.handles[step.count % len(stage.handles)]
    stage.bench.map_only(stage.address_of(step), handle)
    stage.mapped.append((stage.address_of(step), handle.size_bytes))
    return "mapped"


def _set_access(access: Access) -> Callable[[Stage, Step], Outcome]:
    def act(stage: Stage, step: Step) -> Outcome:
        address, size_bytes = stage.run_of(step)
        stage.driver.set_access(address, size_bytes, access)
        return stage.bench.peek(address, size_bytes)

    return act


def _write(stage: Stage, step: Step) -> Outcome:
    address, size_bytes = stage.run_of(step)
    stage.driver.set_access(address, size_bytes, Access.READ_WRITE)
    stage.bench.poke(address, bytes([step.which + 100]))
    return stage.bench.peek(address, 2)


def _unmap(stage: Stage, step: Step) -> Outcome:
    stage.driver.unmap(*stage.run_of(step))
    return "unmapped"


def _release(stage: Stage, step: Step) -> Outcome:
    stage.driver.release(stage.handle_of(step))
    return "released"


def _seal(stage: Stage, step: Step) -> Outcome:
    if stage.handle_of(step) in stage.shared:
        return LEFT_OUT
    stage.driver.seal(stage.handle_of(step))
    stage.sealed.add(stage.handle_of(step))
    return "sealed"


def _scrub(stage: Stage, step: Step) -> Outcome:
    stage.driver.scrub(stage.handle_of(step))
    return "scrubbed"


def _free(stage: Stage, step: Step) -> Outcome:
    freed = stage.range_of(step)
    stage.driver.free_address(freed[0], step.count * GRANULE)
    stage.ranges.remove(freed)  # the address may be another range's by and by
    stage.mapped = [run for run in stage.mapped if not freed[0] <= run[0] < freed[0] + freed[1] * GRANULE]
    return "freed"


def _share(stage: Stage, step: Step) -> Outcome:
    if stage.handle_of(step) in stage.sealed:
        return LEFT_OUT
    handle = stage.handle_of(step)
    descriptor = stage.driver.export_fd(handle)
    try:
        stage.handles.append(stage.bench.adopt(descriptor, handle.size_bytes))
    finally:
        os.close(descriptor)
    stage.shared.update((handle, stage.handles[-1]))
    return "imported again"


def _held(stage: Stage, step: Step) -> Outcome:
    stage.driver.synchronize()
    assert stage.driver.fence().done()
    return stage.driver.memory_info().held_bytes


VERBS: dict[str, Callable[[Stage, Step], Outcome]] = {
    "reserve": _reserve,
    "create": _create,
    "map": _map,
    "read": _set_access(Access.READ),
    "write": _write,
    "unmap": _unmap,
    "release": _release,
    "seal": _seal,
    "scrub": _scrub,
    "free": _free,
    "share": _share,
    "held": _held,
}
steps = st.builds(
    Step,
    verb=st.sampled_from([*VERBS, "map", "map", "create", "read", "write"]),
    which=st.integers(0, 5),
    offset=st.sampled_from([0, 0, 1, 2, 2, 4, 6]),
    count=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    is_captured=st.sampled_from([False] * 15 + [True]),
)
FIRST = [Step("reserve", 0, 0, 4, False), Step("create", 0, 0, 1, False), Step("create", 0, 0, 2, False)]


@contextmanager
def _stages() -> Iterator[tuple[Stage, Stage]]:
    host = open_host_driver(granule_bytes=GRANULE, capacity_bytes=CAPACITY * GRANULE)
    with fresh_stand_in(GRANULE=GRANULE, MEMORY=CAPACITY * GRANULE):
        both = Stage(Bench(host)), Stage(Bench(open_cuda_driver()))
        try:
            yield both
        finally:
            for stage in both:
                stage.bench.clear()


@pytest.mark.no_cover
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(steps, min_size=5, max_size=40))
def test_a_script_has_the_same_outcomes_and_makes_the_same_calls_on_both(script: list[Step]) -> None:
    with _stages() as (host, cuda):
        outcomes = []
        for step in [*FIRST, *script]:
            outcomes.append(host.play(step))
            assert cuda.play(step) == outcomes[-1], step
        full = sum("no memory" in str(outcome) for outcome in outcomes)
        assert cuda.driver.calls() == Counter(host.driver.calls()) + Counter(create=full)  # the host knows it is full
        assert host.driver.memory_info().held_bytes == cuda.driver.memory_info().held_bytes
