"""The index of pages against a plain dict from tokens to blocks, whatever comes, gives way, goes, and collides."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvcluster.index import token_chain
from kvcluster.index.block_index import MOST_LOOKED_AT, BlockIndex, Listing
from kvcluster.index.token_chain import common_tokens, packed
from tests.examples import examples

SIZE = 3
ROOTS = st.sampled_from([b"r" * 32, b"o" * 32])
IDS = st.lists(st.integers(0, 1), max_size=5 * SIZE)

Place = tuple[bytes, tuple[int, ...]]  # the root, and all tokens up to a block's end


class BlockIndexMachine(RuleBasedStateMachine):
    """Digests are those of sha256: all that is listed is found."""

    lists_all = True

    @initialize()
    def begin(self) -> None:
        self.index = BlockIndex(SIZE)
        self.model: dict[Place, int] = {}
        self.last = 0

    @rule(root=ROOTS, ids=IDS, soft=st.sets(st.integers(1, 40)))
    def insert(self, root: bytes, ids: list[int], soft: set[int]) -> None:
        blocks = [self.last + place + 1 for place in range(len(ids) // SIZE)]
        self.last += len(blocks)
        listing = self.index.insert(root, packed(ids), blocks, gives_way=lambda block: block in soft)
        expected = self.listing(root, ids, blocks, soft)
        if self.lists_all:
            assert listing == expected
        assert listing.new == expected.new[: len(listing.new)]
        assert listing.gone == expected.gone[: len(listing.gone)]
        for block in listing.new:
            self.model[root, tuple(ids[: (blocks.index(block) + 1) * SIZE])] = block

    def listing(self, root: bytes, ids: list[int], blocks: list[int], soft: set[int]) -> Listing:
        new, gone = [], []
        for place, block in enumerate(blocks):
            before = self.model.get((root, tuple(ids[: (place + 1) * SIZE])))
            if before is not None and before not in soft:
                break
            gone += [] if before is None else [before]
            new.append(block)
        return Listing(tuple(new), tuple(gone))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.model)))
        if not self.behind(place):
            self.index.remove(self.model.pop(place))
            return
        with pytest.raises(ValueError, match="followed"):
            self.index.remove(self.model[place])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), most=st.integers(1, 9))
    def let_go(self, data: st.DataObject, most: int) -> None:
        place = data.draw(st.sampled_from(sorted(self.model)))
        for block, _ in zip(self.index.going(self.model[place]), range(most), strict=False):
            [goes] = [other for other, there in self.model.items() if there == block]
            assert goes[0] == place[0]
            assert goes[1][: len(place[1])] == place[1]
            assert not self.behind(goes)
            self.index.remove(self.model.pop(goes))

    def behind(self, place: Place) -> list[Place]:
        root, ids = place
        return [(r, i) for r, i in self.model if r == root and len(i) == len(ids) + SIZE and i[: len(ids)] == ids]

    @rule(root=ROOTS, ids=IDS)
    def look(self, root: bytes, ids: list[int]) -> None:
        found = self.index.look_up(root, packed(ids))
        blocks = []
        for end in range(SIZE, len(ids) + 1, SIZE):
            if (root, tuple(ids[:end])) not in self.model:
                break
            blocks.append(self.model[root, tuple(ids[:end])])
        assert list(found.blocks) == blocks
        start = len(blocks) * SIZE
        choices = {self.model[place]: place[1][start:] for place in self.behind((root, tuple(ids[:start])))}
        shared = {block: common_tokens(packed(more), packed(ids[start:])) for block, more in choices.items()}
        assert shared.get(found.partial, 0) == found.partial_tokens
        if len(choices) <= MOST_LOOKED_AT:
            assert found.partial_tokens == max(shared.values(), default=0)

    @invariant()
    def what_is_listed_is_in_the_model_and_what_comes_before_it_too(self) -> None:
        if hasattr(self, "model"):
            assert len(self.index) == len(self.model)
            assert all(block in self.index for block in self.model.values())
            assert self.index.roots == len({root for root, _ in self.model})
            assert all(len(ids) == SIZE or (root, ids[:-SIZE]) in self.model for root, ids in self.model)


class CollidingMachine(BlockIndexMachine):
    """There are 8 digests: not all is listed, and what is listed is found as if nothing collided."""

    lists_all = False


class OneOfEight:
    def __init__(self, data: bytes) -> None:
        self._digest = bytes([sha256(data).digest()[0] % 8])

    def digest(self) -> bytes:
        return self._digest


SETTINGS = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestBlockIndexModel = BlockIndexMachine.TestCase
TestBlockIndexModel.settings = SETTINGS


def test_digests_that_collide_serve_nobody_elses_tokens_whatever_is_listed() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_chain, "sha256", OneOfEight)
        run_state_machine_as_test(CollidingMachine, settings=SETTINGS)  # type: ignore[no-untyped-call]
