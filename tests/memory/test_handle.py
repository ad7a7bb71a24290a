"""A handle knows whose it is and what may become of it."""

from __future__ import annotations

import pytest

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import InvariantBroken
from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle, HandleState, bytes_by_tenant, bytes_of


def handle(number: int, tenant: str | None = None, size_bytes: int = 4096) -> Handle:
    return Handle(HandleId(number, 0), PhysicalHandle(number, size_bytes), tenant=tenant)


def test_bytes_are_summed_by_the_tenant_that_pays_and_nobodys_are_the_nameless_ones() -> None:
    handles = [handle(1, "a"), handle(2, "b", 8192), handle(3, "a"), handle(4), handle(5, "")]
    assert bytes_by_tenant(handles) == {"a": 8192, "b": 8192, "": 8192}
    assert bytes_of(handles) == sum(bytes_by_tenant(handles).values())
    assert bytes_by_tenant([]) == {}


def test_a_shared_handle_is_destroyed_or_quarantined_and_never_lent_or_pooled_again() -> None:
    for to in (HandleState.OUT, HandleState.POOLED):
        shared = handle(1, "a")
        shared.move(HandleState.OUT)
        shared.move(HandleState.SHARED)
        with pytest.raises(InvariantBroken):
            shared.move(to)
        assert shared.state is HandleState.SHARED
    for to in (HandleState.GONE, HandleState.QUARANTINED):
        shared = handle(1, "a")
        shared.move(HandleState.OUT)
        shared.move(HandleState.SHARED)
        shared.move(to)


def test_only_what_is_out_can_be_shared() -> None:
    for state in (HandleState.POOLED, HandleState.QUARANTINED, HandleState.GONE):
        one = Handle(HandleId(1, 0), PhysicalHandle(1, 4096), state)
        with pytest.raises(InvariantBroken):
            one.move(HandleState.SHARED)


def test_two_handles_are_two_even_where_everything_in_them_is_equal() -> None:
    assert handle(1, "a") != handle(1, "a")
    assert len({handle(1, "a"), handle(1, "a")}) == 2
