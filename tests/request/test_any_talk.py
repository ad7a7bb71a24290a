"""Requests that come, stream, and are cancelled at any moment: each caller hears what he is to hear, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, CompletionRequest, Refused, Telling
from kvcluster.services.request.settings import Fallback
from tests.request.asking import asked, prompt
from tests.request.told import Told, listen, told
from tests.request.world import World

REQUESTS = tuple(
    asked(prompt(key, 8 + 5 * key), 10 + 6 * key, n=1 + key % 2, temperature=0.8, seed=key) for key in range(5)
)
PLACES: dict[str, dict[str, Any]] = {
    "short device": {"granules": 14},
    "short device beside host pages": {"granules": 14, "blocks": 40, "fallback": Fallback.HOST},
    "a device that sends away": {"granules": 14, "fallback": Fallback.REFUSE},
    "few may wait": {"granules": 14, "max_num_waiting": 1, "max_num_seqs": 2},
}
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 4)),
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("take"), st.just(0)),
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def alone(model: Model, tokenizer: Tokenizer) -> dict[int, Completion | Refused]:
    """What each request says in a world of its own."""
    world = World(model, tokenizer, granules=400)
    said = world.run(world.open(), dict(enumerate(REQUESTS)))
    world.close()
    return said


@pytest.mark.parametrize("place", PLACES)
@given(acts=ACTS)
def test_each_life_of_a_key_hears_its_whole_answer_or_nothing_after_its_cancel(
    model: Model,
    tokenizer: Tokenizer,
    alone: dict[int, Completion | Refused],
    place: str,
    acts: list[tuple[str, int]],
) -> None:
    settings = dict(PLACES[place])
    parts = {name: settings.pop(name) for name in ("granules", "blocks") if name in settings}
    world = World(model, tokenizer, **parts)
    service = world.open(**settings)
    heard: dict[int, Told] = {}
    for act, count in acts:
        if act == "step":
            for _ in range(count):
                service.step()
        elif act == "take":
            listen(heard, [service])
        elif act == "cancel":
            service.cancel(count)
            service.step()  # its cancel is heard
            heard.pop(count, None)
        elif is_free(heard, count):
            heard[count] = Told()
            service.submit(count, streaming(REQUESTS[count]))
    told(world, [service], heard)
    for key, each in heard.items():
        if isinstance(each.whole, Completion):
            assert each.whole == alone[key]
        else:
            assert each.whole.status_code == 429
            assert (each.begun, each.deltas) == ([], [])
    world.close()


def streaming(request: CompletionRequest) -> CompletionRequest:
    return replace(request, tells=Telling.PARTS)


def is_free(heard: dict[int, Told], key: int) -> bool:
    """Nobody waits for the answer of an earlier request."""
    return key not in heard or heard[key].answer is not None
