"""A shared prefix as its users name it, and what one request has of the prefixes that it uses.

A request uses a stack of them: one that it joined, and upon it those that it published itself. Their windows are
mapped for reading and are nobody's own: their bytes are the prefix's. How a device keeps prefixes is in
`memory.shared_prefix`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.ids import WindowRun


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that a device keeps for whoever joins them: made by `publish`, or by a close that retains. Picklable.

    `epoch` is the device's incarnation. Who joins all `tokens` begins to compute at `reusable_tokens`: a granule's
    edge may fall inside a token, and the last token is computed in any case.
    """

    device: str
    epoch: int
    number: int
    tokens: int
    reusable_tokens: int


@dataclass(frozen=True, slots=True)
class Used:
    """A prefix that a request uses, and the windows that are mapped for it here.

    `epoch` is that of the incarnation that made it, once that is not the present one any more.
    """

    number: int
    runs: tuple[WindowRun, ...]
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """A plan of the device: these windows are to be unmapped, and will be prefix `number` of `tokens` tokens.

    It is the plan of the incarnation of `epoch`, and of no later one. `handles` hold their memory meanwhile, in case
    that the device dies and nobody else does; none where they could not be had.
    """

    number: int
    tokens: int
    runs: tuple[WindowRun, ...]
    epoch: int = 0
    handles: tuple[PhysicalHandle, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftPrefix:
    """A prefix that is used no longer; where it is not clean, this process may still have it mapped."""

    number: int
    is_clean: bool
