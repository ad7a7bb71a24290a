"""Rows of tables about a cluster, as text: what `kvcluster status` and `kvcluster top` both say, and say alike."""

from __future__ import annotations

from kvcluster.services.chronicle import Death
from kvcluster.services.standing import OwnerStanding, WorkerStanding
from kvcluster.units import format_bytes

MOST_DEATHS = 10  # shown; --json has all that are kept
DEATH_HEADINGS = ("died", "node", "process", "ago", "cause")
SIZE_HEADINGS = ("capacity", "committed", "retained", "free", "quarantine", "foreign")
UNKNOWN = "?"
_NODE_CHARACTERS = 8


def committed_bytes(owner: OwnerStanding) -> int:
    """What requests have, alone or together."""
    return owner.bytes_by_kind.get("request", 0) + owner.bytes_by_kind.get("prefix", 0)


def sizes(owner: OwnerStanding) -> tuple[str, ...]:
    """Under `SIZE_HEADINGS`."""
    rest = (owner.bytes_by_kind.get(kind, 0) for kind in ("retained", "free", "quarantine", "foreign"))
    return tuple(map(format_bytes, (owner.capacity_bytes, committed_bytes(owner), *rest)))


def place(of: OwnerStanding | WorkerStanding) -> tuple[str, str, str]:
    """Name, node and process."""
    return of.name, short(of.node_id), known(of.pid)


def deaths(told: tuple[Death, ...], now_s: float) -> list[tuple[str, ...]]:
    """The last ones under `DEATH_HEADINGS`, the newest first."""
    return [_death(death, now_s) for death in reversed(told[-MOST_DEATHS:])]


def known(number: int) -> str:
    return str(number) if number else UNKNOWN


def short(node_id: str) -> str:
    return node_id[:_NODE_CHARACTERS] or UNKNOWN


def _death(death: Death, now_s: float) -> tuple[str, ...]:
    who = death.who
    ago = f"{max(now_s - death.at_s, 0.0):.0f} s"
    return f"{who.kind} {who.name}", short(who.node_id), known(who.pid), ago, death.cause or "nobody told why"
