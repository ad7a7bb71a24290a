"""OpenAI's own client on the routes, and below them a model that computes: the seams hold in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from actors.openai.seams import Models, Unavailable
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from tests.openai.apps import open_app
from tests.openai.asking import Call
from tests.openai.scripted import Scripted, spoken
from tests.openai.served import Served

PROMPT = tuple(range(5, 25))
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "temperature": 0}


def client_of(models: Models, *, max_retries: int = 0) -> openai.AsyncOpenAI:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=open_app(models)))
    return openai.AsyncOpenAI(api_key="any", base_url="http://test/v1", http_client=http, max_retries=max_retries)


async def said_by(served: Served, request: CompletionRequest) -> Completion:
    """What whoever computes says itself, without the routes."""
    (whole,) = [said async for said in served.generate("tiny", request)]
    assert isinstance(whole, Completion)
    return whole


def test_a_completion_is_what_the_model_says_streamed_or_not(serve: Callable[..., Served]) -> None:
    async def story(served: Served) -> None:
        whole = await said_by(served, CompletionRequest(PROMPT, max_tokens=12, seed=5, n=2))
        async with client_of(served) as client:
            asked = ASKED | {"prompt": list(PROMPT), "temperature": 1, "seed": 5, "n": 2}
            answer = await client.completions.create(**asked)
            assert [choice.text for choice in answer.choices] == [choice.text for choice in whole.choices]
            assert answer.usage.completion_tokens == whole.completion_tokens
            texts = ["", ""]
            stream = await client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            async for event in stream:
                for choice in event.choices:
                    texts[choice.index] += choice.text
            assert texts == [choice.text for choice in whole.choices]
            assert event.usage.completion_tokens == whole.completion_tokens
            assert event.usage.prompt_tokens_details.cached_tokens > 0

    asyncio.run(story(serve()))


def test_a_chat_streams_its_answer_with_log_probabilities(serve: Callable[..., Served]) -> None:
    async def story(served: Served) -> None:
        async with client_of(served) as client:
            asked = ASKED | {"messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 2}
            answer = await client.chat.completions.create(**asked)
            (choice,) = answer.choices
            stream = await client.chat.completions.create(**asked, stream=True)
            parts = [event.choices[0] async for event in stream]
            assert "".join(part.delta.content or "" for part in parts) == choice.message.content
            assert parts[0].delta.role == "assistant"
            assert parts[-1].finish_reason == choice.finish_reason
            tokens = [token for part in parts if part.logprobs for token in part.logprobs.content]
            assert tokens == choice.logprobs.content
            assert len(tokens) == answer.usage.completion_tokens
            assert all(token.top_logprobs[0].logprob == token.logprob <= 0 for token in tokens)  # greedy

    asyncio.run(story(serve()))


def test_what_the_model_cannot_take_is_the_clients_error(serve: Callable[..., Served]) -> None:
    async def story(served: Served) -> None:
        async with client_of(served) as client:
            assert [model.id async for model in client.models.list()] == ["tiny"]
            for prompt in ([10**9], [1] * 10_000):
                with pytest.raises(openai.BadRequestError):
                    await client.completions.create(**ASKED, prompt=prompt)
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(**ASKED | {"model": "none"}, prompt="a")

    asyncio.run(story(serve()))


def test_the_client_hears_of_a_stream_that_fails_and_comes_back_when_it_was_told_to() -> None:
    lost = Unavailable("replica_lost", "whoever computed it is lost", retry_after_s=0.001)
    full = Refused(429, "kv_memory_full", "no memory now", retry_after_s=0.001)
    models = Scripted([[*spoken("a", "b")[:2], lost], [full], [lost], spoken("b")])

    async def story() -> None:
        async with client_of(models, max_retries=2) as client:
            stream = await client.completions.create(**ASKED, prompt="a", stream=True)
            with pytest.raises(openai.APIError, match="whoever computed it is lost"):
                assert [event.choices[0].text async for event in stream] == "never"
            answer = await client.completions.create(**ASKED, prompt="a")
            assert answer.choices[0].text == "b"

    asyncio.run(story())
    assert len(models.asked) == 4


def test_memory_that_nobody_has_free_is_a_429_with_a_time_to_come_back(serve: Callable[..., Served]) -> None:
    async def story(served: Served) -> None:
        app = open_app(served)
        long = b'{"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 4}'
        first, second = Call(app, "/v1/completions", (long,)), Call(app, "/v1/completions", (long,))
        running = asyncio.create_task(first.run())
        await first.until(1)
        await second.run()
        assert (second.status, int(second.answer_headers["retry-after"]) >= 1) == (429, True)
        assert second.error["kvcluster"]["retry_after_s"] > 0
        first.gone.set()
        await running
        await served.idle()

    asyncio.run(story(serve(max_num_seqs=4, max_num_waiting=0)))


@pytest.mark.parametrize("stream", ["true", "false"])
def test_the_memory_of_a_client_that_goes_away_is_free_again(serve: Callable[..., Served], stream: str) -> None:
    async def story(served: Served) -> None:
        body = (
            b'{"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": %s}' % stream.encode()
        )
        call = Call(open_app(served), "/v1/completions", (body,))
        running = asyncio.create_task(call.run())
        async with asyncio.timeout(60):
            while not served.service.statistics().running:
                await asyncio.sleep(0.001)
        call.gone.set()
        await running
        await served.idle()
        assert served.service.statistics().generated_tokens < 400

    asyncio.run(story(serve()))
