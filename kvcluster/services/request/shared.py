"""What the parts of one place share: who is there, whose memory is whose, and what is on its way back.

A place is where memory comes from: a device, or host pages. A service has one or two, and a generation is in one at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import Shape
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import End
from kvcluster.services.kv_port import KvMemory
from kvcluster.services.pacing import Pace
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.outbox import Outbox
from kvcluster.services.request.publications import Publications
from kvcluster.services.request.roster import Roster
from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.statistics import Tally
from kvcluster.services.request.targets import Worth
from kvcluster.services.sequence import SequenceSpec

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Shared:
    """One place's state but for the frame in flight. `ending` are memories that are to be given back.

    `tally`, `outbox` and `pace` are those of all `places` of the service. `elsewhere` is the other place, where it
    takes what never fits here; `overflow` is that of what this one refuses for now, and `flee` takes there what is
    preempted here, with what it computed.
    """

    geometry: KvGeometry
    dtype: torch.dtype
    settings: RequestSettings
    shape: Shape
    outbox: Outbox
    pace: Pace
    reserved_bytes: int = 0  # address of the memories that have an owner
    roster: Roster = field(default_factory=Roster)
    places: Sequence[Shared] = ()
    tally: Tally = field(default_factory=Tally)
    worth: Worth = field(init=False)
    owners: dict[KvMemory, Generation] = field(default_factory=dict)
    publications: Publications = field(default_factory=Publications)
    ending: list[End] = field(default_factory=list)
    elsewhere: Shared | None = None
    overflow: Shared | None = None
    flee: Callable[[Generation], End | None] | None = None

    def __post_init__(self) -> None:
        self.worth = Worth(self.shape, self.settings.least_shared_tokens)

    @property
    def free_seats(self) -> int:
        """How many more generations may run, in whichever place: who asks to be admitted has a seat already."""
        owners = (each for place in self.places or (self,) for each in place.owners.items())
        seated = (owner.seats for memory, owner in owners if owner.phase is Phase.RUNNING or memory.in_flight)
        return self.settings.max_num_seqs - sum(seated)

    @property
    def staying(self) -> int:
        """Texts that wait and will not be sent away: those of requests that have begun."""
        return sum(each.seats for each in self.roster.waiting if self.outbox.has_begun(each.order.key))

    def admit(self, generation: Generation) -> None:
        """It has memory and runs, and its caller may hear so."""
        self.roster.admit(generation)
        self.outbox.begins(generation)

    def own(self, generation: Generation, memory: KvMemory) -> None:
        generation.memory = memory
        self.owners[memory] = generation
        self.reserved_bytes += memory.reserved_bytes

    def spec_of(self, generation: Generation) -> SequenceSpec:
        """The memory that it needs."""
        order = generation.order
        return SequenceSpec(
            self.geometry,
            self.settings.layout,
            order.total_tokens,
            after=generation.former,
            chunk_tokens=self.settings.prefill_chunk_tokens,
            shareable_tokens=len(generation.tokens) if order.cache_root else 0,
            cache_root=order.cache_root,
        )

    def part(self, generation: Generation) -> None:
        """Its memory goes back with the next frame; what it computed stays for others, where the cache is on.

        One that reached a target with its last token is shared before it ends, where rings keep nothing else of it.
        """
        memory = generation.memory
        if memory is None:
            return
        held = self._kept_tokens(generation, memory)
        target = generation.targets.reached(held) if self.shape.has_rings and generation.named else 0
        if target and memory not in self.publications:
            self.publications.begin(memory, memory.publication(target, written=held))
        self.ending.append(self.release(generation))

    def drop(self, generation: Generation) -> None:
        """Nobody wants it: its memory goes back with the next frame. What was about to be shared of it is not."""
        memory = generation.memory
        if memory is not None and memory in self.publications:
            self.discard(generation)
        elif memory is not None:
            self.ending.append(self.release(generation))

    def release(self, generation: Generation) -> End:
        """The end of its memory, with what stays of it for others; it has none from now on."""
        memory = generation.memory
        assert memory is not None
        held = self._kept_tokens(generation, memory)
        end = End(memory, held, packed(generation.tokens[generation.named : held]))
        self._disown(generation)
        return end

    def _kept_tokens(self, generation: Generation, memory: KvMemory) -> int:
        """The first tokens whose rows others may use when it has ended; of beams, those of the prompt."""
        if not generation.order.cache_root or not generation.is_whole:
            return 0
        held = min(generation.held, memory.tokens)
        return min(held, len(generation.order.prompt)) if generation.crew else held

    def discard(self, generation: Generation) -> None:
        """Its memory goes back with the next frame, and nothing of it is to be used again."""
        memory = generation.memory
        if memory is not None:
            self.publications.forget(memory)
            self._disown(generation)
            self.ending.append(End(memory))

    def move(self, generation: Generation, to: Shared) -> None:
        """One that waits, waits in another place from now on."""
        self.discard(generation)
        self.roster.give_up(generation)
        generation.move_away()
        to.roster.join(generation)

    def _disown(self, generation: Generation) -> None:
        memory = generation.leave_memory()
        assert memory is not None
        del self.owners[memory]
        self.reserved_bytes -= memory.reserved_bytes
