"""Who was told to publish what it computes: nobody else is, until it ends or has nothing any more."""

from __future__ import annotations

import pytest

from tests.services.device_world import ROOT, WITH_RING, DeviceWorld
from tests.services.sharing.finders import IDS, ringed


@pytest.mark.parametrize("outcome", ["clean", "quarantined"])
def test_a_claim_ends_with_the_last_window_and_not_before(world: DeviceWorld, outcome: str) -> None:
    client = world.client()
    ringed(client, 96).close()
    second = client.open(WITH_RING, root=ROOT)
    assert second.find(IDS[:96]).known == 96
    first_run, *others = second.grow(96, 11, snapshot=True)

    def told() -> int:
        """What a newcomer is to publish."""
        third = client.open(WITH_RING, root=ROOT)
        known = third.find(IDS[:96]).known
        third.close()
        return known

    second.release(*others, outcome=outcome)
    assert told() == 0
    second.release(first_run, outcome=outcome)
    assert told() == 96


def test_a_claim_ends_when_the_last_prefix_is_left(world: DeviceWorld) -> None:
    client = world.client()
    owner = ringed(client, 112)
    near = owner.share(48)
    owner.close()
    second = client.open(WITH_RING, root=ROOT)
    found = second.find(IDS[:112])
    assert (found.prefix, found.known) == (near, 112)
    third = client.open(WITH_RING, root=ROOT)
    assert third.find(IDS[:112]).known == 48
    second.leave(near)
    third.leave(near)
    assert third.find(IDS[:112]).known == 112
