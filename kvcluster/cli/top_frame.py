"""One frame of `kvcluster top`, drawn with rich: a table each for memory, workers, refusals and the last deaths.

The bar of a memory is read without colours too: # committed, = retained (gives way when its room is needed),
- promised, ! quarantined or foreign, . free. Every cell is plain text: no name can drive the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvcluster.cli.standing_rows import (
    DEATH_HEADINGS,
    SIZE_HEADINGS,
    UNKNOWN,
    committed_bytes,
    deaths,
    known,
    place,
    short,
    sizes,
)
from kvcluster.services.standing import ClusterStanding, OwnerStanding, WorkerStanding

OWNER_HEADINGS = ("memory", "node", "process", "epoch", "clients", "requests", "use", *SIZE_HEADINGS)
WORKER_HEADINGS = ("worker", "node", "process", "memory", "model", "state", "running", "waiting", "tokens/s")
REFUSAL_HEADINGS = ("refused by", "node", "reason", "count", "per s")
NO_ANSWER = "no answer"
BAR_CELLS = 20
_LEGEND = "use: # committed  = retained  - promised  ! quarantined or foreign  . free"
_STYLES = {"#": "green", "=": "blue", "-": "cyan", "!": "red", ".": "dim"}


def frame(found: ClusterStanding, *, now_s: float) -> Group:
    """All of it; `now_s` in seconds since 1970. An empty table is not drawn."""
    tables = [
        _table(OWNER_HEADINGS, [_owner_row(owner) for owner in found.owners], caption=_LEGEND),
        _table(WORKER_HEADINGS, [_worker_row(worker) for worker in found.workers]),
        _table(REFUSAL_HEADINGS, list(_refusal_rows(found))),
        _table(DEATH_HEADINGS, deaths(found.deaths, now_s)),
    ]
    return Group(_head(found, now_s), *[table for table in tables if table is not None])


def bar(owner: OwnerStanding) -> str:
    """An owner's accounts as `BAR_CELLS` cells; what is not nothing has a cell, as far as they go."""
    held = owner.bytes_by_kind
    parts = (
        ("!", held.get("quarantine", 0) + held.get("foreign", 0)),
        ("#", committed_bytes(owner)),
        ("=", held.get("retained", 0)),
        ("-", held.get("granted", 0)),
    )
    drawn = ""
    for sign, size_bytes in parts:
        cells = -(-size_bytes * BAR_CELLS // owner.capacity_bytes) if owner.capacity_bytes else 0
        drawn += sign * min(cells, BAR_CELLS - len(drawn))
    return drawn.ljust(BAR_CELLS, ".")


def _head(found: ClusterStanding, now_s: float) -> Text:
    if not found.owners and not found.workers:
        return Text("nobody of kvcluster is on this cluster")
    paces = [worker.tokens_per_s for worker in found.workers if worker.tokens_per_s is not None]
    said = [
        time.strftime("%H:%M:%S", time.localtime(now_s)),
        f"{len(found.workers)} worker{'s' * (len(found.workers) != 1)}",
    ]
    said += [f"{sum(paces):.1f} tokens/s"] if paces else []
    return Text("  ".join(["kvcluster top", *said]), style="bold")


def _table(headings: Sequence[str], rows: Sequence[Sequence[RenderableType]], *, caption: str = "") -> Table | None:
    if not rows:
        return None
    table = Table(headings[0], box=None, caption=caption or None, caption_justify="left", padding=(0, 2, 0, 0))
    for heading in headings[1:]:
        table.add_column(heading, justify="left" if heading in ("cause", "use") else "right", no_wrap=heading == "use")
    for row in rows:
        table.add_row(*(Text(_printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def _owner_row(owner: OwnerStanding) -> tuple[RenderableType, ...]:
    who = (*place(owner), known(owner.epoch))
    if owner.complaint is not None:
        return *who, NO_ANSWER, *(UNKNOWN,) * (len(OWNER_HEADINGS) - len(who) - 1)
    states = [session.state for session in owner.sessions]
    orphans = f" ({states.count('orphaned')} orphaned)" if "orphaned" in states else ""
    requests = f"{owner.running_requests} of {owner.open_requests}"
    return *who, f"{len(states)}{orphans}", requests, _coloured(bar(owner)), *sizes(owner)


def _worker_row(worker: WorkerStanding) -> tuple[str, ...]:
    who, word = place(worker), worker.word
    if word is None:
        return *who, NO_ANSWER, *(UNKNOWN,) * (len(WORKER_HEADINGS) - len(who) - 1)
    pace = UNKNOWN if worker.tokens_per_s is None else f"{worker.tokens_per_s:.1f}"
    return *who, word.device, word.model, word.state.value, str(word.running), str(word.waiting), pace


def _refusal_rows(found: ClusterStanding) -> Iterator[tuple[str, ...]]:
    """Of clients by owners, and of requests by workers."""
    for owner in found.owners:
        for reason, count in owner.refusals.items():
            yield owner.name, short(owner.node_id), reason, f"{count:,}", _per_s(owner.refusals_per_s.get(reason))
    for worker in found.workers:
        for reason, count in worker.word.answered.refused.items() if worker.word else ():
            yield worker.name, short(worker.node_id), reason, f"{count:,}", _per_s(worker.refused_per_s.get(reason))


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())


def _per_s(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:.1f}"


def _coloured(drawn: str) -> Text:
    return Text.assemble(*((sign, _STYLES[sign]) for sign in drawn))
