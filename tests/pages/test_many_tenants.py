"""Host pages of many tenants: what goes next depends on its use and not on whose it is, and nobody who left costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import pytest

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import OutOfBudget
from kvcluster.services.pages.retained import MOST_EMPTY, RetainedBlocks
from kvcluster.services.tenant_line import TenantLine
from kvcluster.wire import messages as wire
from tests.pages.frames import PageHost, page_host
from tests.pages.world import PITCH_BYTES, SIZE

PROMPT = list(range(40, 40 + 2 * SIZE))
OTHER = list(range(90, 90 + 2 * SIZE))


def serve(host: PageHost, tenant: str, prompt: Sequence[int] = PROMPT) -> None:
    """A request of two blocks, which stay."""
    sequence = host.client(tenant).open(max_tokens=3 * SIZE)
    sequence.find(prompt)
    sequence.close(len(prompt))


def found(host: PageHost, tenant: str, prompt: Sequence[int] = PROMPT) -> int:
    """Tokens that are there for it."""
    sequence = host.client(tenant).open(max_tokens=3 * SIZE)
    [answer] = sequence.client.ask(sequence.find_op([*prompt, 1]))
    sequence.close()
    assert isinstance(answer, wire.Paged)
    return answer.tokens


@contextmanager
def calls() -> Iterator[list[int]]:
    """How many functions of ours are called in the block: work, and not time."""
    count, before = [0], sys.getprofile()

    def note(frame: FrameType, event: str, _: object) -> None:
        count[0] += event == "call" and "/kvcluster/" in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(before)


def test_newcomers_evict_what_was_used_once_long_ago_and_not_what_is_used_all_the_time() -> None:
    """The tenant that came first has the prefix that everybody wants."""
    with page_host(blocks=16) as host:
        for _ in range(20):
            serve(host, "hot")
        for number in range(6):
            serve(host, f"once{number}")
        serve(host, "hot")
        for number in range(3):
            serve(host, f"new{number}")
        assert found(host, "hot") == len(PROMPT)
        assert [found(host, f"once{number}") for number in range(3)] == [0, 0, len(PROMPT)]
        assert [found(host, f"new{number}") for number in range(3)] == 3 * [len(PROMPT)]


def test_an_eviction_costs_the_same_after_few_tenants_and_after_many() -> None:
    with page_host(blocks=16) as host:
        work = []
        for tenants in (range(20), range(20, 150)):
            for number in tenants:
                serve(host, f"t{number}")
            evictions = host.seen().evictions
            with calls() as count:
                for number in range(10):
                    serve(host, f"{tenants}{number}")
            assert host.seen().evictions == evictions + 20
            work.append(count[0])
        assert work[1] <= 1.1 * work[0]


def test_of_tenants_without_a_block_no_more_than_so_many_are_remembered() -> None:
    blocks = RetainedBlocks()
    for number in range(MOST_EMPTY + 50):
        tenant, content = f"t{number}", b"%d" % number
        blocks.used(tenant, [content])
        blocks.idle(tenant, [content])
        assert blocks.first_unnamed() == tenant
        blocks.gone(tenant, content)
        assert blocks.first_unnamed() is None
    assert blocks.tenants == [f"t{number}" for number in range(50, MOST_EMPTY + 50)]


def test_a_tenant_that_a_quota_names_stands_in_no_line_and_gives_up_its_own_alone() -> None:
    with page_host(blocks=16, quotas=Quotas({"acme": 4 * PITCH_BYTES})) as host:
        for prompt in (PROMPT, OTHER):
            serve(host, "acme", prompt)
        for number in range(20):
            serve(host, f"t{number}")
        assert [found(host, "acme", prompt) for prompt in (PROMPT, OTHER)] == 2 * [len(PROMPT)]
        serve(host, "acme", [*OTHER[::-1]])
        assert [found(host, "acme", prompt) for prompt in (PROMPT, OTHER)] == [0, len(PROMPT)]
        assert host.seen().tenants["acme"] == 4 * PITCH_BYTES


@pytest.mark.parametrize("polls", [0, 6])
def test_finds_that_are_refused_make_nothing_popular(polls: int) -> None:
    """Of two prompts of one tenant the one that was used first goes first, however often it was asked for in vain."""
    with page_host(blocks=16) as host:
        for prompt in (PROMPT, OTHER):
            serve(host, "", prompt)
        hog = host.client("hog").open(max_tokens=12 * SIZE)
        hog.grow(12 * SIZE)
        before = host.picture()
        for _ in range(polls):
            sequence = host.client().open()
            with pytest.raises(OutOfBudget):
                sequence.client.ask(sequence.find_op([*PROMPT, 1]), *sequence.grow_ops(5 * SIZE))
            sequence.close()
        assert host.picture() == before
        serve(host, "new", [*PROMPT[::-1]])
        assert [found(host, "", prompt) for prompt in (PROMPT, OTHER)] == [0, len(OTHER)]
        hog.close()


def test_who_is_at_the_head_of_a_line_is_looked_at_again_and_nobody_else() -> None:
    line, since = TenantLine(), {"one": 1, "two": 2, "three": 3}
    looked: list[str] = []

    def since_of(tenant: str) -> int | None:
        looked.append(tenant)
        return since.get(tenant)

    for tenant, time in since.items():
        line.join(tenant, time)
        line.join(tenant, time + 9)
    assert line.first(since_of) == "one"
    assert looked == ["one"]
    since["one"] = 5
    assert line.first(since_of) == "two"
    del since["two"], since["three"]
    assert line.first(since_of) == "one"
    del since["one"]
    assert line.first(since_of) is None
    line.join("two", 7)
    since["two"] = 7
    assert line.first(since_of) == "two"
