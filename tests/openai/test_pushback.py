"""What is decided before an answer begins has a status; what goes wrong later is said in it, never in silence."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from actors.openai.seams import Room, Unavailable
from kvcluster.services.completion import Begun, Delta, Refused
from tests.openai.apps import LIMITS, open_app
from tests.openai.asking import Call, ask, texts_of
from tests.openai.scripted import CARD, Scripted, Step, spoken

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = {"model": "tiny", "prompt": "abc"}
BODY = b'{"model": "tiny", "prompt": "abc", "stream": true}'
FULL = Refused(429, "kv_memory_full", "no memory now", retry_after_s=2.25, need_bytes=4096, free_bytes=512)
LOST = Unavailable("replica_lost", "whoever computed it is lost", retry_after_s=0.2)
SAID: list[Step] = [Begun(3, 0), Delta(0, "He", 1)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_says_why_and_when_to_come_back(stream: bool) -> None:
    call = ask(open_app(Scripted([[FULL]])), COMPLETIONS, ASKED | {"stream": stream})

    assert (call.status, call.answer_headers["content-type"]) == (429, "application/json")
    assert (call.answer_headers["retry-after"], call.answer_headers["retry-after-ms"]) == ("3", "2250")
    assert call.error == {
        "message": "no memory now",
        "type": "rate_limit_error",
        "param": None,
        "code": "kv_memory_full",
        "kvcluster": {"reason": "kv_memory_full", "need_bytes": 4096, "free_bytes": 512, "retry_after_s": 2.25},
    }


@pytest.mark.parametrize(
    ("room", "prompts", "n", "param"),
    [
        (Room(1, 32), 17, 2, "n"),
        (Room(1, 8), 9, 1, "prompt"),
        (Room(2, 32), 3, 20, "n"),  # 60 texts in room for 64, and 20 at a replica leave none for 20 more
        (Room(3, 4), 13, 1, "prompt"),
    ],
)
def test_more_texts_than_there_can_ever_be_at_one_time_are_refused_for_good_and_nobody_is_asked(
    room: Room, prompts: int, n: int, param: str
) -> None:
    models = Scripted([spoken("hi")], card=replace(CARD, room=room))
    call = ask(open_app(models), COMPLETIONS, ASKED | {"prompt": ["abc"] * prompts, "n": n})
    assert (call.status, call.error["code"], call.error["param"]) == (400, "invalid_value", param)
    assert "retry-after" not in call.answer_headers
    assert models.asked == []
    fits = ask(open_app(models), COMPLETIONS, ASKED | {"prompt": ["abc"] * room.most_prompts(n), "n": n})
    assert fits.status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_what_can_never_fit_is_the_requests_own_fault_and_has_no_time_to_come_back(stream: bool) -> None:
    refusal = Refused(400, "context_length_exceeded", "too much")
    call = ask(open_app(Scripted([[refusal]])), COMPLETIONS, ASKED | {"stream": stream})

    assert (call.status, call.error["code"]) == (400, "context_length_exceeded")
    assert "retry-after" not in call.answer_headers
    assert "kvcluster" not in call.error


def test_what_never_fits_in_memory_says_how_much_it_needs_of_how_much() -> None:
    refusal = Refused(400, "context_length_exceeded", "too much", need_bytes=8192, free_bytes=4096)
    call = ask(open_app(Scripted([[refusal]])), COMPLETIONS, ASKED)

    assert (call.status, call.error["kvcluster"]["need_bytes"], call.error["kvcluster"]["free_bytes"]) == (
        400,
        8192,
        4096,
    )
    assert "retry-after" not in call.answer_headers


def test_a_field_that_only_whoever_computes_knows_to_be_wrong_is_named_too() -> None:
    refusal = Refused(400, "invalid_value", "min_tokens is 5, and must be 0 to 3", param="min_tokens")
    call = ask(open_app(Scripted([[refusal]])), COMPLETIONS, ASKED)

    assert (call.status, call.error["param"]) == (400, "min_tokens")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 404, 418, 500])
def test_no_other_status_comes_from_whoever_computes(status: int, stream: bool) -> None:
    call = ask(open_app(Scripted([[Refused(status, "odd", "odd")]])), COMPLETIONS, ASKED | {"stream": stream})

    assert (call.status, call.answer_headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_nobody_can_compute_now_is_told_to_come_back(stream: bool) -> None:
    call = ask(open_app(Scripted([[LOST]])), COMPLETIONS, ASKED | {"stream": stream})

    assert (call.status, call.error["code"], call.answer_headers["retry-after"]) == (503, "replica_lost", "1")
    assert call.answer_headers["retry-after-ms"] == "200"


@pytest.mark.parametrize("end", [[LOST], [FULL], []], ids=["lost", "refused", "cut short"])
@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_a_stream_that_fails_says_so_and_then_ends(route: str, end: list[Step]) -> None:
    messages = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    body = ASKED if route == COMPLETIONS else messages

    call = ask(open_app(Scripted([SAID + end])), route, body | {"stream": True})
    *_, said, failed = call.events
    assert call.status == 200
    assert said["choices"]
    assert set(failed) == {"error"}
    assert failed["error"]["code"] in ("replica_lost", "kv_memory_full", "cut_short")


@pytest.mark.parametrize(("end", "status"), [([LOST], 503), ([FULL], 429), ([], 503)])
def test_an_answer_that_is_not_streamed_and_fails_late_has_a_status(end: list[Step], status: int) -> None:
    call = ask(open_app(Scripted([SAID + end])), COMPLETIONS, ASKED)

    assert (call.status, "retry-after" in call.answer_headers) == (status, True)


def test_an_error_of_our_own_is_told_without_its_words_and_goes_on_to_the_log() -> None:
    for script in ([ValueError("secret")], [*SAID, ValueError("secret")]):
        call = Call(open_app(Scripted([script])), COMPLETIONS, (BODY,))
        with pytest.raises(ValueError, match="secret"):
            asyncio.run(call.run())
        assert b"internal_error" in b"".join(call.chunks)
        assert b"secret" not in b"".join(call.chunks)


def test_nothing_is_said_before_every_prompt_has_memory() -> None:
    async def story() -> None:
        waits = asyncio.Event()
        models = Scripted([spoken("a", "b"), [waits, *spoken("c")]])
        body = b'{"model": "tiny", "prompt": ["x", "y"], "stream": true}'
        call = Call(open_app(models), COMPLETIONS, (body,))
        running = asyncio.create_task(call.run())
        async with asyncio.timeout(30):
            while len(models.asked) < 2:
                await asyncio.sleep(0)
        assert call.status is None
        waits.set()
        await running
        assert texts_of(call.events, 0) == "ab"
        assert texts_of(call.events, 1) == "c"

    asyncio.run(story())


def test_one_prompt_that_is_refused_refuses_the_request_and_leaves_the_others_off() -> None:
    models = Scripted([[*SAID, *spoken("a")], [FULL]])
    call = ask(open_app(models), COMPLETIONS, ASKED | {"prompt": ["x", "y"], "stream": True})

    assert (call.status, models.open_count) == (429, 0)


def test_a_request_too_many_is_told_to_come_back_and_a_place_is_free_again_after_each() -> None:
    async def story() -> None:
        waits = asyncio.Event()
        models = Scripted([[waits, *spoken("a")], spoken("b")])
        app = open_app(models, replace(LIMITS, most_streams=1))
        first = Call(app, COMPLETIONS, (BODY,))
        running = asyncio.create_task(first.run())
        await models.came.wait()
        second, third, wrong = (Call(app, COMPLETIONS, (body,)) for body in (BODY, BODY, b"{"))
        await second.run()
        assert (second.status, second.error["code"]) == (429, "too_many_streams")
        assert int(second.answer_headers["retry-after"]) >= 1
        waits.set()
        await running
        for call, status in ((wrong, 400), (third, 200)):
            await call.run()
            assert call.status == status

    asyncio.run(story())
