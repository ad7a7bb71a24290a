"""A failpoint does nothing until somebody arms it, and nothing again when disarmed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvcluster.failpoints import Failpoint, arm, reach


@pytest.fixture
def disarmed_afterwards() -> Iterator[None]:
    yield
    arm(None)


def test_an_unarmed_point_is_passed_without_effect() -> None:
    for point in Failpoint:
        reach(point)


@pytest.mark.usefixtures("disarmed_afterwards")
def test_an_armed_process_reports_each_point_that_it_passes_in_order() -> None:
    passed: list[Failpoint] = []
    arm(passed.append)
    for point in Failpoint:
        reach(point)
    assert passed == list(Failpoint)


@pytest.mark.usefixtures("disarmed_afterwards")
def test_what_an_armed_point_raises_reaches_the_caller() -> None:
    def refuse(point: Failpoint) -> None:
        raise OSError(point)

    arm(refuse)
    with pytest.raises(OSError, match=r"device\.commit\.planned"):
        reach(Failpoint.DEVICE_PLANNED)


@pytest.mark.usefixtures("disarmed_afterwards")
def test_a_disarmed_process_reports_nothing_more() -> None:
    passed: list[Failpoint] = []
    arm(passed.append)
    arm(None)
    reach(Failpoint.CLIENT_ASK)
    assert passed == []


def test_every_name_says_whose_half_and_which_act_it_belongs_to() -> None:
    for point in Failpoint:
        side, act, step = point.split(".")
        assert side in {"client", "device"}
        assert act in {"commit", "frame", "release", "publish", "seal", "join", "leave"}
        assert step.isalpha()
