"""An owner's accounts and refusals summed to a few kinds: for tables, metrics and JSON, where names are too many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from kvcluster.errors import NotShareable
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.statistics import DeviceStatistics


def bytes_by_kind(accounts: Mapping[str, int]) -> dict[str, int]:
    """The accounts of a ledger, those of a kind together: "request/session/number@tenant" is a request."""
    held = Counter[str]()
    for account, size_bytes in accounts.items():
        held[re.split("[/@]", account)[0]] += size_bytes
    return dict(held)


def refusals_by_reason(figures: DeviceStatistics | PageStatistics) -> dict[str, int]:
    """By the error's name; of what is not shareable by its reason instead, which says more."""
    refusals = dict(figures.refusals)
    if isinstance(figures, DeviceStatistics):
        refusals.pop(NotShareable.__name__, None)
        refusals |= figures.sharing_refusals
    return refusals
