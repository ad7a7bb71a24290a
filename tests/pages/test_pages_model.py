"""Host pages against plain lists: several clients, forks, beams, hits, deaths; every row is checked after each act."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcluster.errors import KvClusterError, NeverFits, OutOfBudget
from kvcluster.services.pages.asks import Fork, Permute
from tests.examples import examples
from tests.pages.world import OTHER, ROOT, SIZE, Writer, small_pages

PROMPTS = [[1] * 9, [1] * 5 + [2] * 6, [1] * 12, [3] * 4, [1] * 8 + [4] * 3, [2]]


class PagesMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(3, 20))
    def begin(self, blocks: int) -> None:
        self.opened = ExitStack()
        self.pages = self.opened.enter_context(small_pages(blocks))
        self.ports = [self.pages.open_port(), self.pages.open_port()]
        self.writers: list[Writer] = []
        self.orphans: list[str] = []  # sessions whose processes live
        self.orphaned_writers: list[Writer] = []  # theirs, which may be in the middle of a step

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            for writer in self.writers:
                writer.end()
            for session in self.orphans:
                self.pages.service.gone(session)
            books = self.pages.audit()
            assert books.free_bytes + books.retained_bytes == books.capacity_bytes
            self.opened.close()

    @rule(client=st.integers(0, 1), prompt=st.sampled_from(PROMPTS), root=st.sampled_from([ROOT, OTHER]))
    def start(self, client: int, prompt: list[int], root: bytes) -> None:
        writer = Writer(self.ports[client], root=root)
        try:
            joined = writer.begin(prompt, room=1)
        except (OutOfBudget, NeverFits):
            writer.end()
        else:
            assert joined < len(prompt)
            self.writers.append(writer)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 3), min_size=1, max_size=SIZE + 1))
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        with suppress(OutOfBudget, NeverFits):
            writer.append(tokens)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.writers)).publish()

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), n=st.integers(1, 3))
    def fork(self, data: st.DataObject, n: int) -> None:
        parent = data.draw(st.sampled_from(self.writers))
        free = self.pages.statistics().free_blocks
        children = [Writer(parent.port, root=parent.root) for _ in range(n)]
        ask = Fork(parent.memory, tuple(child.memory for child in children), len(parent.tokens))
        parent.port.one(ask)
        assert self.pages.statistics().free_blocks >= free  # what the parent had ahead of its tokens goes back
        for child in children:
            child.tokens, child.told = list(parent.tokens), min(parent.told, len(parent.tokens))
        self.writers += children

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def permute(self, data: st.DataObject) -> None:
        leader = data.draw(st.sampled_from(self.writers))
        length, port = len(leader.tokens), leader.port
        beams = [w for w in self.writers if (w.port, w.root, len(w.tokens)) == (port, leader.root, length)]
        parents = data.draw(st.lists(st.integers(0, len(beams) - 1), min_size=len(beams), max_size=len(beams)))
        port.one(Permute(leader.memory, tuple(b.memory for b in beams), tuple(parents), length))
        before = [(list(beam.tokens), beam.told) for beam in beams]
        for beam, parent in zip(beams, parents, strict=True):
            beam.tokens, beam.told = list(before[parent][0]), before[parent][1]

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), retain=st.booleans())
    def end(self, data: st.DataObject, retain: bool) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        self.writers.remove(writer)
        writer.end(retain=retain)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        assert writer.shed().error is None
        tokens, writer.tokens = writer.tokens, []
        try:
            writer.begin(tokens)
        except KvClusterError:
            self.writers.remove(writer)
            writer.end()

    @rule(client=st.integers(0, 1), dies=st.booleans())
    def lose_a_client(self, client: int, dies: bool) -> None:
        session = self.ports[client].session
        lost = [writer for writer in self.writers if writer.port is self.ports[client]]
        self.writers = [writer for writer in self.writers if writer.port is not self.ports[client]]
        self.pages.service.disconnected(session)
        self.pages.audit()
        if dies:
            self.pages.service.gone(session)
        else:
            self.orphans.append(session)
            self.orphaned_writers += lost
        self.ports[client] = self.pages.open_port()

    @invariant()
    def every_sequence_has_its_rows_and_everything_sums(self) -> None:
        if hasattr(self, "writers"):
            self.pages.audit()
            for writer in (*self.writers, *self.orphaned_writers):
                writer.check()


TestPagesModel = PagesMachine.TestCase
TestPagesModel.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
