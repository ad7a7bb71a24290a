"""Frames by hand, sensible and senseless: wrong numbers, orders, tenants, huge counts, endings at any moment.

Whatever is said, every frame gets its answer, each refusal is a typed error that changed nothing, and the books sum
after each. What was answered feeds what is said next, so that much of it goes deep before it goes wrong. At the end
every byte is free again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import KvClusterError
from kvcluster.index.token_chain import packed
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply
from kvcluster.wire.faults import error_of
from tests.examples import examples
from tests.services.device_world import EVERY, GRANULE, WITH_RING, Client, Device, DeviceWorld

T = TypeVar("T")
HUGE = (2**31, 2**62, 2**63 - 1)
TENANTS = ("", "", "acme")
SHAPES = (EVERY, WITH_RING, (wire.Group(fragments=2, stride_bytes=96),))
DEVICES = (
    Device(36, pool=3),
    Device(80, pool=0, bulk=4, quotas=Quotas({"acme": 12 * GRANULE})),
    Device(12, pool=8, quotas=Quotas({"acme": 4 * GRANULE})),
)
KINDS = (
    "open grow grow grow commit grant give_back release publish publish seal seal seal join join find find leave close"
)
ROOTS = (b"", b"one", b"one", b"other")


class Dice(random.Random):
    """Draws of one seed: hypothesis's own would be simple and short, and hardly ever go deep."""

    def number(self, most: int = 4) -> int:
        return self.choice(HUGE) if self.random() < 0.03 else self.randint(0, most)

    def tokens(self) -> int:
        return self.choice([32, 48, 64, 64, 90, 90, self.randint(1, 140), max(1, self.number())])

    def key(self) -> wire.RequestKey:
        return wire.RequestKey(number=self.randint(0, 2), generation=int(self.random() < 0.04))

    def run(self) -> wire.Run:
        return wire.Run(group=self.number(), fragment=self.number(), start=self.number(), count=max(1, self.number()))

    def outcome(self) -> str:
        return self.choice(["clean", "clean", "quarantined"])

    def token_ids(self) -> bytes:
        """Mostly of a few prompts that begin alike; whole ids or not."""
        ids = packed([n if n < 50 else n + 1000 * self.randint(0, 1) for n in range(self.randint(1, 140))])
        return ids + b"?" * (self.random() < 0.04)

    def one_of(self, likely: Sequence[T], other: T) -> T:
        return self.choice(likely) if likely and self.random() < 0.8 else other


@dataclass(eq=False)
class Babbler:
    """A session that says anything, and remembers what it was told."""

    client: Client
    prefixes: list[int]  # everybody's
    grants: int = 0
    frames: list[bytes] = field(default_factory=list)
    runs: dict[wire.RequestKey, list[wire.Run]] = field(default_factory=dict)
    plans: dict[wire.RequestKey, int] = field(default_factory=dict)
    uses: dict[wire.RequestKey, list[int]] = field(default_factory=dict)
    told: dict[wire.RequestKey, int] = field(default_factory=dict)

    def group(self, dice: Dice) -> list[wire.Operation]:
        key = dice.key()
        return list(self.operations(dice, key, self.kind(dice, key)))

    def kind(self, dice: Dice, key: wire.RequestKey) -> str:
        """What makes sense next, more often than not."""
        if key not in self.runs:
            return "open"
        if dice.random() < 0.4:
            return dice.choice(KINDS.split())
        if key in self.plans:
            return "seal"
        if not self.runs[key] and not self.uses.get(key):
            return dice.choice(["grow", "join", "find", "find"])
        return dice.choice(["grow", "publish", "publish", "leave", "close"])

    def operations(self, dice: Dice, key: wire.RequestKey, kind: str) -> Iterator[wire.Operation]:
        number = dice.one_of(self.prefixes[-3:], max(1, dice.number()))
        amount, outcome = dice.tokens(), dice.outcome()
        match kind:
            case "open":
                opening = {"groups": dice.choice(SHAPES), "max_tokens": 128, "tenant": dice.choice(TENANTS)}
                opening |= {"shareable_tokens": dice.choice([0, 128]), "cache_root": dice.choice(ROOTS)}
                yield wire.Open.model_validate({"request": key, **opening})
            case "grow" | "grant" | "commit" | "give_back":
                yield from self.spending(dice, key, kind)
            case "release":
                chosen = tuple(dice.one_of(self.runs[key], dice.run()) for _ in range(dice.randint(1, 2)))
                yield wire.Release.model_validate({"request": key, "runs": chosen, "outcome": outcome})
            case "publish":
                yield wire.Publish(request=key, tokens=amount)
            case "seal":
                yield wire.Seal(request=key, prefix=self.plans.get(key, number))
            case "join":
                yield wire.Join(request=key, prefix=number, tokens=amount)
                yield from self.spending(dice, key, "grow") if dice.random() < 0.5 else ()
            case "find":
                token_ids = dice.token_ids()
                self.told[key] = len(token_ids) // 4
                yield wire.Find(request=key, token_ids=token_ids)
                yield from self.spending(dice, key, "grow") if dice.random() < 0.5 else ()
            case "leave" | "close":
                for used in reversed(self.uses.get(key, [number])[-2:]):
                    yield wire.Leave.model_validate({"request": key, "prefix": used, "outcome": outcome})
                if kind == "close":
                    named, told = dice.choice([b"", dice.token_ids()]), dice.one_of([self.told.get(key, 0)], amount)
                    retain = dice.choice([0, 64, amount])
                    yield wire.Close(request=key, retain_tokens=retain, token_ids=named, told_tokens=told)

    def spending(self, dice: Dice, key: wire.RequestKey, kind: str) -> Iterator[wire.Operation]:
        self.grants += kind in ("grow", "grant")
        number = self.grants if kind == "grow" else dice.one_of([self.grants], dice.number())
        if kind in ("grow", "grant"):
            size_bytes = dice.one_of([4 * GRANULE, 14 * GRANULE], max(1, dice.number()))
            yield wire.Grant(request=key, grant=number, size_bytes=size_bytes)
        if kind in ("grow", "commit"):
            yield wire.Commit(request=key, grant=number, tokens=dice.tokens(), snapshot=dice.random() < 0.4)
        if kind == "give_back":
            yield wire.GiveBack(request=key, grant=number)

    def say(self, ops: list[wire.Operation]) -> wire.Reply:
        self.frames.append(self.client.frame(*ops))
        reply = decode_reply(self.client.service.frame(self.frames[-1]))
        for result in reply.results:
            for answer in result.answers:
                self.hear(result.request, answer)
        return reply

    def hear(self, key: wire.RequestKey, answer: wire.Answer) -> None:
        match answer:
            case wire.Opened():
                self.runs[key] = []
            case wire.Committed(runs=named):
                self.runs[key] += named
            case wire.Published(prefix=number):
                self.plans[key] = number
            case wire.Sealed(prefix=number, refusal=None) | wire.Joined(prefix=number):
                self.prefixes.append(number)
                self.plans.pop(key, None)
                self.uses.setdefault(key, []).append(number)
            case wire.Found(prefix=number) if number:
                self.uses.setdefault(key, []).append(number)
            case wire.Closed(prefix=number):
                self.prefixes += [number] if number else []
                for of_the_request in (self.runs, self.plans, self.uses):
                    of_the_request.pop(key, None)


