"""Which prefixes begin with these tokens: exact to the token, against plain lists, and whatever digests collide."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcluster.ids import RequestId
from kvcluster.index import prefix_index, token_chain
from kvcluster.index.prefix_index import MOST_SEEN, Match, PrefixIndex
from kvcluster.index.token_chain import BLOCK_TOKENS, packed
from tests.examples import examples

ROOT, OTHER = b"r" * 32, b"o" * 32
LONG = list(range(100, 100 + 5 * BLOCK_TOKENS))


def _first(index: PrefixIndex, ids: list[int], root: bytes = ROOT) -> Match | None:
    return next(index.matches(root, packed(ids)), None)


@pytest.mark.parametrize("tokens", [1, 5, 15, 16, 17, 31, 32, 33, 79, 80])
@pytest.mark.parametrize("asked", [1, 15, 16, 17, 32, 40, 80])
def test_a_match_is_exact_to_the_token(tokens: int, asked: int) -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG[:tokens]), 1)
    assert _first(index, [*LONG[:asked], 7]) == Match(1, min(tokens, asked))


def test_tokens_that_differ_in_the_first_match_nothing() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG), 1)
    assert _first(index, [7, *LONG[1:]]) is None
    assert _first(index, []) is None


def test_the_prefix_with_most_of_the_tokens_comes_first_and_then_those_that_end_inside() -> None:
    index = PrefixIndex()
    for number, tokens in enumerate((20, 48, 70), start=1):
        index.insert(ROOT, packed(LONG[:tokens]), number)
    found = list(index.matches(ROOT, packed([*LONG[:60], 7])))
    assert found[0] == Match(3, 60)
    assert Match(2, 48) in found
    assert found[-1] == Match(1, 20)


def test_of_prefixes_that_share_as_much_the_newest_comes_first() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed([*LONG[:32], 1]), 1)
    index.insert(ROOT, packed([*LONG[:32], 2]), 2)
    assert _first(index, [*LONG[:32], 3]) == Match(2, 32)


class Sliced(bytes):
    """Ids that count how many of their bytes are copied out."""

    copied = 0

    def __getitem__(self, place: Any) -> Any:
        part = super().__getitem__(place)
        self.copied += len(part) if isinstance(part, bytes) else 1
        return part


@pytest.mark.parametrize("tokens", [40 * BLOCK_TOKENS, 2_000 * BLOCK_TOKENS])
def test_all_matches_of_a_prompt_copy_no_more_of_it_when_it_is_longer(tokens: int) -> None:
    """A chat that goes on: what is found ends a little before the prompt does."""
    index, chat = PrefixIndex(), list(range(tokens))
    for number, turn in enumerate((tokens // 4 + 3, tokens // 2 + 5, tokens - 40), start=1):
        index.insert(ROOT, packed(chat[:turn]), number)
    ids = Sliced(packed(chat))
    assert {match.number for match in index.matches(ROOT, ids)} == {1, 2, 3}
    assert ids.copied <= BLOCK_TOKENS * token_chain.ID_BYTES


def test_a_prefix_that_is_built_on_another_is_found_beyond_it() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG[:32]), 1)
    index.insert(ROOT, packed(LONG[:70]), 2, base_tokens=32)
    assert _first(index, LONG[:32]) == Match(1, 32)
    assert _first(index, LONG) == Match(2, 70)
    index.remove(2)
    assert _first(index, LONG) == Match(1, 32)


def test_another_root_knows_nothing_of_it() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG), 1)
    assert _first(index, LONG, OTHER) is None
    index.insert(OTHER, packed(LONG), 2)
    assert (_first(index, LONG), _first(index, LONG, OTHER)) == (Match(1, 80), Match(2, 80))


def test_digests_that_collide_never_serve_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneDigest:
        def __init__(self, data: bytes) -> None:
            self._digest = bytes([len(data) % 2])

        def digest(self) -> bytes:
            return self._digest

    monkeypatch.setattr(token_chain, "sha256", OneDigest)
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG[:32]), 1)
    assert _first(index, [9] * 32) is None
    assert _first(index, [*LONG[:16], *[9] * 16]) == Match(1, 16)


def test_a_number_that_is_listed_is_refused_and_changes_nothing() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG[:20]), 1)
    with pytest.raises(ValueError, match="listed already"):
        index.insert(ROOT, packed(LONG), 1)
    assert _first(index, LONG) == Match(1, 20)


def test_the_content_of_a_prefix_is_that_of_all_its_tokens() -> None:
    index = PrefixIndex()
    contents = {index.insert(ROOT, packed(LONG[:n]), n) for n in range(1, 50)}
    assert len(contents) == 49
    again = PrefixIndex().insert(ROOT, packed(LONG[:33]), 7, base_tokens=16)
    assert again in contents


ONE, TWO = RequestId("s", 1), RequestId("s", 2)


def test_what_another_request_computed_is_known_in_whole_blocks_and_what_one_computed_oneself_is_not() -> None:
    index = PrefixIndex()
    index.note(ROOT, packed(LONG[:40]), ONE)
    assert index.known(ROOT, packed(LONG), TWO) == 32
    assert index.known(ROOT, packed(LONG), ONE) == 0
    assert index.known(ROOT, packed([7, *LONG[1:]]), TWO) == 0
    assert index.known(OTHER, packed(LONG), TWO) == 0
    assert _first(index, LONG) is None


def test_what_two_requests_computed_is_known_to_both() -> None:
    index = PrefixIndex()
    index.note(ROOT, packed(LONG), ONE)
    index.note(ROOT, packed(LONG[:40]), TWO)
    assert (index.known(ROOT, packed(LONG), ONE), index.known(ROOT, packed(LONG), TWO)) == (32, 80)


def test_what_was_computed_long_ago_is_forgotten() -> None:
    index = PrefixIndex()
    index.note(ROOT, packed(LONG), ONE)
    for start in range(0, MOST_SEEN + 5, 64):
        index.note(OTHER, packed([start, *range(64 * BLOCK_TOKENS - 1)]), ONE)
    assert index.known(ROOT, packed(LONG), TWO) == 0


def test_one_open_request_at_a_time_is_to_publish_a_beginning() -> None:
    index = PrefixIndex()
    assert index.claim(ROOT, packed(LONG[:32]), ONE)
    assert index.claim(ROOT, packed(LONG[:32]), ONE)
    assert not index.claim(ROOT, packed(LONG[:32]), TWO)
    assert index.claim(ROOT, packed(LONG[:48]), TWO)
    assert set(index.claiming) == {ONE, TWO}
    index.ended(ONE)
    index.ended(ONE)
    assert index.claim(ROOT, packed(LONG[:32]), TWO)
    assert set(index.claiming) == {TWO}


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 80])
@pytest.mark.parametrize("base_tokens", [0, 10, 16, 64])
def test_the_index_says_how_many_tokens_a_prefix_has(tokens: int, base_tokens: int) -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG[:tokens]), 3, base_tokens=base_tokens)
    assert ([*index], index.tokens_of(3)) == ([3], tokens)


class PrefixIndexMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.index = PrefixIndex()
        self.model: dict[int, tuple[bytes, list[int]]] = {}
        self.last = 0

    @rule(
        root=st.sampled_from([ROOT, OTHER]),
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=2 * BLOCK_TOKENS + 3),
        copies=st.integers(0, 3),
    )
    def insert(self, root: bytes, ids: list[int], copies: int) -> None:
        self.last += 1
        tokens = [0] * BLOCK_TOKENS * copies + ids
        self.index.insert(root, packed(tokens), self.last)
        self.model[self.last] = root, tokens

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model)))
        self.index.remove(number)
        self.index.remove(number)
        del self.model[number]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), extra=st.lists(st.integers(0, 1), max_size=5))
    def look(self, data: st.DataObject, extra: list[int]) -> None:
        root, tokens = self.model[data.draw(st.sampled_from(sorted(self.model)))]
        asked = tokens[: data.draw(st.integers(0, len(tokens)))] + extra
        found = list(self.index.matches(root, packed(asked)))
        for match in found:
            of_root, listed = self.model[match.number]
            assert of_root == root
            assert match.tokens <= _common(listed, asked)
        best = max((_common(t, asked) for r, t in self.model.values() if r == root), default=0)
        assert max((match.tokens for match in found), default=0) >= best // BLOCK_TOKENS * BLOCK_TOKENS
        if len(self.model) <= prefix_index.MOST_LOOKED_AT:
            assert (found[0].tokens if found else 0) == best
        ends = {n for n, (r, t) in self.model.items() if r == root and asked[: len(t)] == t}
        assert ends <= {match.number for match in found}

    @invariant()
    def nothing_is_there_without_a_reason(self) -> None:
        if hasattr(self, "model"):
            assert len(self.index) == len(self.model)
            chains = {(r, bytes(t[: n + BLOCK_TOKENS])) for r, t in self.model.values() for n in _starts(t)}
            assert self.index.blocks == len(chains)


def _starts(tokens: list[int]) -> range:
    return range(0, len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS)


def _common(one: list[int], other: list[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


TestPrefixIndexModel = PrefixIndexMachine.TestCase
TestPrefixIndexModel.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
