from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.services.completion import Completion, CompletionRequest, Refused
from tests.request.conftest import PROMPTS
from tests.request.world import World

Worlds = Callable[..., World]
GOOD = CompletionRequest(PROMPTS[0], max_tokens=8, temperature=0)

BAD = {
    "an empty text": (CompletionRequest(""), "prompt is empty"),
    "no tokens": (CompletionRequest(()), "prompt is empty"),
    "a token beyond the vocabulary": (CompletionRequest((5, 512)), "prompt holds token 512"),
    "a negative token": (CompletionRequest((-1,)), "prompt holds token -1"),
    "half a character": (CompletionRequest("a\ud800"), "lone surrogate"),
    "max_tokens 0": (CompletionRequest((5,), max_tokens=0), "max_tokens is 0"),
    "max_tokens below 0": (CompletionRequest((5,), max_tokens=-3), "max_tokens is -3"),
    "a negative temperature": (CompletionRequest((5,), temperature=-1), "temperature"),
    "top_p 0": (CompletionRequest((5,), top_p=0), "top_p"),
    "an empty stop string": (CompletionRequest((5,), stop=("",)), "stop string"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_makes_no_sense_is_refused_alone(worlds: Worlds, name: str) -> None:
    request, sentence = BAD[name]
    world = worlds(granules=40)
    results = world.run(world.open(), {1: request, 2: GOOD})
    refused = results[1]
    assert isinstance(refused, Refused)
    assert (refused.status_code, refused.code) == (400, "invalid_value")
    assert sentence in refused.message
    assert isinstance(results[2], Completion)


def test_a_prompt_beyond_the_model_s_context_is_refused_with_both_figures(worlds: Worlds) -> None:
    world = worlds(granules=40)
    results = world.run(world.open(), {1: CompletionRequest((5,) * 8000, max_tokens=193), 2: GOOD})
    assert results[1] == Refused(
        400,
        "context_length_exceeded",
        "prompt has 8000 tokens and max_tokens is 193: 8193 together, and the model's context is 8192 tokens",
    )
    assert isinstance(results[2], Completion)


def test_what_never_fits_the_device_is_refused_with_need_and_capacity_and_blocks_nobody(worlds: Worlds) -> None:
    world = worlds(granules=10)
    results = world.run(world.open(), {1: GOOD, 2: CompletionRequest((5,) * 60, max_tokens=40), 3: GOOD})
    assert results[2] == Refused(
        400,
        "context_length_exceeded",
        f"prompt and max_tokens need {13 * 4096} bytes of KV memory, and the device has {10 * 4096} bytes",
        need_bytes=13 * 4096,
        free_bytes=10 * 4096,
    )
    assert isinstance(results[1], Completion)
    assert results[1] == results[3]


def test_what_fits_to_the_last_granule_is_served(worlds: Worlds) -> None:
    world = worlds(granules=13)
    results = world.run(world.open(), {1: CompletionRequest((5,) * 60, max_tokens=44, ignore_eos=True)})
    assert isinstance(results[1], Completion)
    assert results[1].completion_tokens == 44


def test_a_key_in_use_is_refused_and_one_that_is_over_is_not(worlds: Worlds) -> None:
    world = worlds(granules=40)
    service = world.open()
    service.submit(1, GOOD)
    with pytest.raises(ValueError, match="request 1 is not over"):
        service.submit(1, GOOD)
    first = world.finish([service])[0]
    assert world.run(service, {1: GOOD}) == first
