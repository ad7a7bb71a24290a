"""What the loop notes for a successor, after each step whose results are read: see `services.progress_page`.

Only texts of their own are noted, no beams: a crew begins again. Where the session has no page, or all slots of it are
busy, nothing is noted, and whoever follows computes again.

A GPU may be at work yet when a step returns of which nothing is read: such a step, a chunk of a long prompt, is not
noted. Where every row stays, the note is only an old one. In a ring the next chunks go over rows that an old note
counts on. It holds W + chunk - 1 tokens: after one step beyond what is noted, of a chunk at most, the W - 1 rows before
the noted end are whole, and after two they may not be. So before the second one the note is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.ids import RequestId
from kvcluster.services.progress_page import ProgressPage, Slot
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.shared import Shared


class Notes:
    """On one page, of a session whose memories `device` has."""

    def __init__(self, page: ProgressPage | None, device: Shared) -> None:
        self._page = page
        self._device = device

    def begins(self, generations: Sequence[Generation]) -> None:
        """A step is about to write the next tokens of these, and may be over what an old note counts on."""
        if not self._device.shape.has_rings:
            return
        for generation in generations:
            if generation.slot is not None and generation.slot.written < generation.held:
                generation.slot.lost()

    def computed(self, generations: Sequence[Generation]) -> None:
        """All tokens that these hold are written. Those that are over have no memory to go on with."""
        if self._page is None:
            return
        for generation in generations:
            may_be_noted = generation.order.label and not generation.crew and generation.phase is not Phase.OVER
            if may_be_noted and generation.slot is None:
                generation.slot = self._page.begin(generation.order.label)
            if may_be_noted and generation.slot is not None:
                self._note(generation, generation.slot)

    def _note(self, generation: Generation, slot: Slot) -> None:
        more_ids, computed = _unsaid(generation, slot.emitted), generation.computed
        slot.wrote(self._adoptable(generation), generation.held, more_ids, computed=computed)

    def _adoptable(self, generation: Generation) -> RequestId | None:
        """The request in whose memory it runs, where that is the device's."""
        memory = generation.memory
        is_there = memory in self._device.owners and generation.phase is Phase.RUNNING
        return memory.request if memory is not None and is_there else None

    def done(self, generation: Generation) -> None:
        """It has emitted its last token; its memory is there yet."""
        slot, generation.slot = generation.slot, None
        if slot is not None:
            slot.done(_unsaid(generation, slot.emitted))

    def dropped(self, generation: Generation) -> None:
        """Nobody wants it any more."""
        slot, generation.slot = generation.slot, None
        if slot is not None:
            slot.drop()

    def distrusted(self) -> None:
        """The loop failed: what it computed is not to be trusted."""
        if self._page is not None:
            self._page.void()


def _unsaid(generation: Generation, emitted: int) -> list[int]:
    return generation.tokens[len(generation.order.prompt) + emitted :]
