"""A device of small granules whose driver fails on demand, a client of it, and a client that writes frames itself."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvcluster.budget.governor import Limits
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.errors import KvClusterError
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.ids import new_session
from kvcluster.services.asks import MOST_RUNS
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.local import LocalDevice
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.faulty_driver import Call, FaultyDriver, never
from kvcluster.testing.stand_in_cuda import load
from kvcluster.testing.tidy_driver import Tidied, TidyDriver
from kvcluster.units import KIB
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.faults import error_of
from kvcluster.wire.socket import Hello

GRANULE = 4 * KIB
TOKENS = 16  # a granule, token-major
CHUNK = 4 * KIB
PATTERN = bytes(i * 7 % 251 for i in range(CHUNK + 251))
GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)


@dataclass(frozen=True, slots=True)
class Sizes:
    """In granules."""

    capacity: int = 64
    pool: int = 4
    granule_bytes: int = GRANULE
    limits: Limits = field(default_factory=Limits)
    most_runs: int = MOST_RUNS  # not granules
    bulk: int = 0
    grace_s: float = 0.0  # not granules


class World:
    """A LocalDevice over a faulty driver, of the host or of `gpu`, with a clock that stands still."""

    def __init__(self, sizes: Sizes, gpu: str = "") -> None:
        granule_bytes = sizes.granule_bytes
        capacity_bytes = sizes.capacity * granule_bytes
        self.clock = ManualClock()
        self._gpu = gpu
        self._tidy = (
            Tidied(open_cuda_driver(gpu))
            if gpu
            else TidyDriver(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes)
        )
        self.driver = FaultyDriver(self._tidy)
        pool_bytes, bulk_bytes = sizes.pool * granule_bytes, sizes.bulk * granule_bytes
        settings = MemorySettings(
            capacity_bytes, granule_bytes, pool_bytes, sizes.limits, bulk_bytes=bulk_bytes, grace_s=sizes.grace_s
        )
        service_settings = DeviceSettings("host", settings, most_runs=sizes.most_runs)
        self.device = LocalDevice(self.driver, DeviceService(self.driver, service_settings, clock=self.clock))

    @contextmanager
    def working(self) -> Iterator[None]:
        """In the block work on this process's memory is under way: a thread's, or a kernel's."""
        if not self._gpu:
            with self._tidy.working():
                yield
            return
        stand_in = load()
        number = stand_in.begin_work()
        try:
            yield
        finally:
            stand_in.end_work(number)

    @property
    def service(self) -> DeviceService:
        return self.device.service

    def open(
        self, max_tokens: int = 16 * TOKENS, *, layout: Layout = Layout.TOKEN_MAJOR, cache_root: bytes = b""
    ) -> SequenceMemory:
        return self.device.open(GEOMETRY, max_tokens=max_tokens, layout=layout, cache_root=cache_root)

    def grown(
        self, tokens: int, *, layout: Layout = Layout.TOKEN_MAJOR, max_tokens: int = 16 * TOKENS
    ) -> SequenceMemory:
        """A memory of `tokens` tokens, with a pattern in every byte."""
        memory = self.open(max_tokens, layout=layout)
        memory.commit(tokens, memory.grant(tokens))
        fill(memory)
        return memory

    def granules(self, account: str) -> int:
        """What an account has; `requests` is all of them."""
        accounts = self.device.audit().accounts
        names = [name for name in accounts if name.startswith("request/")] if account == "requests" else [account]
        return sum(accounts.get(name, 0) for name in names) // self.driver.granularity_bytes

    def handles(self, state: str) -> int:
        """Granules of handles in a state."""
        return self.device.audit().handles[state] // self.driver.granularity_bytes

    def healed(self) -> tuple[Call, ...]:
        """No more faults; returns the calls since the plan was set."""
        calls = self.driver.since_plan()
        self.driver.follow(never())
        return calls

    def clear(self) -> None:
        self.healed()
        self._tidy.clear()


