"""How many may wait in one worker, and what one more is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.services.completion import Completion, Refused, Telling, answers_among
from kvcluster.services.request import RequestService
from kvcluster.services.request.refusals import Load, busy
from kvcluster.services.request.settings import Fallback
from tests.request.asking import asked, prompt, wide
from tests.request.conftest import PROMPTS
from tests.request.told import Told, listen, told
from tests.request.world import World

Worlds = Callable[..., World]


def submit(service: RequestService, *keys: int, tokens: int = 20, **more: object) -> None:
    for key in keys:
        service.submit(key, asked(PROMPTS[key % len(PROMPTS)], tokens, tells=Telling.PARTS, **more))


def refusals(service: RequestService) -> dict[int, Refused]:
    return {key: said for key, said in answers_among(service.said()) if isinstance(said, Refused)}


@pytest.mark.parametrize("most_waiting", [0, 1, 3])
def test_one_more_than_may_run_and_wait_is_told_when_to_come_back_before_anything_else(
    worlds: Worlds, most_waiting: int
) -> None:
    world = worlds(granules=200)
    service = world.open(max_num_seqs=2, max_num_waiting=most_waiting)
    submit(service, *range(2 + most_waiting + 2))
    service.step()
    refused = refusals(service)
    assert set(refused) == {2 + most_waiting, 3 + most_waiting}
    for each in refused.values():
        assert (each.status_code, each.code) == (429, "server_busy")
        assert each.retry_after_s is not None
        assert f"ask again in {each.retry_after_s:.1f} s" in each.message
        assert f"{2 + most_waiting} are waiting; at most {2 + most_waiting} may wait now" in each.message
        assert f"(max_num_waiting is {most_waiting}, and max_num_seqs has room for 2)" in each.message
    answers = world.finish([service])[0]
    assert [type(answers[key]) for key in range(2 + most_waiting)] == [Completion] * (2 + most_waiting)
    assert service.statistics().refused_waiting == 2


@pytest.mark.parametrize(
    ("load", "sentence"),
    [
        (
            Load(running=1, waiting=31, most_waiting=16, room=31),
            "1 text is running and 31 are waiting; at most 31 may wait now (max_num_waiting is 16, and max_num_seqs "
            "has room for 15), so there is no room for one more: ask again in 0.5 s",
        ),
        (
            Load(running=2, waiting=1, most_waiting=1, room=1, free_bytes=4096),
            "2 texts are running and 1 is waiting; at most 1 may wait now (max_num_waiting is 1), so there is no room "
            "for one more: ask again in 0.5 s. Its prompt takes 8192 bytes of KV memory, and 4096 were free "
            "of late",
        ),
        (
            Load(running=2, waiting=1, most_waiting=1, room=1, free_bytes=8192),
            "2 texts are running and 1 is waiting; at most 1 may wait now (max_num_waiting is 1), so there is no room "
            "for one more: ask again in 0.5 s",
        ),
    ],
)
def test_a_busy_server_says_how_many_run_and_wait_and_why_no_more_may(load: Load, sentence: str) -> None:
    assert busy(load, 1, 8192, 0.5).message == sentence


def test_without_the_setting_all_wait(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open(max_num_seqs=1)
    submit(service, *range(8), tokens=2)
    assert {type(answer) for answer in world.finish([service])[0].values()} == {Completion}


def test_who_waits_is_never_sent_away_however_long_it_takes(worlds: Worlds) -> None:
    """The device is short, its requests lose their memory, and hours pass between two steps."""
    world = worlds(granules=14)
    service = world.open(max_num_waiting=3)
    submit(service, 0, 1, 2, tokens=60)
    heard: dict[int, Told] = {}
    while service.step() or service.statistics().waiting:
        world.clock.advance(3_600.0)
        listen(heard, [service])
    listen(heard, [service])
    assert service.statistics().preemptions > 0
    assert [heard[key].completion.completion_tokens for key in range(3)] == [60] * 3


def test_seats_that_nobody_can_use_are_no_room_for_more(worlds: Worlds) -> None:
    """Memory is there for one; of sixteen seats fifteen stay empty, and so many do not wait for it."""
    world = worlds(granules=9)
    service = world.open(max_num_waiting=1)
    service.submit(0, asked(prompt(0, 40), 30))
    service.step()
    service.submit(1, asked(prompt(1, 40), 30))
    for _ in range(3):
        service.step()
    service.submit(2, asked(prompt(2, 40), 30))
    service.step()
    [(key, refused)] = refusals(service).items()
    assert key == 2
    assert refused.need_bytes is not None
    assert refused.free_bytes is not None
    assert refused.need_bytes > refused.free_bytes
    assert f"Its prompt takes {refused.need_bytes} bytes" in refused.message
    assert set(world.finish([service])[0]) == {0, 1}


def test_with_host_pages_full_too_the_caller_is_told_to_come_back(worlds: Worlds) -> None:
    world = worlds(granules=9, blocks=20)
    service = world.open(fallback=Fallback.HOST, max_num_waiting=1)
    heard: dict[int, Told] = {}
    for key in range(8):
        service.submit(key, asked(prompt(key, 40), 30, tells=Telling.PARTS))
        for _ in range(3):
            service.step()
        listen(heard, [service])
    told(world, [service], heard)
    refused = [each.answer for each in heard.values() if isinstance(each.answer, Refused)]
    assert {(each.status_code, each.code) for each in refused} == {(429, "server_busy")}
    assert not any(each.begun for each in heard.values() if isinstance(each.answer, Refused))
    assert len(heard) - len(refused) >= 3
    assert service.statistics().fallbacks > 0


def test_a_request_for_several_texts_counts_as_many(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open(max_num_seqs=2, max_num_waiting=3)
    submit(service, 0, n=4)
    submit(service, 1, n=2)
    submit(service, 2)
    service.step()
    assert set(refusals(service)) == {1}
    assert set(world.finish([service])[0]) == {0, 2}


def test_more_texts_than_may_ever_be_here_are_refused_for_good(worlds: Worlds) -> None:
    service = worlds(granules=200).open(max_num_seqs=2, max_num_waiting=3)
    submit(service, 0, n=6)
    service.step()
    [refused] = refusals(service).values()
    assert (refused.status_code, refused.retry_after_s, refused.param) == (400, None, "n")
    assert "n is 6, and here it is at most 5" in refused.message


def test_beams_count_as_their_width(worlds: Worlds) -> None:
    world = worlds(granules=10, blocks=300)
    service = world.open(max_num_seqs=4, max_num_waiting=0)
    for key in range(2):
        service.submit(key, wide(prompt(key, 10), 3))
    service.step()
    assert set(refusals(service)) == {1}
    assert set(world.finish([service])[0]) == {0}


def test_what_a_refused_caller_is_told_grows_with_the_load_and_falls_when_it_goes(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open(max_num_seqs=2, max_num_waiting=2)
    submit(service, 0, 1, 2, 3, tokens=8)
    key, told_s = 100, []
    for _ in range(60):
        for _ in range(2):
            key += 1
            submit(service, key, tokens=8)
        service.step()
        told_s += [each.retry_after_s or 0.0 for each in refusals(service).values()]
        world.clock.advance(0.05)
    assert max(told_s[-10:]) > 3 * min(told_s[:10])
    world.finish([service])
    world.clock.advance(60.0)
    submit(service, 0, 1, 2, 3, 4, tokens=8)
    service.step()
    [again] = refusals(service).values()
    assert again.retry_after_s is not None
    assert again.retry_after_s < max(told_s) / 3
    world.finish([service])


def test_a_full_device_raises_what_it_says_by_the_place_among_those_sent_away(worlds: Worlds) -> None:
    world = worlds(granules=9)
    service = world.open(fallback=Fallback.REFUSE)
    service.submit(0, asked(prompt(0, 40), 30))
    service.step()
    for key in range(1, 13):
        service.submit(key, asked(prompt(key, 40), 30))
    service.step()
    service.step()
    refused = list(refusals(service).values())
    told_s = [each.retry_after_s or 0.0 for each in refused]
    assert len(refused) == 12
    assert told_s == sorted(told_s)
    assert len(set(told_s)) == 12
    for each in refused:
        assert each.code == "kv_memory_full"
        assert each.need_bytes is not None
        assert each.free_bytes is not None
        assert each.need_bytes > each.free_bytes
    world.finish([service])
