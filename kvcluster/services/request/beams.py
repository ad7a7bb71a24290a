"""Beam search in host pages: after each step of a crew its members fork or are permuted, and get what they write next.

These are two frames a step at most, whose answers are waited for: the next step of the crew needs them, and a model's
step is far longer. Where memory is short the members stay as they are, and the desk asks for them as for anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcluster.engine.sampling import without_tokens
from kvcluster.errors import KvClusterError
from kvcluster.services.asks import Grow
from kvcluster.services.completion import Completion
from kvcluster.services.pages.asks import Fork, Permute
from kvcluster.services.pages.port import PagePort
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.services.request.crew import Crew, pages_of
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.shared import Shared
from kvcluster.units import ceil_div

if TYPE_CHECKING:
    import torch


class Beams:
    """The crews of one place. `give_up` takes a generation whose memory is of no use and why: it begins again."""

    def __init__(
        self, port: PagePort, shared: Shared, *, give_up: Callable[[Generation, KvClusterError], None]
    ) -> None:
        self._port = port
        self._shared = shared
        self._give_up = give_up

    def advance(self, crew: Crew, logits: torch.Tensor) -> Completion | None:
        """Its members go on with the best tokens; the answer, where the search is over. A row of `logits` a member.

        Raises:
            KvClusterError: the session is of no more use.
        """
        ends = crew.settings.eos_ids if crew.lead.must_go_on else frozenset()
        scores = without_tokens(logits.log_softmax(-1), dict.fromkeys(range(len(logits)), ends))
        chosen = crew.search.advance(scores)
        if crew.search.is_over:
            return crew.completion()
        error = self._branch(crew, chosen.parents)
        if error is not None:
            self._give_up(crew.lead, error)
            return None
        for member, token_ids in zip(crew.members, crew.search.beams, strict=True):
            member.tokens = [*member.order.prompt, *token_ids]
        self._make_room(crew)
        return None

    def _branch(self, crew: Crew, parents: tuple[int, ...]) -> KvClusterError | None:
        """Each member's memory is that of its parent; why not, where it is not."""
        lead, held = crew.lead, crew.lead.held
        memories = [pages_of(member) for member in crew.members]
        if len(crew.members) == 1:
            children = [self._port.memory(self._shared.spec_of(lead)) for _ in parents[1:]]
            if not children:
                return None
            [outcome] = self._port.submit([Fork(memories[0], tuple(children), held)]).settle()
            if outcome.error is None:
                crew.members += [self._joined(lead, memory) for memory in children]
        elif parents == tuple(range(len(parents))):
            return None
        else:
            [outcome] = self._port.submit([Permute(memories[0], tuple(memories), parents, held)]).settle()
        for member in crew.members:
            member.look_again(self._shared.dtype)
        return outcome.error

    def _joined(self, lead: Generation, memory: SequencePages) -> Generation:
        """A member that has all that its lead has."""
        member = lead.twin()
        self._shared.own(member, memory)
        member.move(Phase.RUNNING)
        self._shared.roster.take_over(member)
        return member

    def _make_room(self, crew: Crew) -> None:
        """Whole blocks for each member's next token; what is refused the desk asks for again."""
        block, most = self._port.block_tokens, crew.lead.order.most_held
        asks = [
            Grow(pages_of(member), min(most, block * ceil_div(member.held + 1, block)))
            for member in crew.members
            if member.committed <= member.held < most
        ]
        if not asks:
            return
        for outcome in self._port.submit(asks).settle():
            if outcome.error is None:
                self._shared.owners[outcome.ask.memory].grown(self._shared.dtype)
