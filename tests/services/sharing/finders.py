"""Requests that look for their tokens, with and without rings."""

from __future__ import annotations

from kvcluster.wire import messages as wire
from tests.services.device_world import ROOT, WITH_RING, Client, DeviceWorld, Request

IDS = list(range(1000, 1256))


def looking(world: DeviceWorld, *, tenant: str = "", root: bytes = ROOT) -> Request:
    """A new request whose tokens are found."""
    return world.client(tenant).open(root=root)


def written(world: DeviceWorld, tokens: int, *, tenant: str = "", root: bytes = ROOT) -> Request:
    """One that found nothing, and holds so many tokens."""
    request = looking(world, tenant=tenant, root=root)
    assert request.find(IDS[:tokens]) == wire.Found()
    request.grow(tokens, -(-tokens // 16))
    return request


def beside(request: Request, tokens: int) -> tuple[wire.Operation, ...]:
    """A grant of what a commit of so many tokens lacks, and the commit."""
    number = request.client.next_grant()
    return (
        wire.Grant(request=request.key, grant=number, size_bytes=1, tokens=tokens),
        wire.Commit(request=request.key, grant=number, tokens=tokens),
    )


def ringed(client: Client, tokens: int) -> Request:
    """One with a ring, that has looked and holds so many tokens and room for a snapshot."""
    request = client.open(WITH_RING, root=ROOT)
    request.find(IDS[:tokens])
    request.grow(tokens, -(-tokens // 16) + 5, snapshot=True)
    return request