class Crowd:
    """Sessions that come and go at one device."""

    def __init__(self, device: Device) -> None:
        self.world = DeviceWorld(device)
        self.prefixes: list[int] = []
        self.here: list[Babbler] = []
        self.lost: list[Babbler] = []  # whose connection ended

    def happen(self, dice: Dice) -> None:
        kind = dice.choice(["say"] * 60 + ["come", "repeat", "hang up", "die", "fill", "wait"])
        if not self.here or (kind == "come" and len(self.here) < 3):
            self.here.append(Babbler(self.world.client(), self.prefixes))
        elif kind == "fill":
            self.world.service.fill()
        elif kind in ("come", "wait"):
            self.world.clock.advance(dice.choice([1.0, 6.0]))
            self.world.service.idle()  # what has expired goes now, and not with whatever is said next
        elif kind in ("hang up", "die"):
            self.part(dice.choice(self.here + (self.lost if kind == "die" else [])), kind)
        else:
            self.speak(dice.choice(self.here), dice, kind)

    def part(self, babbler: Babbler, kind: str) -> None:
        session = babbler.client.session
        if babbler in self.here:
            self.here.remove(babbler)
            self.lost.append(babbler)
        if kind == "hang up":
            self.world.service.disconnected(session)
        else:
            self.lost.remove(babbler)
            self.world.service.gone(session)

    def speak(self, babbler: Babbler, dice: Dice, kind: str) -> None:
        before = self.claims()
        if kind == "repeat" and babbler.frames:
            self.world.service.frame(dice.choice(babbler.frames))
            assert self.claims() == before
            return
        reply = babbler.say(babbler.group(dice))
        refusals = [error_of(fault) for fault in (reply.fault, *(r.fault for r in reply.results)) if fault]
        assert all(isinstance(refusal, KvClusterError) for refusal in refusals)
        if refusals and not any(result.answers for result in reply.results):
            assert self.claims() == before

    def claims(self) -> dict[str, int]:
        """Who has what; what is retained goes for whoever is given a grant, whatever else is refused beside it."""
        accounts = self.world.seen().accounts
        return {name: size for name, size in accounts.items() if not name.startswith(("free", "retained"))}

    def end(self) -> None:
        for babbler in self.here + self.lost:
            self.world.service.gone(babbler.client.session)
        assert self.claims() == {}
        self.world.service.close()
        seen = self.world.seen()
        assert (dict(seen.accounts), set(seen.handles.values())) == ({"free": seen.capacity_bytes}, {0})


@pytest.mark.no_cover
@given(st.sampled_from(DEVICES), st.integers(0, 2**32))
@settings(max_examples=examples(15), deadline=None)
def test_whatever_is_said_is_answered_and_the_books_sum(device: Device, seed: int) -> None:
    crowd, dice = Crowd(device), Dice(seed)
    try:
        for _ in range(200):
            crowd.happen(dice)
            crowd.world.seen()
        crowd.end()
    finally:
        crowd.world.clear()
