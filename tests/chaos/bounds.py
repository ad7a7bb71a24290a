"""What a case may cost at most: so many workers lost, and so many tokens computed again.

Time is what everybody may lose. A worker is lost where the case kills it, stops it until it is given up, or takes its
node away, and nowhere else: no worker is lost with its device or its host pages. Tokens are computed again where the
case itself leaves nobody who has them:

    a worker dies         its successor goes on with what it had, so none; but for what is kept only until others need
                          the room (`grow`), is being shared just then (`rings`), was in host pages (`pages`), or went
                          with its device, which dies too, or has been restarted meanwhile, or whose node is gone
    a worker is stopped   for longer than its lease: what it had is given up
    host pages die        with all that was in them; so where they hang until their clients end them

and then at most what there was: all rows of those that ran, as far as memory held them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.failpoints import Passer
from kvcluster.testing.arming import parse_faults
from kvcluster.units import parse_bytes
from tests.chaos.cases import LONGER_THAN_A_LEASE_S, UNTIL_IT_IS_GIVEN_UP_S, Act, Case
from tests.chaos.loads import LOADS, RUNNING, Load

TOKEN_BYTES = 512  # of both families: layers x heads is 4, of K and V, 16 float32 each


@dataclass(frozen=True, slots=True)
class Most:
    """`why` anything may be computed again; empty where nothing may."""

    lost_workers: int
    recomputed_tokens: int
    why: str = ""


def most_of(case: Case) -> Most:
    """What the case may cost."""
    load, killed = LOADS[case.load], killed_by(case)
    losses = deaths = killed.count(Passer.REQUEST) + _given_up(case)
    if case.act is Act.NODE:
        deaths = load.devices * load.workers_per_device
        losses = 2 * deaths  # who is started in its place before the death of the node is known is lost too
    reasons = {
        _of_the_dead(case, load): deaths * worker_tokens(load),
        _of_the_fenced(case): worker_tokens(load),
        _of_the_pages(case): (killed.count(Passer.PAGES) + _hangs(case)) * pages_tokens(load),
    }
    tokens = sum(tokens for why, tokens in reasons.items() if why)
    return Most(losses, tokens, "; ".join(why for why, tokens in reasons.items() if why and tokens))


def overrun(case: Case, *, lost_workers: int, recomputed_tokens: int) -> str:
    """What a run cost beyond what it may, in words; empty where it did not."""
    most = most_of(case)
    if lost_workers > most.lost_workers:
        return f"{lost_workers} workers lost, and at most {most.lost_workers} may be"
    if recomputed_tokens > most.recomputed_tokens:
        because = f", because {most.why}" if most.why else ""
        return f"{recomputed_tokens} tokens computed again, and at most {most.recomputed_tokens} may be{because}"
    return ""


def killed_by(case: Case) -> list[Passer | str]:
    """Who dies of the case's text, by kind."""
    faults = [fault for fault in parse_faults(case.text) if fault.action == "kill"]
    return [fault.kind or fault.point.passers[0] for fault in faults]


def worker_tokens(load: Load) -> int:
    """The most that a worker has at a time, in memory of whatever kind."""
    rows = RUNNING // (load.devices * load.workers_per_device) * load.longest
    return min(rows, parse_bytes(load.settings["device_memory"]) // TOKEN_BYTES + pages_tokens(load))


def pages_tokens(load: Load) -> int:
    """The most that host pages hold."""
    return parse_bytes(load.settings.get("host_memory", "0KiB")) // TOKEN_BYTES


def _given_up(case: Case) -> int:
    return int(case.stops is Passer.REQUEST and case.seconds >= UNTIL_IT_IS_GIVEN_UP_S)


def _hangs(case: Case) -> int:
    """Of host pages: so long that their clients end them."""
    return int(case.stops is Passer.PAGES and case.seconds >= UNTIL_IT_IS_GIVEN_UP_S)


def _of_the_dead(case: Case, load: Load) -> str:
    """Why a successor may not have all that a worker had."""
    if case.act is Act.NODE:
        return "the devices went with their workers"
    if Passer.DEVICE in killed_by(case):
        return "what a worker leaves goes with its device"
    why = {
        "grow": "others need the room of what a worker leaves",
        "rings": "what is being shared is not kept",
        "pages": "pages are not kept",
    }
    return why.get(load.name, "")


def _of_the_fenced(case: Case) -> str:
    outlives_lease = case.stops is Passer.REQUEST and case.seconds >= LONGER_THAN_A_LEASE_S
    return "a worker that is not heard gives up what it has" if outlives_lease else ""


def _of_the_pages(case: Case) -> str:
    dies = Passer.PAGES in killed_by(case) or _hangs(case)
    return "what was in pages goes with their owner" if dies else ""
