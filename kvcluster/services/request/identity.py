"""What stands beside a prompt's tokens when a worker names its prefixes; the same wherever it is asked for.

A request's `cache_salt` comes on top (`CacheIdentity.salted`), and the owner of the memory puts the tenant before it
all (`index.identity.root_for`). So whoever knows a worker's identity knows under which root its prompts are found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcluster.index.identity import CacheIdentity
from kvcluster.services.request.settings import RequestSettings

if TYPE_CHECKING:
    from kvcluster.engine.model import Model


def cache_identity(model: Model, settings: RequestSettings) -> CacheIdentity:
    """Of a worker that computes with `model`."""
    return CacheIdentity(model.fingerprint, str(model.dtype), str(settings.layout))


def shares_prefixes(model: Model, settings: RequestSettings) -> bool:
    """Whether anything that it computes is found again."""
    return bool(settings.prefix_cache and model.fingerprint)
