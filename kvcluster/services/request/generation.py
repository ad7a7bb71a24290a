"""One request under way: what it has said, and the memory that it has at the moment.

Its tokens outlive its memory. A preempted request keeps prompt, emitted tokens, text and seed; when it runs again,
all of them but the last are prefilled as if they were one prompt, so what a user saw never changes.
"""

from __future__ import annotations

from enum import Enum
from struct import iter_unpack
from typing import TYPE_CHECKING, Any

from kvcluster.engine.sampling import DrawKey
from kvcluster.errors import OutOfBudget
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import ID_BYTES
from kvcluster.services.completion import Completion, Delta, Likelihood
from kvcluster.services.kv_port import KvMemory
from kvcluster.services.progress_page import Slot
from kvcluster.services.request.back_off import BackOff
from kvcluster.services.request.order import Order
from kvcluster.services.request.targets import Targets
from kvcluster.services.request.text import AnswerText
from kvcluster.states import moved

if TYPE_CHECKING:
    import torch

    from kvcluster.services.request.crew import Crew


class Phase(Enum):
    WAITING = "waiting"  # holds no windows
    RUNNING = "running"
    OVER = "over"  # answered, refused or cancelled


PHASE_MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.OVER}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.OVER}),
    Phase.OVER: frozenset(),
}


