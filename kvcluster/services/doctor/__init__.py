"""`kvcluster doctor`: what this machine offers, and what will bite. Looks and tries out; changes nothing.

Each look is a function of its own that returns findings: one sentence of what there is, and one remedy where that is
not as it should be. A *problem* keeps kvcluster from working here, or keeps memory for nobody; a *note* makes it
smaller or slower than the machine is, or names what is missing without being needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcluster.services.doctor.finding import Finding as Finding
from kvcluster.services.doctor.finding import Status as Status


def examine() -> Iterator[Finding]:
    """Every finding, in the order in which a person reads them; each is looked for when it is asked for."""
    from kvcluster.services.doctor import environment, gpu, huge_pages, kernel, leftovers, limits

    for room in (kernel, limits, huge_pages, gpu, environment, leftovers):
        yield from room.findings()
