"""The verbs of host pages over a wire that loses, doubles and reorders: every account, and every row, is right after.

Whoever commits writes the tokens that it is told are its own, as a client does when the reply is there: a copy or a
write that was done twice, or for the wrong one of two, would leave other rows than on the perfect wire.
"""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kvcluster.budget.quotas import Quotas
from kvcluster.index.token_chain import packed
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply
from tests.examples import examples
from tests.pages.frames import GROUPS, PageHost
from tests.pages.world import PITCH_BYTES, ROOT, SIZE
from tests.services.lossy import Far, LossyMachine
from tests.services.world import key

BLOCKS = 12
PROMPTS = [[1] * 9, [1] * 5 + [2] * 6, [1] * 12, [1] * 8 + [4] * 3]
requests = st.integers(0, 3)
lengths = st.integers(1, 14)


class Pages(Far):
    """A pool of 12 blocks with one client of a fixed name; `committed` counts what it wrote."""

    def __init__(self) -> None:
        self.host = PageHost(BLOCKS, Quotas())
        self.committed = 0
        super().__init__(self.host.service, self.host.client(session="the-client"), self.host.clock)

    def frame(self, frame: bytes) -> bytes:
        """What is committed is written: the last token of each new block."""
        reply = self.host.service.frame(frame)
        for result in decode_reply(reply).results:
            for answer in result.answers:
                if isinstance(answer, wire.Paged) and not answer.tokens:  # else it is what a find found
                    self.write([number for number, _ in answer.blocks])
        return reply

    def content(self, reply: bytes) -> object:
        """Without the blocks' generations, which are another pool's in the other one."""
        said = decode_reply(reply)
        answers = [answer for result in said.results for answer in result.answers]
        numbers = [[number for number, _ in a.blocks] for a in answers if isinstance(a, wire.Paged)]
        rest = [a.model_copy(update={"blocks": ()}) if isinstance(a, wire.Paged) else a for a in answers]
        return said.fault, [result.fault for result in said.results], numbers, rest

    def write(self, numbers: list[int]) -> None:
        for number in numbers:
            self.committed += 1
            self.host.pool.tensor[number, ..., SIZE - 1, :] = float(self.committed)


class LossyPages(LossyMachine):
    """`names` are sequences that were opened, or would have been; a fork may make more of them."""

    def __init__(self) -> None:
        self.pages = (Pages(), Pages())
        super().__init__(*self.pages)
        self.names: list[wire.RequestKey] = []
        self.told: list[int] = []  # ids that the owner has of each, if all went well
        self.numbers = 0

    @initialize()
    def begins(self) -> None:
        self.finds(PROMPTS[0], False)

    @rule(prompt=st.sampled_from(PROMPTS), waiting=st.booleans())
    def finds(self, prompt: list[int], waiting: bool) -> None:
        name = self.new(len(prompt))
        self.make(False, wire.Open(request=name, groups=GROUPS, max_tokens=4 * SIZE, cache_root=ROOT))
        self.make(waiting, wire.Find(request=name, token_ids=packed(prompt)), *self.paid(name, len(prompt)))

    @rule(number=requests, tokens=lengths, waiting=st.booleans())
    def grows(self, number: int, tokens: int, waiting: bool) -> None:
        self.make(waiting, *self.paid(self.name(number), tokens))

    @rule(number=requests, tokens=lengths, waiting=st.booleans())
    def asks_a_grant(self, number: int, tokens: int, waiting: bool) -> None:
        self.make(waiting, self.paid(self.name(number), tokens)[0])

    @rule(number=requests, back=st.integers(0, 4), tokens=lengths)
    def spends(self, number: int, back: int, tokens: int) -> None:
        self.make(False, wire.Commit(request=self.name(number), grant=max(self.numbers - back, 0), tokens=tokens))

    @rule(number=requests, tokens=st.integers(1, 9), waiting=st.booleans())
    def forks(self, number: int, tokens: int, waiting: bool) -> None:
        parent, told = self.name(number), min(self.told_by(number), tokens)
        self.told[parent.number - 1] = told
        self.make(waiting, wire.Fork(request=parent, children=(self.new(told),), tokens=tokens))

    @rule(number=requests, parents=st.tuples(*2 * [st.integers(0, 1)]), tokens=st.integers(1, 9))
    def permutes(self, number: int, parents: tuple[int, int], tokens: int) -> None:
        members = (self.name(number), self.name(number + 1))
        self.make(False, wire.Permute(request=members[0], members=members, parents=parents, tokens=tokens))

    @rule(number=requests, tokens=st.integers(1, 9))
    def shares(self, number: int, tokens: int) -> None:
        self.make(False, wire.Share(request=self.name(number), tokens=tokens, told_tokens=self.told_by(number)))

    @rule(number=requests, outcome=st.sampled_from(["clean", "quarantined"]))
    def drops(self, number: int, outcome: str) -> None:
        self.make(False, wire.Drop.model_validate({"request": self.name(number), "outcome": outcome}))

    @rule(number=requests, retain=st.sampled_from([0, 4, 8, 9]))
    def closes(self, number: int, retain: int) -> None:
        told = self.told_by(number)
        self.make(False, wire.Close(request=self.name(number), retain_tokens=min(told, retain), told_tokens=told))

    def name(self, number: int) -> wire.RequestKey:
        """One of the newest."""
        return self.names[-1 - number % len(self.names)]

    def told_by(self, number: int) -> int:
        return self.told[self.name(number).number - 1]

    def new(self, told: int) -> wire.RequestKey:
        self.names.append(key(len(self.names) + 1))
        self.told.append(told)
        return self.names[-1]

    def paid(self, name: wire.RequestKey, tokens: int) -> tuple[wire.Operation, wire.Operation]:
        self.numbers += 1
        grant = wire.Grant(request=name, grant=self.numbers, size_bytes=PITCH_BYTES, tokens=tokens)
        return grant, wire.Commit(request=name, grant=self.numbers, tokens=tokens)

    @invariant()
    def both_hosts_agree_on_every_block_and_every_row(self) -> None:
        lossy, perfect = (pages.host.seen() for pages in self.pages)
        if not self.unanswered:
            assert lossy.accounts == perfect.accounts
            assert (lossy.open_requests, lossy.requests, lossy.refusals) == (
                perfect.open_requests,
                perfect.requests,
                perfect.refusals,
            )
            assert (lossy.listed_blocks, lossy.lookups, lossy.found_tokens, lossy.evictions) == (
                perfect.listed_blocks,
                perfect.lookups,
                perfect.found_tokens,
                perfect.evictions,
            )
            assert torch.equal(*(pages.host.pool.tensor for pages in self.pages))

    def teardown(self) -> None:
        for pages in self.pages:
            pages.host.service.gone("the-client")
            assert {name.partition("/")[0] for name in pages.host.seen().accounts} <= {"free", "retained"}
            pages.host.service.close()


TestLossyPages = LossyPages.TestCase
TestLossyPages.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
