"""An ask is refused only where free and evictable blocks together are fewer than it needs, whatever happened before.

Not fragments, not leaks, and not what is kept for nobody may be in its way: a block is a block. A newcomer leaves one
growth of everybody who runs free beside it; a sequence that runs leaves nothing.
"""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvcluster.errors import NeverFits, OutOfBudget
from kvcluster.services.queue import GROWTH_TOKENS
from kvcluster.units import ceil_div
from tests.examples import examples
from tests.pages.frames import MOST_TOKENS, Asker, page_host
from tests.pages.world import PITCH_BYTES, SIZE

PROMPTS = [[1] * 9, [1] * 5 + [2] * 6, [1] * 12, [3] * 4, [1] * 8 + [4] * 3, [2], list(range(20, 50))]


class AskingMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(1, 20))
    def begin(self, blocks: int) -> None:
        self.ending = ExitStack()
        self.host = self.ending.enter_context(page_host(blocks))
        self.capacity, self.most = blocks, min(blocks * SIZE, MOST_TOKENS)
        self.clients = [self.host.client(), self.host.client()]
        self.tokens: dict[Asker, int] = {}  # of each that runs

    def teardown(self) -> None:
        if hasattr(self, "ending"):
            for sequence in list(self.tokens):
                sequence.close()
            for client in self.clients:
                self.host.service.gone(client.session)
            assert self.at_hand() == self.capacity
            self.ending.close()

    @rule(client=st.integers(0, 1), prompt=st.sampled_from(PROMPTS), room=st.integers(0, SIZE))
    def begins(self, client: int, prompt: list[int], room: int) -> None:
        prompt, sequence = prompt[: self.most], self.clients[client].open(max_tokens=self.most)
        found = sequence.client.ask(sequence.find_op(prompt))
        joined = sum(getattr(answer, "tokens", 0) for answer in found)
        sequence.blocks = [0] * ceil_div(joined, SIZE)
        sequence.told = len(prompt)
        if not self.granted(
            sequence, joined, min(len(prompt) + room, self.most), beside=0 if joined else self.growths()
        ):
            sequence.close()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.integers(1, 2 * SIZE))
    def grows(self, data: st.DataObject, more: int) -> None:
        sequence = self.one(data)
        held = self.tokens[sequence]
        self.granted(sequence, held, min(held + more, self.most), beside=0)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), count=st.integers(1, 3), back=st.integers(0, SIZE))
    def forks(self, data: st.DataObject, count: int, back: int) -> None:
        sequence = self.one(data)
        tokens = max(1, self.tokens[sequence] - back)
        before = self.at_hand()
        for child in sequence.fork(tokens, count):
            self.tokens[child] = tokens
        self.tokens[sequence] = tokens
        assert self.at_hand() >= before

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), shared=st.booleans(), retained=st.booleans())
    def ends(self, data: st.DataObject, shared: bool, retained: bool) -> None:
        sequence = self.one(data)
        told = min(self.tokens.pop(sequence), sequence.told)
        if shared and told:
            sequence.share(told)
        sequence.close(told if retained else 0)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), outcome=st.sampled_from(["clean", "quarantined"]))
    def drops(self, data: st.DataObject, outcome: str) -> None:
        sequence = self.one(data)
        del self.tokens[sequence]
        sequence.drop(outcome)
        sequence.close()

    @rule(client=st.integers(0, 1))
    def dies(self, client: int) -> None:
        lost = self.clients[client]
        self.tokens = {one: tokens for one, tokens in self.tokens.items() if one.client is not lost}
        self.host.service.disconnected(lost.session)
        self.host.service.gone(lost.session)
        self.clients[client] = self.host.client()

    # --- what is asked, and what there is ---------------------------------------------------------------------------

    def granted(self, sequence: Asker, held: int, tokens: int, *, beside: int) -> bool:
        """Whether it got memory for so many tokens; it had to, where there was enough, and what a refusal says adds up.

        A block more than its new ones is for the copy of a begun one that others have too.
        """
        new, there = ceil_div(tokens, SIZE) - ceil_div(held, SIZE), self.at_hand()
        try:
            sequence.grow(tokens)
        except OutOfBudget as refusal:
            need = refusal.need // PITCH_BYTES
            assert there - beside < need <= new + 1
            assert self.at_hand() == there
            return False
        except NeverFits:
            assert ceil_div(tokens, SIZE) >= self.capacity
            return False
        assert new <= there
        self.tokens[sequence] = max(held, tokens)
        return True

    def at_hand(self) -> int:
        """Blocks that are free, and those that go when they are needed; after an audit."""
        return self.host.blocks("free") + self.host.blocks("retained")

    def growths(self) -> int:
        """The most that one growth of each that runs takes."""
        return len(self.tokens) * (ceil_div(GROWTH_TOKENS, SIZE) + 1)

    def one(self, data: st.DataObject) -> Asker:
        return data.draw(st.sampled_from(list(self.tokens)))


TestNeverRefused = AskingMachine.TestCase
TestNeverRefused.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
