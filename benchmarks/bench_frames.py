"""What a frame costs a device beside its encoding and decoding, and whether that is flat in the number of requests.

A device service (`services.device`) without Ray, on a driver that counts its calls and has no memory, with 100, 1,000,
10,000 and 100,000 live requests in sessions of at most 4,000. A request keeps 2 KiB a token, 32 tokens a granule of 64
KiB, and holds 2 granules or more. The frames of its life:

    open      open, grant and commit of 8 granules
    grow      grant and commit of 2 granules more
    grow 8    the same for 8 requests in one frame, as an engine tops its batch up
    release   2 granules back
    end       release of all, and close

Each round sends `--frames` of each kind to requests chosen at random, to one service after the other, in an order that
turns; each live number stays. Frames are made before the clock starts. "service" is `DeviceService.frame`. "codec" is
what of it nobody can do without: the same frames decoded, and the replies that they got encoded. "both ends" is the
frame's whole way through the codec: encoded by the client, decoded by the device. All in CPU seconds of the process,
the garbage collector's included. The figures are ratios of one round; `frames_per_s` is for the reader.

With `--profile KIND` it prints where that kind's time goes (cProfile) instead.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Ratio, ratio, report
from kvcluster.driver.protocol import Access, Driver, Fence, MemoryInfo, PhysicalHandle
from kvcluster.services.device import DeviceService
from kvcluster.services.device_settings import DeviceSettings, MemorySettings, pool_bytes_for
from kvcluster.transaction import Progress
from kvcluster.units import KIB
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_frame, decode_reply, encode
from kvcluster.wire.socket import Hello

LIVE = (100, 1_000, 10_000, 100_000)
KINDS = ("open", "grow", "grow 8", "release", "end")
TARGETS = {"service / codec": 5.0, "100,000 / 100": 1.5, "frames_per_s": 20_000}

GRANULE_BYTES = 64 * KIB
TOKENS = 32  # of a granule
GROUP = wire.Group(fragments=1, stride_bytes=GRANULE_BYTES // TOKENS)
MOST_TOKENS = 4096 * TOKENS
OF_A_SESSION = 4_000


class CountingDriver:
    """`kvcluster.driver.protocol.Driver` as far as an owner calls it: handles without memory.

    Addresses are the users' side; an owner that asked for one here would end the benchmark.
    """

    granularity_bytes = GRANULE_BYTES
    is_host_memory = True

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._calls: Counter[str] = Counter()
        self._held_bytes = 0

    def create(self, size_bytes: int) -> PhysicalHandle:
        self._calls["create"] += 1
        self._held_bytes += size_bytes
        return PhysicalHandle(self._calls["create"], size_bytes)

    def release(self, handle: PhysicalHandle) -> None:
        self._calls["release"] += 1
        self._held_bytes -= handle.size_bytes

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(self._capacity_bytes, self._capacity_bytes - self._held_bytes, self._held_bytes)

    def calls(self) -> Mapping[str, int]:
        return self._calls

    def close(self) -> None: ...

    def reserve(self, size_bytes: int) -> int:
        raise NotImplementedError

    def map(self, address: int, handles: Sequence[PhysicalHandle], done: Progress) -> None:
        raise NotImplementedError

    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        raise NotImplementedError

    def unmap(self, address: int, size_bytes: int) -> None:
        raise NotImplementedError

    def free_address(self, address: int, size_bytes: int) -> None:
        raise NotImplementedError

    def seal(self, handle: PhysicalHandle) -> None:
        raise NotImplementedError

    def export_fd(self, handle: PhysicalHandle) -> int:
        raise NotImplementedError

    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        raise NotImplementedError

    def synchronize(self) -> None:
        raise NotImplementedError

    def fence(self, stream: int = 0) -> Fence:
        raise NotImplementedError

    def scrub(self, handle: PhysicalHandle) -> None:
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Client:
    """One session: its next numbers."""

    name: str
    seq: int = 0
    grant: int = 0
    request: int = 0

    def frame(self, ops: Sequence[wire.Operation]) -> bytes:
        self.seq += 1
        return encode(wire.Frame(session=self.name, seq=self.seq, ack=self.seq - 1, epoch=1, ops=tuple(ops)))


@dataclass(slots=True, eq=False)
class Request:
    """One that is open: whose, and how many granules it holds."""

    client: Client
    key: wire.RequestKey
    granules: int = 0

    def grown(self, granules: int) -> list[wire.Operation]:
        """Grant and commit of so many more."""
        self.client.grant += 1
        self.granules += granules
        asked = wire.Grant(request=self.key, grant=self.client.grant, size_bytes=granules * GRANULE_BYTES)
        return [asked, wire.Commit(request=self.key, grant=self.client.grant, tokens=self.granules * TOKENS)]

    def opened(self, granules: int) -> list[wire.Operation]:
        return [wire.Open(request=self.key, groups=(GROUP,), max_tokens=MOST_TOKENS), *self.grown(granules)]

    def released(self, granules: int) -> wire.Operation:
        self.granules -= granules
        run = wire.Run(group=0, fragment=0, start=self.granules, count=granules)
        return wire.Release(request=self.key, runs=(run,), outcome="clean")

    def ended(self) -> list[wire.Operation]:
        return [self.released(self.granules), wire.Close(request=self.key)]


@dataclass(slots=True)
class Spent:
    """CPU seconds a frame, a figure a round."""

    service: list[float] = field(default_factory=list)
    codec: list[float] = field(default_factory=list)
    both_ends: list[float] = field(default_factory=list)


class World:
    """A device with `live` requests, and the frames that their clients send."""

    def __init__(self, live: int) -> None:
        capacity_bytes = (live + 1_000) * 16 * GRANULE_BYTES
        driver: Driver = CountingDriver(capacity_bytes)
        settings = MemorySettings(capacity_bytes, GRANULE_BYTES, pool_bytes_for(capacity_bytes))
        self.live = live
        self.service = DeviceService(driver, DeviceSettings("counted", settings), clock=time.monotonic)
        self._chance = random.Random(live)
        self._clients = [Client(f"session-{n}") for n in range(-(-live // OF_A_SESSION))]
        self._requests: list[Request] = []
        for client in self._clients:
            self.service.hello(Hello(session=client.name), pid=1)
        for number in range(live):
            self.service.frame(self._open(self._clients[number % len(self._clients)], 2))

    def frames(self, kind: str, count: int) -> list[bytes]:
        """So many of this kind, to be sent in this order. `end` ends as many as `open` opened."""
        if kind == "open":
            return [self._open(self._chance.choice(self._clients), 8) for _ in range(count)]
        if kind == "end":
            return [self._end() for _ in range(count)]
        if kind == "grow 8":
            return [self._grow_many(8) for _ in range(count)]
        chosen = self._chance.sample([one for one in self._requests if kind == "grow" or one.granules > 2], count)
        if kind == "grow":
            return [one.client.frame(one.grown(2)) for one in chosen]
        return [one.client.frame([one.released(2)]) for one in chosen]

    def _open(self, client: Client, granules: int) -> bytes:
        client.request += 1
        request = Request(client, wire.RequestKey(number=client.request))
        self._requests.append(request)
        return client.frame(request.opened(granules))

    def _end(self) -> bytes:
        place = self._chance.randrange(self.live)  # those that were opened now go on
        request, self._requests[place] = self._requests[place], self._requests[-1]
        del self._requests[-1]
        return request.client.frame(request.ended())

    def _grow_many(self, count: int) -> bytes:
        client = self._chance.choice(self._clients)
        mine = self._chance.sample(self._requests, min(self.live, 200 * len(self._clients)))
        chosen = [one for one in mine if one.client is client][:count]
        return client.frame([op for one in chosen for op in one.grown(1)])


def timed(work: Callable[[bytes], bytes], frames: Sequence[bytes]) -> tuple[float, list[bytes]]:
    begun = time.process_time()
    replies = [work(frame) for frame in frames]
    return (time.process_time() - begun) / len(frames), replies


def measured(world: World, kind: str, spent: Spent, *, frames: int) -> None:
    """One round of one kind."""
    data = world.frames(kind, frames)
    service_s, replies = timed(world.service.frame, data)
    decoded = [decode_reply(reply) for reply in replies]
    assert not any(reply.fault or result.fault for reply in decoded for result in reply.results), decoded[0]
    begun = time.process_time()
    for frame, reply in zip(data, decoded, strict=True):
        decode_frame(frame)
        encode(reply)
    codec_s = (time.process_time() - begun) / frames
    asked = [decode_frame(frame) for frame in data]
    begun = time.process_time()
    for one in asked:
        decode_frame(encode(one))
    both_ends_s = (time.process_time() - begun) / frames
    spent.service.append(service_s)
    spent.codec.append(codec_s)
    spent.both_ends.append(both_ends_s)


def measure(worlds: Sequence[World], *, rounds: int, frames: int) -> dict[tuple[str, int], Spent]:
    """The first two rounds are the warm-up."""
    spent = {(kind, world.live): Spent() for kind in KINDS for world in worlds}
    for number in range(-2, rounds):
        turn = number % len(worlds)
        for kind in KINDS:
            for world in (*worlds[turn:], *worlds[:turn]):
                unused = Spent()
                into = spent[kind, world.live] if number >= 0 else unused
                measured(world, kind, into, frames=min(frames, world.live // 2))
    return spent


def ratios_of(spent: Mapping[tuple[str, int], Spent]) -> dict[str, Ratio]:
    found = {}
    fewest = min(live for _, live in spent)
    for (kind, live), one in spent.items():
        name = f"{kind}, {live:,} live"
        found[f"{name}: service / codec"] = ratio(one.service, one.codec)
        found[f"{name}: service / both ends"] = ratio(one.service, one.both_ends)
        if live != fewest:
            found[f"{kind}: {live:,} / {fewest:,}"] = ratio(one.service, spent[kind, fewest].service)
    return found


def profiled(kind: str, *, frames: int) -> None:
    world = World(1_000)
    profile = cProfile.Profile(time.process_time)
    for _ in range(20):
        for each in KINDS:
            data = world.frames(each, frames)
            if each == kind:
                profile.enable()
            for frame in data:
                world.service.frame(frame)
            profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--live", type=int, nargs="+", default=list(LIVE))
    parser.add_argument("--profile", choices=KINDS)
    asked = parser.parse_args()
    if asked.profile:
        profiled(asked.profile, frames=asked.frames)
        return
    worlds = [World(live) for live in asked.live]
    gc.collect()
    spent = measure(worlds, rounds=asked.rounds, frames=asked.frames)
    per_s = {f"{kind}, {live:,} live": 1 / statistics.median(one.service) for (kind, live), one in spent.items()}
    report("frames", ratios_of(spent), targets=TARGETS, frames_per_s=per_s, rounds=asked.rounds)


if __name__ == "__main__":
    main()