class Generation:
    """The growing answer to one order. `held` tokens have their K and V in `memory`.

    `joined` of them came with what others computed, and `targets` says where it shares what it computes itself.
    `crew`: it is a beam, and goes on with the others.
    """

    def __init__(self, order: Order, text: AnswerText, crew: Crew | None = None) -> None:
        self.order = order
        self.crew = crew
        self.phase = Phase.WAITING
        self.tokens = list(order.prompt)
        self.held = 0
        self.joined = 0
        self.cached: int | None = None  # of the prompt, the least that an admission found; None before the first
        self.targets = Targets()
        self.is_whole = True  # its memory has the rows of all tokens that it holds
        self.places_too_small = 0  # whatever is free there
        self.may_return = crew is None  # from host pages to the device
        self.slot: Slot | None = None  # where its progress is noted
        self.computed = 0  # the most tokens of it that were written at once, and not given back, whoever wrote them
        self.died_with = order.died_with  # whose remains it asks for before anything else
        self.waits_for_death_until: float | None = None  # of the process whose remains it asked for
        self.looks = True  # for what others computed, when it asks to be admitted
        self.is_held_back = False  # somebody who runs computes the beginning of its prompt
        self.finish_reason: str | None = None
        self.likelihoods: list[Likelihood] = []  # of each token that it emitted, where they are wanted
        self._told = 0  # tokens, by its deltas
        self.memory: KvMemory | None = None
        self.views: Any = None
        self.committed_bytes = 0
        self.shared_bytes = 0
        self.former: RequestId | None = None  # what the device called it in the memory that it had before
        self.refusal: OutOfBudget | None = None  # of a growth that it cannot do without
        self.ask_again_at = float("-inf")
        self.back_off = BackOff()
        self.blocked_since: float | None = None  # it wants more than what the quarantine leaves
        self.preempted_in_vain = False
        self.tries = 0
        self._arrival = float("inf")
        self._text = text

    # --- memory ---------------------------------------------------------------------------------------------------

    @property
    def arrival(self) -> float:
        """The device's number for it, in this memory or the last one; infinite while it has not given one."""
        arrival = self.memory.arrival if self.memory else None
        return self._arrival if arrival is None else arrival

    @property
    def named(self) -> int:
        """Of how many tokens whoever owns the memory knows the ids."""
        return self.memory.told_tokens if self.memory else 0

    @property
    def lead(self) -> Generation:
        """Itself; of a beam the first of its crew, which loses its memory with the others and is as old as they are."""
        return self.crew.lead if self.crew else self

    @property
    def is_blocked(self) -> bool:
        """Only the end of a process can bring back what it waits for."""
        return self.blocked_since is not None

    @property
    def lacks_memory(self) -> bool:
        """Whether it waits because it was refused, or lost what it had; and not for a seat, or for an answer."""
        return self.phase is Phase.WAITING and (self.back_off.is_refused or self.cached is not None)

    @property
    def committed(self) -> int:
        """Tokens that the views hold."""
        tokens: int = self.views.tokens if self.views else 0
        return tokens

    @property
    def held_bytes(self) -> int:
        """What others can have at most if it gives everything back."""
        return self.committed_bytes + self.shared_bytes

    @property
    def length(self) -> int:
        """Tokens written once all that is known is computed, but for the newest: that is written by the next step."""
        return len(self.tokens) - 1

    @property
    def room(self) -> int:
        """Steps that it can go without growing."""
        return self.committed - self.length

    @property
    def needs_more(self) -> bool:
        """Whether it is to ask for more ahead of need; a beam gets what it needs when it is known where it goes on."""
        if self.crew and self.committed > self.held:
            return False
        return self.committed < self.order.most_held

    @property
    def seats(self) -> int:
        """How many run, or will once the prompt is read."""
        return self.crew.settings.width if self.crew and len(self.crew.members) == 1 else 1

    def twin(self) -> Generation:
        """Another beam of its crew, which holds what it holds; its memory is a fork, and leaves nothing for others."""
        twin = Generation(self.order, self._text, self.crew)
        twin.tokens, twin.held, twin.is_whole = list(self.tokens), self.held, False
        twin.computed = self.held
        return twin

    def leave_memory(self) -> KvMemory | None:
        """Give up its memory, if it has one; its place in the queue is remembered."""
        self._note_loss()
        memory, self.memory = self.memory, None
        if memory is not None and memory.arrival is not None:
            self._arrival, self.former = memory.arrival, memory.request
        return memory

    def move_away(self) -> None:
        """It goes on in another place, whose owner has no number for it yet."""
        self.looks = True
        self._arrival, self.former = float("inf"), None
        self.joined, self.targets = 0, Targets()
        self.ask_again_at = float("-inf")
        self.back_off = BackOff()

    def begin(self, joined: int) -> None:
        """It begins to run with `joined` tokens that others computed."""
        self.held = self.joined = joined
        self.is_whole = True
        of_prompt = min(joined, len(self.order.prompt))
        self.cached = of_prompt if self.cached is None else min(self.cached, of_prompt)

    def look_again(self, dtype: torch.dtype) -> None:
        """What its memory has mapped is not what it was."""
        assert self.memory is not None
        self.views = self.memory.views(dtype)
        self.committed_bytes, self.shared_bytes = self.memory.committed_bytes, self.memory.shared_bytes

    def grown(self, dtype: torch.dtype) -> None:
        """Its memory has more windows than before."""
        self.look_again(dtype)
        self.refusal = None
        self.preempted_in_vain = False
        self.back_off = BackOff()
        self.blocked_since = None
        self.tries = 0

    def stripped(self) -> None:
        """Its windows are gone, or on their way; what is held must be computed again."""
        self._note_loss()
        self.held = self.joined = 0
        self.targets = Targets()
        self.views = None
        self.committed_bytes = self.shared_bytes = 0
        self.refusal = None
        self.preempted_in_vain = False

    def adopt(self, tokens: int) -> None:
        """It begins to run with `tokens` tokens that a process computed which died."""
        self.begin(0)
        self.held = tokens

    def _note_loss(self) -> None:
        """Before a window goes: whoever follows must not take it for this one's."""
        if self.slot is not None:
            self.slot.lost()

    def move(self, phase: Phase) -> None:
        self.phase = moved(self.phase, phase, PHASE_MOVES)

    # --- tokens ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Known tokens whose K and V are yet to be computed; 1 while it decodes."""
        return len(self.tokens) - self.held

    @property
    def emitted(self) -> int:
        return len(self.tokens) - len(self.order.prompt)

    @property
    def must_go_on(self) -> bool:
        """Whether an end would come too early."""
        return self.emitted < self.order.min_tokens

    @property
    def step_tokens(self) -> int:
        """The most tokens that its next step may compute: up to where it shares what it has, and only with its crew."""
        if self.crew and not self.crew.is_ready:
            return 0
        return min(self.pending, self.committed - self.held, self.targets.distance(self.held))

    @property
    def draw_key(self) -> DrawKey:
        """The draw of its next token."""
        return DrawKey(sample=self.order.sample, position=len(self.tokens))

    def wrote(self, count: int) -> int:
        """Its next `count` tokens are written; how many of them had been written before."""
        before, self.held = self.held, self.held + count
        again = max(0, min(self.computed, self.held) - before)
        self.computed = max(self.computed, self.held)
        return again

    def said(self, token_ids: bytes) -> None:
        """What a process that died had emitted: tokens that are not known here are taken, without computing them."""
        for (token_id,) in iter_unpack("<I", token_ids[self.emitted * ID_BYTES :]):
            if self.finish_reason is None:
                self.take(token_id)

    def take(self, token_id: int, likelihood: Likelihood | None = None) -> None:
        """The next token was chosen; sets `finish_reason` where it is the last."""
        self.tokens.append(token_id)
        if likelihood is not None:
            self.likelihoods.append(likelihood)
        if token_id in self.order.end_ids or self._text.push(token_id):
            self.finish_reason = "stop"
        elif self.emitted == self.order.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason and self._text.finish():
            self.finish_reason = "stop"

    def delta(self) -> Delta:
        """What it said since the last one; a token costs the same however long the text is."""
        told, self._told = self._told, self.emitted
        tokens, likelihoods = self.emitted - told, tuple(self.likelihoods[told:])
        return Delta(self.order.choice, self._text.fresh(), tokens, likelihoods, self.finish_reason)

    def completion(self) -> Completion:
        assert self.finish_reason is not None
        return Completion(
            str(self._text),
            self.finish_reason,
            len(self.order.prompt),
            self.emitted,
            cached_tokens=self.cached or 0,
            logprobs=tuple(self.likelihoods),
        )
