from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from actors.openai.observer import Ended
from actors.openai.seams import Unavailable
from kvcluster.services.completion import Refused
from tests.openai.apps import open_app
from tests.openai.asking import Call, ask
from tests.openai.scripted import Scripted, Step, spoken

ASKED = {"model": "tiny", "prompt": "abc"}
FULL = Refused(429, "kv_memory_full", "no memory now", retry_after_s=2.0)
LOST = Unavailable("replica_lost", "whoever computed it is lost", retry_after_s=1.0)


@dataclass(slots=True)
class Watching:
    began_count: int = 0
    all_ended: list[Ended] = field(default_factory=list)

    def began(self) -> None:
        self.began_count += 1

    def ended(self, ended: Ended) -> None:
        self.all_ended.append(ended)


def ticking() -> Any:
    """A clock that is a second later each time it is looked at."""
    return iter(range(1_000)).__next__


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_told_with_its_times_and_tokens(stream: bool) -> None:
    watching = Watching()
    app = open_app(Scripted([spoken("a", "b", cached_tokens=2)]), observer=watching, clock=ticking())

    ask(app, "/v1/completions", ASKED | {"stream": stream})
    (ended,) = watching.all_ended
    assert watching.began_count == 1
    assert (ended.first_token_s is not None) == stream
    assert 0 < (ended.first_token_s or 1) < ended.total_s
    assert replace(ended, total_s=0, first_token_s=None) == Ended("answered", "", "tiny", 0, None, 3, 2, 2)


@pytest.mark.parametrize(
    ("script", "body", "told"),
    [
        ([FULL], {}, ("refused", "kv_memory_full", "tiny", False)),
        ([LOST], {}, ("failed", "replica_lost", "tiny", False)),
        ([*spoken("a", "b")[:2], FULL], {"stream": True}, ("failed", "kv_memory_full", "tiny", True)),
        ([], {"model": "none"}, ("refused", "model_not_found", "", False)),
        ([], {"n": 0}, ("refused", "invalid_value", "", False)),
    ],
)
def test_a_request_that_fails_is_told_with_its_reason(script: list[Step], body: Any, told: Any) -> None:
    watching = Watching()
    ask(open_app(Scripted([script]), observer=watching, clock=ticking()), "/v1/completions", ASKED | body)

    (ended,) = watching.all_ended
    assert (ended.outcome, ended.reason, ended.model, ended.first_token_s is not None) == told


def test_a_client_that_goes_away_is_told_as_cancelled_with_what_it_had() -> None:
    async def story() -> None:
        watching = Watching()
        models = Scripted([[*spoken("a", "b")[:2], asyncio.Event()]])
        call = Call(
            open_app(models, observer=watching), "/v1/completions", (b'{"model":"tiny","prompt":"a","stream":true}',)
        )
        running = asyncio.create_task(call.run())
        await call.until(1)
        call.gone.set()
        await running
        (ended,) = watching.all_ended
        assert (ended.outcome, ended.reason) == ("cancelled", "disconnected")
        assert (ended.prompt_tokens, ended.completion_tokens) == (3, 1)

    asyncio.run(story())
