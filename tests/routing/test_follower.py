"""Whoever follows an index by its events knows exactly its blocks, whatever becomes of answers on the way."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcluster.index.events import NAME_BYTES, names_in
from kvcluster.index.prefix_index import PrefixIndex
from kvcluster.index.token_chain import BLOCK_TOKENS, packed
from kvcluster.services.known_blocks import NEVER, KnownBlocks
from kvcluster.services.routing import Follower, KnownPrefixes
from tests.examples import examples

ROOTS = st.sampled_from([b"r" * 32, b"o" * 32])
IDS = st.lists(st.sampled_from([0, 1]), max_size=4).map(lambda bits: [bit for bit in bits for _ in range(BLOCK_TOKENS)])


class FollowerMachine(RuleBasedStateMachine):
    """An index that restarts now and then, and one that follows; answers wait on the way, and come as they like."""

    @initialize()
    def begin(self) -> None:
        self.epoch, self.numbers = 1, 0
        self.index = PrefixIndex()
        self.known = KnownPrefixes(clock=lambda: 0.0)
        self.follower = Follower("one", self.known)
        self.others: set[bytes] = set()  # what another device knows, which is not asked again
        self.on_the_way: list[KnownBlocks] = []

    def answer(self) -> KnownBlocks:
        number = self.follower.number if self.follower.epoch == self.epoch else NEVER
        return KnownBlocks(self.epoch, self.index.log.since(number), free_bytes=0)

    @rule(root=ROOTS, ids=IDS, tail=st.integers(0, 3))
    def insert(self, root: bytes, ids: list[int], tail: int) -> None:
        self.numbers += 1
        self.index.insert(root, packed([*ids, *[5] * tail]), self.numbers)

    @precondition(lambda self: len(self.index))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.index.remove(data.draw(st.sampled_from(sorted(self.index))))

    @rule()
    def restart(self) -> None:
        self.epoch += 1
        self.index = PrefixIndex()

    @rule()
    def ask(self) -> None:
        self.on_the_way.append(self.answer())

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), again=st.booleans())
    def arrive(self, data: st.DataObject, again: bool) -> None:
        place = data.draw(st.integers(0, len(self.on_the_way) - 1))
        self.follower.take(self.on_the_way[place] if again else self.on_the_way.pop(place))

    @rule()
    def lose_touch(self) -> None:
        self.follower.lost()
        assert not self.known.known_at("one")

    @rule()
    def another_device_knows_as_much(self) -> None:
        news = self.index.log.since(NEVER)
        self.known.has_only("other", news.stored)
        self.others = set(names_in(news.stored))

    @rule()
    def catch_up(self) -> None:
        assert self.follower.take(self.answer()), "an answer to the question of now counts"
        assert self.known.known_at("one") == set(names_in(self.index.log.since(NEVER).stored))
        assert self.known.known_at("other") == self.others
        assert len(self.known) == len(self.known.known_at("one") | self.others)
        assert all(len(name) == NAME_BYTES for name in self.known.known_at("one"))

    @invariant()
    def the_log_knows_the_blocks_of_the_trees(self) -> None:
        assert len(self.index.log) == self.index.blocks

    def teardown(self) -> None:
        if hasattr(self, "follower"):
            self.catch_up()


TestFollower = FollowerMachine.TestCase
TestFollower.settings = settings(max_examples=examples(60), stateful_step_count=25)
