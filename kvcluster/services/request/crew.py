"""The beams of one request, which are computed in step: the first is its lead, which alone has read the prompt.

After the prompt the others fork from the lead; then each step's choice says from which beam each goes on, and tables of
pages move while no byte does. Nobody has seen a word before the search is over, so a crew of which one member
loses its memory begins again from the prompt, in its lead's place of the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcluster.engine.beams import BeamSearch, BeamSettings
from kvcluster.services.completion import Choice, Completion, Delta
from kvcluster.services.pages.sequence import SequencePages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcluster.services.request.generation import Generation
    from kvcluster.services.request.text import AnswerText


class Crew:
    """`members` are those that run; `open_text` makes a text for one of the answers."""

    def __init__(self, settings: BeamSettings, open_text: Callable[[], AnswerText]) -> None:
        self.settings = settings
        self.search = BeamSearch(settings)
        self.members: list[Generation] = []
        self._open_text = open_text

    @property
    def is_ready(self) -> bool:
        """Whether each has room for its next token: they go on together."""
        return all(member.committed > member.held for member in self.members)

    @property
    def lead(self) -> Generation:
        return self.members[0]

    def count_blocks(self) -> int:
        """Blocks that its members hold together, each counted once."""
        return len({block for member in self.members for block in pages_of(member).blocks})

    def disband(self) -> list[Generation]:
        """The lead begins again from the prompt; the others, which are over."""
        lead, *others = self.members
        self.members = [lead]
        self.search = BeamSearch(self.settings)
        lead.tokens = list(lead.order.prompt)
        return others

    def completion(self) -> Completion:
        """The answer, when the search is over: its sequences, the best first."""
        first, *more = [Choice(said.text, said.finish_reason or "length") for said in self.deltas()]
        tokens = sum(len(one.token_ids) for one in self.search.best())
        lead = self.lead
        prompt_tokens, cached = len(lead.order.prompt), lead.cached or 0
        return Completion(first.text, first.finish_reason, prompt_tokens, tokens, tuple(more), cached)

    def deltas(self) -> list[Delta]:
        """Each of its sequences at once, the best first: before the search is over nobody knows a word of any."""
        return [self._said(place, one.token_ids, is_ended=one.is_ended) for place, one in enumerate(self.search.best())]

    def _said(self, place: int, token_ids: Sequence[int], *, is_ended: bool) -> Delta:
        text = self._open_text()
        said = token_ids[:-1] if is_ended else token_ids
        is_stopped = any(text.push(token) for token in said) or text.finish()
        reason = "stop" if is_ended or is_stopped else "length"
        return Delta(place, str(text), len(token_ids), finish_reason=reason)


def pages_of(member: Generation) -> SequencePages:
    """The memory of one that runs."""
    assert isinstance(member.memory, SequencePages)  # a crew is never anywhere else
    return member.memory
