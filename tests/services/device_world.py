"""The device's half alone: a service over a driver that fails on demand, and clients that say what they like.

Nothing is mapped: whoever plays a client here says that it unmapped, and the driver agrees that nothing is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcluster.budget.quotas import Quotas
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.errors import KvClusterError, NotShareable
from kvcluster.ids import new_session
from kvcluster.index.token_chain import count_of, packed
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.faulty_driver import FaultyDriver, never
from kvcluster.testing.tidy_driver import Tidied, TidyDriver
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.faults import error_of
from kvcluster.wire.socket import Hello

GRANULE = 4096
TOKENS = 16  # a granule of one fragment
EVERY = (wire.Group(fragments=1, stride_bytes=GRANULE // TOKENS),)
WITH_RING = (
    *EVERY,
    wire.Group(fragments=1, stride_bytes=GRANULE // TOKENS, keeps="ring", windows=3),
    wire.Group(fragments=1, stride_bytes=GRANULE // TOKENS, keeps="snapshot", windows=2),
)
MOST_TOKENS = 16 * TOKENS
ROOT = b"r" * 32


@dataclass(frozen=True, slots=True)
class Device:
    """Sizes in granules."""

    capacity: int = 64
    pool: int = 4
    bulk: int = 0
    quotas: Quotas = field(default_factory=Quotas)
    grace_s: float = 0.0


class DeviceWorld:
    """A device whose clock stands still, of the host or of `gpu`."""

    def __init__(self, device: Device | None = None, gpu: str = "") -> None:
        device = device or Device()
        capacity_bytes = device.capacity * GRANULE
        self.clock = ManualClock()
        self._tidy = (
            Tidied(open_cuda_driver(gpu)) if gpu else TidyDriver(granule_bytes=GRANULE, capacity_bytes=capacity_bytes)
        )
        self.driver = FaultyDriver(self._tidy)
        memory = MemorySettings(
            capacity_bytes,
            GRANULE,
            device.pool * GRANULE,
            quotas=device.quotas,
            bulk_bytes=device.bulk * GRANULE,
            grace_s=device.grace_s,
        )
        self.service = DeviceService(self.driver, DeviceSettings("host", memory), clock=self.clock)

    def client(self, tenant: str = "") -> Client:
        return Client(self.service, tenant)

    def seen(self) -> DeviceStatistics:
        """The figures, after an audit."""
        return self.service.audit()

    def granules(self, kind: str) -> int:
        """What all accounts of a kind have: free, granted, request, prefix, retained or quarantine."""
        accounts = self.seen().accounts
        return sum(size for name, size in accounts.items() if name.split("/")[0].split("@")[0] == kind) // GRANULE

    def pooled(self) -> int:
        return self.seen().handles["pooled"] // GRANULE

    def claims(self) -> tuple[dict[str, int], dict[str, int]]:
        """Who has what, whatever is pooled."""
        seen = self.seen()
        return dict(seen.accounts), {state: n for state, n in seen.handles.items() if state != "pooled"}

    def healed(self) -> None:
        self.driver.follow(never())

    def clear(self) -> None:
        self.healed()
        self._tidy.clear()


class Client:
    """A session that asks one group a frame. Its methods return the last answer, or raise what it was refused with."""

    def __init__(self, service: DeviceService, tenant: str = "") -> None:
        self.service = service
        self.tenant = tenant
        self.session = new_session()
        self.welcome = service.hello(Hello(session=self.session), pid=1)
        self.seq = 0
        self._grants = 0
        self._numbers = 0
        self.told: dict[int, int] = {}  # ids of each request that the device was told by a find

    def frame(self, *ops: wire.Operation) -> bytes:
        """The next frame."""
        self.seq += 1
        return encode(wire.Frame(session=self.session, seq=self.seq, ack=self.seq - 1, epoch=1, ops=ops))

    def ask(self, *ops: wire.Operation) -> tuple[wire.Answer, ...]:
        """All answers of the last group of a frame of these operations."""
        reply = decode_reply(self.service.frame(self.frame(*ops)))
        faults = [reply.fault, *(result.fault for result in reply.results)]
        for fault in faults:
            if fault:
                raise error_of(fault)
        self.told |= {op.request.number: count_of(op.token_ids) for op in ops if isinstance(op, wire.Find)}
        for op in ops:
            if isinstance(op, wire.Close):
                self.told.pop(op.request.number, None)
        return reply.results[-1].answers

    def open(
        self,
        groups: tuple[wire.Group, ...] = EVERY,
        *,
        max_tokens: int = MOST_TOKENS,
        shareable_tokens: int = 0,
        root: bytes = b"",
    ) -> Request:
        self._numbers += 1
        key = wire.RequestKey(number=self._numbers)
        opened = wire.Open(
            request=key,
            groups=groups,
            max_tokens=max_tokens,
            tenant=self.tenant,
            shareable_tokens=shareable_tokens,
            cache_root=root,
        )
        [answer] = self.ask(opened)
        assert isinstance(answer, wire.Opened)
        return Request(self, key, answer.arrival)

    def next_grant(self) -> int:
        self._grants += 1
        return self._grants

    def handles(self) -> list[int]:
        """The driver's numbers of the handles that the last frame hands over."""
        return [handle.number for handle in self.service.handles(self.session, self.seq)]


