"""Replies that come some steps late, frames that arrive some steps late, several under way, in every order.

Over Ray a reply is ready when it is. Here it is ready after the k-th look at it, and either the frame was executed at
once (a late reply) or only then (a late frame). Whoever waits for it gets it at once, as a blocking call does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.asks import MOST
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.frames import in_frames
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from kvcluster.services.request import desk as desk_module
from kvcluster.services.transport import PendingReply, Transport
from kvcluster.wire.socket import Reclaim
from tests.request.conftest import PROMPTS
from tests.request.world import World
from tests.services.ways import Way

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
LENGTHS = (16, 12, 22, 9)


def in_turns(orders: Iterable[Any]) -> list[tuple[Any, bool]]:
    """Every order once: of one the replies are late, of the next the frames. One actor alone has both of each."""
    return list(zip(orders, itertools.cycle((False, True)), strict=False))


class LateReply:
    """Ready at the `looks`-th look; `bring` sends the frame, or brings its reply."""

    def __init__(self, bring: Callable[[], bytes], looks: int) -> None:
        self._bring = bring
        self._looks = looks
        self._data: bytes | None = None

    def ready(self) -> bool:
        self._looks -= 1
        if self._looks < 0:
            self.result(0)
        return self._data is not None

    def result(self, timeout_s: float) -> bytes:
        if self._data is None:
            self._data = self._bring()
        return self._data


class Slow(Way):
    """A transport whose frames are late by what `looks` says, one after the other."""

    def __init__(self, inner: Transport, looks: Iterator[int], *, frame_is_late: bool) -> None:
        self._inner = inner
        self._looks = looks
        self._frame_is_late = frame_is_late

    def send(self, frame: bytes) -> PendingReply:
        if self._frame_is_late:
            return LateReply(lambda: self._inner.send(frame).result(0), next(self._looks))
        data = self._inner.send(frame).result(0)
        return LateReply(lambda: data, next(self._looks))

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self._inner.redeem(seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        self._inner.settled(handles)

    def pushes(self) -> tuple[Reclaim, ...]:
        return self._inner.pushes()

    def close(self) -> None:
        self._inner.close()


def open_slow(world: World, looks: Sequence[int], *, frame_is_late: bool) -> RequestService:
    port = world.device.open_port()
    port.exchange.line = Slow(port.exchange.line, itertools.cycle(looks), frame_is_late=frame_is_late)
    service = open_request_service(world.model, world.tokenizer, port, RequestSettings(), clock=world.clock)
    world.services.append(service)
    return service


def asked(keys: Sequence[int]) -> dict[int, CompletionRequest]:
    return {k: CompletionRequest(PROMPTS[k], max_tokens=LENGTHS[k], temperature=0, ignore_eos=True) for k in keys}


@pytest.fixture
def wanted(greedy: Greedy, tokenizer: Tokenizer) -> dict[int, str]:
    return {k: tokenizer.decode(greedy(PROMPTS[k], length)) for k, length in enumerate(LENGTHS)}


@pytest.mark.parametrize("frame_is_late", [False, True])
@pytest.mark.parametrize("looks", [(1,), (2,), (5,), *itertools.permutations((0, 1, 3))])
def test_late_replies_change_no_text_and_cost_no_message(
    worlds: Worlds, wanted: dict[int, str], looks: tuple[int, ...], frame_is_late: bool
) -> None:
    prompt, late = worlds(granules=60), worlds(granules=60)
    quick = prompt.open()
    prompt.run(quick, asked(range(4)))
    slow = open_slow(late, looks, frame_is_late=frame_is_late)
    results = late.run(slow, asked(range(4)))
    assert {key: result.text for key, result in results.items()} == wanted
    assert slow.statistics().control_messages <= quick.statistics().control_messages


@pytest.mark.parametrize(
    ("orders", "frame_is_late"), in_turns(itertools.product([(0, 1), (2, 0), (1, 4), (3, 3)], repeat=2))
)
def test_two_actors_with_too_little_memory_finish_however_late_each_one_s_replies_are(
    worlds: Worlds, wanted: dict[int, str], orders: tuple[tuple[int, ...], tuple[int, ...]], frame_is_late: bool
) -> None:
    world = worlds(granules=6)
    services = [open_slow(world, looks, frame_is_late=frame_is_late) for looks in orders]
    for half, service in enumerate(services):
        for key, request in asked((half, half + 2)).items():
            service.submit(key, request)
    results = world.finish(services)
    assert {key: result.text for result in results for key, result in result.items()} == wanted
    assert sum(service.statistics().refusals for service in services) > 0


@pytest.mark.parametrize(("looks", "frame_is_late"), in_turns(itertools.permutations((0, 1, 2, 3))))
def test_several_frames_of_one_boundary_may_be_answered_in_any_order(
    worlds: Worlds,
    wanted: dict[int, str],
    looks: tuple[int, ...],
    frame_is_late: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk_module, "in_frames", partial(in_frames, most=MOST._replace(asks=1)))
    world = worlds(granules=9)
    service = open_slow(world, looks, frame_is_late=frame_is_late)
    results = world.run(service, asked(range(4)))
    assert {key: result.text for key, result in results.items()} == wanted


def test_a_cancel_while_a_frame_is_under_way_gives_everything_back(worlds: Worlds) -> None:
    world = worlds(granules=40)
    service = open_slow(world, (3, 1, 2), frame_is_late=True)
    for key, request in asked(range(4)).items():
        service.submit(key, request)
    for key in range(4):
        service.step()
        service.cancel(key)
    while service.step():
        pass
    assert world.free_bytes == 40 * world.granule_bytes
