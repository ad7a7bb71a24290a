"""Every metric of kvcluster: its name, kind, unit, labels and meaning, in one place. Needs no Ray.

Ray puts `ray_` before each name and `_total` behind a counter's, and adds the node, the process and the session as
labels of its own. Counts are of one process: they begin again with the next one, as Prometheus' `rate` and `increase`
expect. What each is set from is in `actors.metrics`; the table of docs/OPERATIONS.md is `markdown_rows`.

A label has few values: devices, served models, outcomes, and reasons that are names in the code (`actors.metrics`
bounds them all the same). What is as many as requests, sessions or users is never one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Label(StrEnum):
    """All that there are."""

    DEVICE = "device"
    MODEL = "model"
    OUTCOME = "outcome"
    REASON = "reason"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. `boundaries` are a histogram's, in its unit."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[Label, ...]
    meaning: str
    boundaries: tuple[float, ...] = ()


_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOTAL_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


def _memory(name: str, kind: Kind, unit: str, meaning: str, *more: Label) -> Row:
    return Row(f"kvcluster_memory_{name}", kind, unit, (Label.DEVICE, *more), meaning)


def _worker(name: str, kind: Kind, unit: str, meaning: str, *more: Label) -> Row:
    return Row(f"kvcluster_worker_{name}", kind, unit, (Label.DEVICE, Label.MODEL, *more), meaning)


MEMORY = (
    _memory("capacity_bytes", Kind.GAUGE, "bytes", "what a device, or host pages, may give in all"),
    _memory("free_bytes", Kind.GAUGE, "bytes", "nobody's"),
    _memory("granted_bytes", Kind.GAUGE, "bytes", "promised to clients, and not committed yet"),
    _memory("request_bytes", Kind.GAUGE, "bytes", "committed to requests"),
    _memory("prefix_bytes", Kind.GAUGE, "bytes", "of shared prefixes that somebody uses"),
    _memory("retained_bytes", Kind.GAUGE, "bytes", "kept of ended requests until their room is needed"),
    _memory("foreign_bytes", Kind.GAUGE, "bytes", "what clients have mapped from before the last restart"),
    _memory("quarantined_bytes", Kind.GAUGE, "bytes", "may still be mapped somewhere; waits for a process to end"),
    _memory("sessions_live", Kind.GAUGE, "sessions", "clients that are heard"),
    _memory("sessions_orphaned", Kind.GAUGE, "sessions", "clients silent for their lease, or without connection"),
    _memory("refusals", Kind.COUNTER, "refusals", "acts refused to clients, by the error's name", Label.REASON),
    _memory("evictions", Kind.COUNTER, "evictions", "retained prefixes, of host pages blocks, that gave way"),
    _memory("epoch", Kind.GAUGE, "number", "of this process of the owner: another one after each restart"),
    _memory("incarnation", Kind.GAUGE, "number", "how many processes this owner has had while clients held its memory"),
)
WORKERS = (
    _worker("requests", Kind.COUNTER, "requests", "that ended", Label.OUTCOME, Label.REASON),
    _worker("running", Kind.GAUGE, "requests", "that hold memory"),
    _worker("waiting", Kind.GAUGE, "requests", "that hold none yet"),
    _worker("generated_tokens", Kind.COUNTER, "tokens", "generated, also for requests that are not over"),
    _worker("prompt_tokens", Kind.COUNTER, "tokens", "of the prompts of completed requests"),
    _worker("cached_tokens", Kind.COUNTER, "tokens", "of these, found computed"),
    _worker("recomputed_tokens", Kind.COUNTER, "tokens", "computed before, and lost by a failure"),
    _worker("preemptions", Kind.COUNTER, "requests", "that gave their memory back for an older one"),
    _worker("messages", Kind.COUNTER, "messages", "frames and replies; over generated_tokens: messages a token"),
    _worker("committed_per_live", Kind.GAUGE, "ratio", "committed bytes to live ones, sums over all steps"),
)
GATEWAY = (
    Row(
        "kvcluster_http_requests",
        Kind.COUNTER,
        "requests",
        (Label.MODEL, Label.OUTCOME, Label.REASON),
        "that ended: answered, refused, failed or cancelled",
    ),
    Row("kvcluster_http_open", Kind.GAUGE, "requests", (), "under way, streamed or not; not there where none is"),
    Row(
        "kvcluster_http_first_token_seconds",
        Kind.HISTOGRAM,
        "seconds",
        (Label.MODEL,),
        "from a request to the first token of its stream",
        _FIRST_TOKEN_S,
    ),
    Row(
        "kvcluster_http_request_seconds",
        Kind.HISTOGRAM,
        "seconds",
        (Label.MODEL, Label.OUTCOME),
        "from a request to its end",
        _TOTAL_S,
    ),
)
ROWS = (*MEMORY, *WORKERS, *GATEWAY)


def markdown_rows() -> Iterator[str]:
    """The table, a line a row."""
    yield "| metric | kind | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for row in ROWS:
        labels = ", ".join(row.labels) or "none"
        yield f"| `{row.name}` | {row.kind} | {row.unit} | {labels} | {row.meaning} |"
