"""What the parts of one request service share: who is there, whose memory is whose, and what is on its way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcluster.geometry.model import KvGeometry
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.roster import Roster
from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.statistics import Tally
from kvcluster.services.sequence import SequenceMemory

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Shared:
    """One service's state but for the frame in flight. `ending` are memories that are to be given back."""

    geometry: KvGeometry
    dtype: torch.dtype
    settings: RequestSettings
    reserved_bytes: int = 0  # address of the memories that have an owner
    roster: Roster = field(default_factory=Roster)
    tally: Tally = field(default_factory=Tally)
    owners: dict[SequenceMemory, Generation] = field(default_factory=dict)
    ending: list[SequenceMemory] = field(default_factory=list)

    def own(self, generation: Generation, memory: SequenceMemory) -> None:
        generation.memory = memory
        self.owners[memory] = generation
        self.reserved_bytes += memory.reserved_bytes

    def part(self, generation: Generation) -> None:
        """Its memory goes back with the next frame."""
        memory = generation.leave_memory()
        if memory is not None:
            del self.owners[memory]
            self.reserved_bytes -= memory.reserved_bytes
            self.ending.append(memory)