class Request:
    """One request of a client, and its verbs in granules of its one fragment."""

    def __init__(self, client: Client, key: wire.RequestKey, arrival: int) -> None:
        self.client = client
        self.key = key
        self.arrival = arrival

    def grow(self, tokens: int, granules: int, *, snapshot: bool = False) -> tuple[wire.Run, ...]:
        """Windows for so many tokens, paid by a grant of so many granules."""
        *_, committed = self.client.ask(*self.grow_ops(tokens, granules, snapshot=snapshot))
        assert isinstance(committed, wire.Committed)
        return committed.runs

    def grow_ops(self, tokens: int, granules: int, *, snapshot: bool = False) -> tuple[wire.Operation, ...]:
        number = self.client.next_grant()
        return (
            wire.Grant(request=self.key, grant=number, size_bytes=granules * GRANULE),
            wire.Commit(request=self.key, grant=number, tokens=tokens, snapshot=snapshot),
        )

    def publish(self, tokens: int) -> wire.Published:
        [answer] = self.client.ask(wire.Publish(request=self.key, tokens=tokens))
        assert isinstance(answer, wire.Published)
        return answer

    def seal(self, prefix: int) -> wire.Sealed:
        [answer] = self.client.ask(wire.Seal(request=self.key, prefix=prefix))
        assert isinstance(answer, wire.Sealed)
        return answer

    def share(self, tokens: int) -> int:
        """Publish and seal; the prefix's number."""
        published = self.publish(tokens)
        assert self.seal(published.prefix).refusal is None
        return published.prefix

    def find(self, ids: Sequence[int]) -> wire.Found:
        [answer] = self.client.ask(self.find_op(ids))
        assert isinstance(answer, wire.Found)
        return answer

    def find_op(self, ids: Sequence[int]) -> wire.Find:
        return wire.Find(request=self.key, token_ids=packed(ids))

    def join(self, prefix: int, tokens: int) -> wire.Joined:
        [answer] = self.client.ask(self.join_op(prefix, tokens))
        assert isinstance(answer, wire.Joined)
        return answer

    def join_op(self, prefix: int, tokens: int) -> wire.Join:
        return wire.Join(request=self.key, prefix=prefix, tokens=tokens)

    def leave(self, prefix: int, outcome: str = "clean") -> None:
        self.client.ask(self.leave_op(prefix, outcome))

    def leave_op(self, prefix: int, outcome: str = "clean") -> wire.Leave:
        return wire.Leave.model_validate({"request": self.key, "prefix": prefix, "outcome": outcome})

    def release(self, *runs: wire.Run, outcome: str = "clean") -> None:
        self.client.ask(self.release_op(*runs, outcome=outcome))

    def release_op(self, *runs: wire.Run, outcome: str = "clean") -> wire.Release:
        return wire.Release.model_validate({"request": self.key, "runs": runs, "outcome": outcome})

    def close(self, retain_tokens: int = 0, ids: Sequence[int] = ()) -> int | None:
        """The number of what was retained; `ids` are those that followed what its find named."""
        [answer] = self.client.ask(self.close_op(retain_tokens, ids))
        assert isinstance(answer, wire.Closed)
        return answer.prefix

    @property
    def told(self) -> int:
        """Ids that its last find named."""
        return self.client.told.get(self.key.number, 0)

    def close_op(self, retain_tokens: int = 0, ids: Sequence[int] = ()) -> wire.Close:
        return wire.Close(request=self.key, retain_tokens=retain_tokens, token_ids=packed(ids), told_tokens=self.told)


def windows(start: int, count: int, group: int = 0) -> wire.Run:
    """Windows of a group's one fragment."""
    return wire.Run(group=group, fragment=0, start=start, count=count)


def refused(kind: type[KvClusterError], act: object) -> KvClusterError:
    """What `act` (a call without arguments) was refused with."""
    try:
        act()  # type: ignore[operator]
    except kind as refusal:
        return refusal
    raise AssertionError(f"no {kind.__name__}")


def kind(act: object) -> str:
    """Why sharing was refused: the kind of NotShareable that `act` raises."""
    error = refused(NotShareable, act)
    assert isinstance(error, NotShareable)
    assert error.reason.strip()
    return str(error.kind)
