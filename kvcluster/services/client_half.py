"""What is done in the client's process before its device hears of an ask, and what it hears of that.

Windows are unmapped before anybody is told that they are given back, or to be sealed; what could not be unmapped stays
mapped, is told as such, and counts in `quarantined_bytes`. No messages here: `services.port` sends what this says.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcluster.errors import KvClusterError, NotAllowed, NotShareable
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.shareability import Refusal
from kvcluster.services import encoding
from kvcluster.services.ask_checks import refusal_of
from kvcluster.services.asks import Ask, End, Join, Leave, Seal, Shed, TakeSnapshot, Trim
from kvcluster.services.departures import Departures, is_over
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from kvcluster.services.taken_back import TakenBack
from kvcluster.wire import messages as wire
from kvcluster.wire.socket import Welcome

Operations = tuple[wire.Operation, ...]
Said = tuple[Operations, KvClusterError | None]
"""What the device is told, and what this process could not do."""


class ClientHalf:
    """Of one port. `grants` are numbers that were never used."""

    def __init__(self, departures: Departures, grants: Iterator[int], granule_bytes: int) -> None:
        self.quarantined_bytes = 0
        self._departures = departures
        self._grants = grants
        self._granule_bytes = granule_bytes

    def refusal(self, ask: Ask, here: Welcome) -> KvClusterError | None:
        """Why the device, which is `here` now, is not even asked. Nothing is changed yet: see `refused`."""
        match ask:
            case Join(prefix=Prefix(device, epoch, number)) if (device, epoch) != (here.device, here.epoch):
                reason = f"prefix {number} is one of device {device} as it was in epoch {epoch}"
                return NotShareable(kind=Refusal.NO_SUCH_PREFIX, reason=reason)
            case Seal(memory) if (plan := memory.holdings.publication) and plan.epoch != here.epoch:
                reason = f"prefix {plan.number} was planned by device {here.device} as it was in epoch {plan.epoch}"
                return NotShareable(kind=Refusal.NO_SUCH_PREFIX, reason=reason)
            case Shed(after=after) if after is not None and not is_over(after):
                return NotAllowed(reason="work that may use the memory is under way")
        return refusal_of(ask)

    def refused(self, ask: Ask, refusal: KvClusterError) -> Said:
        """It is not asked. A plan of another incarnation is given up with it: its windows are mapped as they were."""
        if isinstance(ask, Seal):
            ask.memory.holdings.publication = None
        return (), refusal

    def first(self, ask: Ask) -> Said:
        """What is done here first: what the device is told of it, and what this process could not do."""
        match ask:
            case Trim(memory, tokens):
                taken_back = memory.holdings.trim(tokens)
                reach(Failpoint.CLIENT_UNMAPPED)
                return self.told(memory, taken_back)
            case Shed(memory, after):
                return self._emptied(memory, memory.holdings.shed(after=after))
            case End(memory, retain_tokens, token_ids):
                return self.end(memory, retain_tokens, token_ids)
            case Leave(memory):
                return self._emptied(memory, memory.holdings.leave())
            case Seal(memory):
                return self._seal(memory)
            case TakeSnapshot(memory, tokens):
                return self._make_room(memory, tokens)
        return (), None

    def _emptied(self, memory: SequenceMemory, taken_back: TakenBack) -> Said:
        reach(Failpoint.CLIENT_UNMAPPED)
        self._departures.left(memory)
        memory.emptied()
        return self.told(memory, taken_back)

    def end(self, memory: SequenceMemory, retain_tokens: int = 0, token_ids: bytes = b"") -> Said:
        """Unmap everything, and free the address; the memory is closed, whatever came of it."""
        known, shape = memory.state is MemoryState.OPEN, memory.holdings.shape
        is_foreign = memory.holdings.is_foreign
        taken_back = memory.holdings.end()
        reach(Failpoint.CLIENT_UNMAPPED)
        self._departures.left(memory)
        memory.closed()
        retained = 0 if taken_back.error or is_foreign else retain_tokens
        if retained and not shape.has_rings:
            taken_back = encoding.but_retained(taken_back, shape.shared_windows(retained))
        close = encoding.close_operation(memory, retained, token_ids)
        told, error = self.told(memory, taken_back)
        return (*told, *((close,) if known else ())), error

    def _seal(self, memory: SequenceMemory) -> Said:
        plan = memory.holdings.publication
        assert plan is not None  # `check` saw it
        taken_back = memory.holdings.unmap_published()
        reach(Failpoint.CLIENT_PUBLISH_UNMAPPED)
        if taken_back.error:
            return self.told(memory, taken_back)
        return (wire.Seal(request=encoding.key_of(memory.request), prefix=plan.number),), None

    def _make_room(self, memory: SequenceMemory, tokens: int) -> Said:
        """Windows for a snapshot, in the place of the snapshot of a prefix that is used."""
        if error := memory.holdings.unmap_snapshot():
            return (), error
        if memory.holdings.usable.has_sealed_snapshot:
            reason = "the snapshot could not be sealed once and cannot be written again: release the memory"
            return (), NotAllowed(reason=reason)
        return encoding.snapshot_operations(memory, tokens, next(self._grants)), None

    def told(self, memory: SequenceMemory, taken_back: TakenBack) -> Said:
        """What is to be told of it; what is still mapped counts from now on."""
        self.quarantined_bytes += self._granule_bytes * sum(run.count for run in taken_back.still)
        return encoding.release_operations(memory, taken_back), taken_back.error
