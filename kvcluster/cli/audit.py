"""`kvcluster audit`: every device of a running cluster counts its books twice, and says what it has and who has it.

Host pages do the same, and count as a device here. Exit codes: 0 every device's books sum (or there is no device), 1
some device's do not or it does not answer, 2 there is no cluster, as one sentence. A device whose books do not sum ends
itself; its clients keep what they have mapped.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from kvcluster.cli.listeners import reader_may_leave
from kvcluster.cli.sentences import one_sentence, say
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.statistics import AuditedDevice, DeviceStatistics
from kvcluster.units import format_bytes

ALL_SUM, SOME_DO_NOT = 0, 1
_NODE_CHARACTERS = 8


def audit(
    ray_address: Annotated[
        str | None, typer.Option(help="The running cluster, as RAY_ADDRESS: HOST:PORT; else the one of this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that the books of devices and host pages sum, and show them.

    Exit codes: 0 they do, 1 some do not, 2 no cluster.
    """
    with one_sentence():
        from actors.audits import audit_cluster  # here, because Ray takes seconds to import

        found = audit_cluster(ray_address)
    with reader_may_leave(sys.stdout):
        for line in _json(found) if as_json else _lines(found):
            typer.echo(line)
    wrong = [each for each in found if each.complaint is not None]
    for each in wrong:
        say(f"device {each.device} on node {_short(each)}: {each.complaint}")
    raise typer.Exit(SOME_DO_NOT if wrong else ALL_SUM)


def _json(found: Sequence[AuditedDevice]) -> Iterator[str]:
    yield json.dumps({"devices": [asdict(each) for each in found]}, indent=2)


def _lines(found: Sequence[AuditedDevice]) -> Iterator[str]:
    if not found:
        yield "no device is open on this cluster"
    for each in found:
        if each.figures is not None:
            yield f"{each.device} on node {_short(each)}: {format_bytes(each.figures.capacity_bytes)}, and all sums"
            yield from _books(each.figures)


def _books(figures: DeviceStatistics | PageStatistics) -> Iterator[str]:
    refusals = dict(figures.refusals)
    yield f"  accounts  {_listed(_by_kind(figures.accounts))}"
    if isinstance(figures, PageStatistics):
        yield f"  blocks    {figures.blocks:,} of {figures.block_tokens} tokens, {figures.free_blocks:,} free"
    else:
        refusals |= figures.sharing_refusals
        yield f"  handles   {_listed({name: format_bytes(size) for name, size in figures.handles.items() if size})}"
    yield f"  sessions  {_listed(_sessions(figures))}"
    yield f"  prefixes  {_listed(_prefixes(figures))}"
    yield f"  tenants   {_listed({name or 'unnamed': format_bytes(size) for name, size in figures.tenants.items()})}"
    yield f"  refusals  {_listed({name: f'{count:,}' for name, count in refusals.items() if count})}"
    yield f"  lookups   {figures.lookups:,}, found {figures.found_tokens:,} of {figures.asked_tokens:,} tokens"


def _by_kind(accounts: Mapping[str, int]) -> dict[str, str]:
    """All accounts of a kind as one: a device may have thousands of requests."""
    held, names = Counter[str](), Counter[str]()
    for account, size_bytes in accounts.items():
        kind = re.split("[/@]", account)[0]  # "request/session/number@tenant", "granted@tenant", "free"
        held[kind] += size_bytes
        names[kind] += "/" in account
    counted = {kind: f"{names[kind]} {kind}" if names[kind] else kind for kind in held}
    return {counted[kind]: format_bytes(size_bytes) for kind, size_bytes in held.items()}


def _prefixes(figures: DeviceStatistics | PageStatistics) -> dict[str, str]:
    """How many in each state, and the bytes that are theirs alone; of host pages the blocks that can be found."""
    if isinstance(figures, PageStatistics):
        listed = figures.listed_blocks
        return {f"{listed:,} listed": format_bytes(listed * figures.capacity_bytes // figures.blocks)} if listed else {}
    held, counts = Counter[str](), Counter[str]()
    for prefix in figures.prefixes.values():
        held[prefix.state] += prefix.size_bytes
        counts[prefix.state] += 1
    return {f"{counts[state]} {state}": format_bytes(size_bytes) for state, size_bytes in held.items()}


def _sessions(figures: DeviceStatistics | PageStatistics) -> dict[str, str]:
    """By process, since the session's own name says nothing to anybody; with what waits for a process to end."""
    said: dict[str, list[str]] = {}
    for name, state in figures.sessions.items():
        who = f"process {figures.pids[name]}" if name in figures.pids else name
        waiting_bytes = figures.quarantined.get(name, 0)
        said.setdefault(who, []).append(f"{state} ({format_bytes(waiting_bytes)} wait)" if waiting_bytes else state)
    return {who: " and ".join(states) for who, states in said.items()}


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "none"


def _short(each: AuditedDevice) -> str:
    return each.node_id[:_NODE_CHARACTERS]
