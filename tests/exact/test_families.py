"""In float32 a request's text is that of generate(), through the request service on a LocalDevice, whatever happens.

Four families: full attention, with normed queries and keys, sliding windows in all layers, and in some.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest

from kvcluster import Layout
from kvcluster.geometry.residency import Keeps
from kvcluster.services.completion import answers_among
from kvcluster.testing.models import WINDOW_TOKENS
from tests.exact.subject import Subject, greedy
from tests.request.world import GRANULE_BYTES, Results, World

Subjects = Callable[..., Subject]
Worlds = Callable[..., World]

NEW_TOKENS = 40
PROMPTS = tuple(
    tuple(2 + (7 * i + 13 * j + j * j * i) % 500 for j in range(count))
    for i, count in enumerate((1, 5, 11, 12, 13, 29, 40, 90))
)
"""On both sides of the window, and far beyond it."""

families = pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3"])
sliding_families = pytest.mark.parametrize("family", ["mistral", "gemma3"])
layouts = pytest.mark.parametrize("layout", [Layout.TOKEN_MAJOR, Layout.SEQ_MAJOR])
families_in_turns = pytest.mark.parametrize(  # each once; what is new in a test is neither family nor layout
    ("family", "layout"),
    [
        ("llama", Layout.TOKEN_MAJOR),
        ("qwen3", Layout.SEQ_MAJOR),
        ("mistral", Layout.SEQ_MAJOR),
        ("gemma3", Layout.TOKEN_MAJOR),
    ],
)


def roomy(subject: Subject, layout: Layout) -> int:
    """Granules for all prompts at once."""
    return sum(granules(subject, layout, len(prompt) + NEW_TOKENS + 16) for prompt in PROMPTS)


def short(subject: Subject, layout: Layout) -> int:
    """Granules for the longest text and little beside it."""
    return granules(subject, layout, len(PROMPTS[-1]) + NEW_TOKENS + 32)


def granules(subject: Subject, layout: Layout, tokens: int) -> int:
    return subject.shape(layout).committed_bytes(tokens) // GRANULE_BYTES


@families
def test_the_texts_wanted_would_show_a_fault(family: str, subject: Subjects) -> None:
    texts = [answer.text for answer in subject(family).wanted(PROMPTS, NEW_TOKENS).values()]
    assert len(set(texts)) == len(PROMPTS)
    assert min(len(set(text)) for text in texts) >= 15
    assert max(len(prompt) for prompt in PROMPTS) > 4 * WINDOW_TOKENS


@families
@layouts
def test_eight_prompts_at_once_get_the_texts_of_generate(
    family: str, layout: Layout, subject: Subjects, worlds: Worlds
) -> None:
    one = subject(family)
    world = worlds(one, granules=roomy(one, layout), layout=layout)
    service = world.open()
    assert world.run(service, greedy(PROMPTS, NEW_TOKENS)) == one.wanted(PROMPTS, NEW_TOKENS)
    assert service.statistics().preemptions == 0


@families_in_turns
def test_arriving_at_different_steps_changes_no_text(
    family: str, layout: Layout, subject: Subjects, worlds: Worlds
) -> None:
    one = subject(family)
    service = (world := worlds(one, granules=roomy(one, layout), layout=layout)).open(prefill_chunk_tokens=7)
    results: Results = {}
    for steps, (key, request) in zip(cycle((1, 3, 7)), greedy(PROMPTS, NEW_TOKENS).items(), strict=False):
        service.submit(key, request)
        for _ in range(steps):
            service.step()
        results.update(answers_among(service.said()))
    assert results | world.finish([service])[0] == one.wanted(PROMPTS, NEW_TOKENS)


@families_in_turns
def test_a_stride_that_does_not_divide_the_granule_changes_no_text(
    family: str, layout: Layout, subject: Subjects, worlds: Worlds
) -> None:
    one = subject(family, head_dim=40)
    assert all(GRANULE_BYTES % group.stride_bytes for group in one.shape(layout).groups)
    world = worlds(one, granules=roomy(one, layout), layout=layout)
    assert world.run(world.open(), greedy(PROMPTS, NEW_TOKENS)) == one.wanted(PROMPTS, NEW_TOKENS)


@families_in_turns
def test_memory_so_short_that_requests_are_preempted_changes_no_text(
    family: str, layout: Layout, subject: Subjects, worlds: Worlds
) -> None:
    one = subject(family)
    world = worlds(one, granules=short(one, layout), layout=layout)
    service = world.open(margin_steps=1)
    assert world.run(service, greedy(PROMPTS, NEW_TOKENS)) == one.wanted(PROMPTS, NEW_TOKENS)
    assert service.statistics().preemptions > 0


@families_in_turns
def test_two_services_on_one_device_too_small_for_both_finish_with_the_texts_of_generate(
    family: str, layout: Layout, subject: Subjects, worlds: Worlds
) -> None:
    one = subject(family)
    world = worlds(one, granules=short(one, layout), layout=layout)
    services = [world.open(margin_steps=1), world.open(margin_steps=1)]
    for key, request in greedy(PROMPTS, NEW_TOKENS).items():
        services[key % 2].submit(key, request)
    first, second = world.finish(services)
    assert first | second == one.wanted(PROMPTS, NEW_TOKENS)
    assert sum(service.statistics().preemptions for service in services) > 0


@sliding_families
@pytest.mark.parametrize(
    ("chunk_tokens", "layout"),
    [(1, Layout.TOKEN_MAJOR), (5, Layout.SEQ_MAJOR), (11, Layout.TOKEN_MAJOR), (11, Layout.SEQ_MAJOR)],
)
def test_windows_that_go_round_their_rings_change_no_text(
    family: str, layout: Layout, chunk_tokens: int, subject: Subjects, worlds: Worlds
) -> None:
    one = subject(family)
    world = worlds(one, granules=roomy(one, layout), layout=layout)
    service = world.open(prefill_chunk_tokens=chunk_tokens)
    assert world.run(service, greedy(PROMPTS, NEW_TOKENS)) == one.wanted(PROMPTS, NEW_TOKENS)
    assert laps(one, layout, chunk_tokens) > 1.5


def laps(subject: Subject, layout: Layout, chunk_tokens: int) -> float:
    """How often the longest text goes round the first ring."""
    shape = subject.shape(layout, chunk_tokens=chunk_tokens)
    ring = next(group for group in shape.groups if group.keeps is Keeps.RING)
    return (len(PROMPTS[-1]) + NEW_TOKENS) * ring.stride_bytes / (ring.windows * GRANULE_BYTES)
