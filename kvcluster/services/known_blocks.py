"""What an owner of memory tells whoever routes requests to it: which blocks it knows, and what it has room for.

A value. It is asked for again and again, with the epoch and the number of the last answer (`index.events`), and costs
the owner microseconds; who follows several owners is `services.routing`. Nothing of it names a tenant, a request or a
token: blocks are digests under roots that only their tenants' requests lead to (`index.identity`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.index.events import News

NEVER = -1  # the number of whoever has seen nothing


@dataclass(frozen=True, slots=True)
class KnownBlocks:
    """Of the owner's incarnation `epoch`. `free_bytes` are what a request of a tenant without a quota could have now:
    what is free, and what would go for it.
    """

    epoch: int
    news: News
    free_bytes: int
