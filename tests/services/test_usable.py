"""What of an address can be used is counted from its beginning, and a hole ends it until a release."""

from __future__ import annotations

import pytest

from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.ids import WindowRun
from kvcluster.services.usable import UsableWindows

SHAPE = Shape((GroupShape(1, 256), GroupShape(1, 256, Keeps.SNAPSHOT, 2)), 4096)  # 16 tokens a window


@pytest.fixture
def usable() -> UsableWindows:
    usable = UsableWindows(SHAPE)
    usable.grow((4, 2))
    return usable


def test_what_is_sealed_can_be_used_and_what_grows_stays_as_long_as_it_was(usable: UsableWindows) -> None:
    usable.seal([WindowRun(0, 0, 2, 3)])
    assert (usable.windows, usable.sealed, usable.tokens) == ((5, 2), (5, 0), 80)
    usable.grow((3, 0))
    assert usable.windows == (5, 2)


def test_windows_before_others_that_are_gone_leave_no_token_until_all_is_given_back(usable: UsableWindows) -> None:
    usable.seal([WindowRun(0, 0, 0, 3)])
    usable.tear([WindowRun(0, 0, 1, 1)])
    assert (usable.windows, usable.sealed, usable.is_torn, usable.tokens) == ((1, 2), (1, 0), True, 0)
    usable.empty()
    assert (usable.windows, usable.sealed, usable.is_torn, usable.tokens) == ((0, 0), (0, 0), False, 0)


def test_to_tear_nothing_tears_nothing(usable: UsableWindows) -> None:
    usable.tear([])
    assert (usable.windows, usable.is_torn) == ((4, 2), False)


def test_a_sealed_snapshot_is_known_and_gone_without_a_hole(usable: UsableWindows) -> None:
    assert not usable.has_sealed_snapshot
    usable.seal([WindowRun(1, 0, 0, 2)])
    assert usable.has_sealed_snapshot
    usable.drop_snapshots()
    assert (usable.windows, usable.has_sealed_snapshot, usable.tokens) == ((4, 0), False, 64)
