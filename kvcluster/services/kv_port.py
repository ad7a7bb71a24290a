"""What a request loop asks for memory, whatever that is made of: a device's ranges, or host pages.

`services.port.DevicePort` with its `SequenceMemory`, and `services.pages.port.PagePort` with its `SequencePages`, are
the two. Asks are those of `services.asks`; each port refuses what it has not (NotAllowed). Where prefixes are published
differs: a device needs its steps (TakeSnapshot, Publish, Seal), pages one (Publish), and `publication` says which.

This is the interface for engines other than ours, and knows none: it hands out addresses, says what is committed, and
takes it back at step boundaries. `kvcluster.KVCache` is such a user of it, for transformers' own `generate()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kvcluster.ids import RequestId

if TYPE_CHECKING:
    import torch

    from kvcluster.services.asks import Ask, Load, Outcome
    from kvcluster.services.correspondence import Traffic
    from kvcluster.services.memory_state import MemoryState
    from kvcluster.services.progress_page import ProgressPage
    from kvcluster.services.sequence import SequenceSpec
    from kvcluster.wire.socket import Reclaim, Welcome


class KvMemory(Protocol):
    """One request's memory. `joined_tokens` came with what a Find (or Join) found; compute from there."""

    request: RequestId
    spec: SequenceSpec
    arrival: int | None
    state: MemoryState
    in_flight: bool
    joined_tokens: int

    @property
    def tokens(self) -> int:
        """The most tokens that what is committed holds."""

    @property
    def told_tokens(self) -> int:
        """Of so many tokens the owner knows the ids; what `End` names follows them."""

    @property
    def committed_bytes(self) -> int:
        """What this request pays for."""

    @property
    def shared_bytes(self) -> int:
        """What it reads and others pay for, or it did before it shared it."""

    @property
    def reserved_bytes(self) -> int:
        """Address space."""

    def views(self, dtype: torch.dtype) -> Any:
        """What `engine.batch.Slice.kv` takes, over the committed tokens. Made again after each change."""

    def publication(self, tokens: int, *, written: int) -> tuple[Ask, ...]:
        """The asks, a frame each, that share the first `tokens` tokens; none where that cannot be."""

    def close(self) -> object:
        """Give everything back, and end."""


class PendingFrame(Protocol):
    def ready(self) -> bool:
        """Whether `settle` would not wait."""

    def settle(self) -> Sequence[Outcome]:
        """What became of the asks, in their order; the client's half is done."""


class KvPort(Protocol):
    """One session with one owner of memory. For one thread."""

    progress: ProgressPage | None

    @property
    def is_lost(self) -> bool:
        """Whether nothing is answered before `in_touch` says so: the owner is sought, or has ended the session."""

    @property
    def traffic(self) -> Traffic:
        """What was said so far, whatever incarnation of the owner heard it."""

    def pushes(self) -> tuple[Reclaim, ...]:
        """What the owner demands back since the last call. Never waits."""

    @property
    def quarantined_bytes(self) -> int:
        """What was given back as "may still be mapped": only this process's end frees it."""

    @property
    def welcome(self) -> Welcome:
        """What the owner said of itself, as it is now."""

    def in_touch(self) -> bool:
        """Whether asks are answered now, after a renewal where the owner is another one. For a step boundary.

        Raises:
            SessionEnded: every memory is closed, and another session begins.
            KvClusterError: the owner is lost for good.
        """

    @property
    def driver_calls(self) -> int:
        """Calls of this process that changed mappings."""

    def memory(self, spec: SequenceSpec) -> KvMemory:
        """A new request; the owner hears of it with its first ask."""

    def load(self, ask: Ask) -> Load:
        """The most that a frame, or its reply, says for it."""

    def submit(self, asks: Sequence[Ask]) -> PendingFrame:
        """All of `asks` in one frame, without waiting."""

    def tend(self) -> tuple[Outcome, ...]:
        """Give back what waited for work to end."""

    def close(self) -> None:
        """End the session."""