class WireClient:
    """A client that writes its frames itself: it can repeat them, reorder them and say nonsense."""

    def __init__(self, service: DeviceService, session: str | None = None, *, pid: int = 1) -> None:
        self.service = service
        self.session = session or new_session()
        self.welcome = service.hello(Hello(session=self.session), pid=pid)
        self.seq = 0

    def frame(
        self, *ops: wire.Operation, seq: int | None = None, ack: int = 0, epoch: int = 1, session: str | None = None
    ) -> bytes:
        self.seq += seq is None
        return encode(
            wire.Frame(session=session or self.session, seq=seq or self.seq, ack=ack, epoch=epoch, ops=tuple(ops))
        )

    def send(self, data: bytes) -> wire.Reply:
        return decode_reply(self.service.frame(data))

    def ask(self, *ops: wire.Operation) -> wire.Reply:
        """The next frame."""
        return self.send(self.frame(*ops))

    def opened(self, number: int, *, max_tokens: int = 16 * TOKENS) -> wire.RequestKey:
        reply = self.ask(open_op(number, max_tokens=max_tokens))
        assert refusal(reply) is None
        return key(number)


def key(number: int, generation: int = 0) -> wire.RequestKey:
    return wire.RequestKey(number=number, generation=generation)


def open_op(
    number: int, *, max_tokens: int = 16 * TOKENS, fragments: int = 1, generation: int = 0, root: bytes = b""
) -> wire.Open:
    group = wire.Group(fragments=fragments, stride_bytes=GRANULE // TOKENS)
    return wire.Open(request=key(number, generation), groups=(group,), max_tokens=max_tokens, cache_root=root)


def grant_op(number: int, grant: int, granules: int) -> wire.Grant:
    return wire.Grant(request=key(number), grant=grant, size_bytes=granules * GRANULE)


def commit_op(number: int, grant: int, granules: int) -> wire.Commit:
    return wire.Commit(request=key(number), grant=grant, tokens=granules * TOKENS)


def release_op(number: int, start: int, count: int, outcome: str = "clean", fragment: int = 0) -> wire.Release:
    run = wire.Run(group=0, fragment=fragment, start=start, count=count)
    return wire.Release.model_validate({"request": key(number), "runs": (run,), "outcome": outcome})


def close_op(number: int) -> wire.Close:
    return wire.Close(request=key(number))


def give_back_op(number: int, grant: int) -> wire.GiveBack:
    return wire.GiveBack(request=key(number), grant=grant)


def refusal(reply: wire.Reply) -> KvClusterError | None:
    """The first fault of a reply, as an error."""
    faults = [reply.fault, *(result.fault for result in reply.results)]
    return next((error_of(fault) for fault in faults if fault), None)


def names(calls: Sequence[Call]) -> list[str]:
    return [call.name for call in calls]


def fill(memory: SequenceMemory) -> None:
    """A pattern in every byte that is mapped; neighbouring chunks differ."""
    for address, size_bytes in pieces(memory):
        for start in range(0, size_bytes, CHUNK):
            length = min(CHUNK, size_bytes - start)
            ctypes.memmove(address + start, PATTERN[start // CHUNK % 251 :], length)


def digest(memory: SequenceMemory, only: list[tuple[int, int]] | None = None) -> str:
    """A hash of every byte of the committed windows, or `only` of these pieces."""
    found = hashlib.sha256()
    for address, size_bytes in pieces(memory) if only is None else only:
        for start in range(0, size_bytes, CHUNK):
            found.update(ctypes.string_at(address + start, min(CHUNK, size_bytes - start)))
    return found.hexdigest()


def pieces(memory: SequenceMemory) -> list[tuple[int, int]]:
    """Address and bytes of each fragment's committed windows."""
    range_map, granule_bytes = memory.range.range_map, memory.range.range_map.shape.granule_bytes
    return [
        (memory.address + range_map.fragment_offset_bytes(group, fragment), count * granule_bytes)
        for group, count in enumerate(memory.windows)
        for fragment in range(range_map.shape.groups[group].fragments)
        if count
    ]


def grow_ops(number: int, grant: int, granules: int, windows: int = 0) -> tuple[wire.Operation, ...]:
    """A grant of so many granules, and a commit of as many windows in each fragment, or of `windows`."""
    return grant_op(number, grant, granules), commit_op(number, grant, windows or granules)
