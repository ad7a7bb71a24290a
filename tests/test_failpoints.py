"""A failpoint does nothing until somebody arms it, and nothing again when disarmed."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcluster.errors import DriverError
from kvcluster.failpoints import Failpoint, Passer, arm, arm_with, checked, reach

ROOT = Path(__file__).parents[1]


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


@pytest.mark.usefixtures("disarmed_afterwards")
def test_a_text_arms_this_process_and_nothing_disarms_it() -> None:
    arm_with("client.commit.ask=raise@*")
    with pytest.raises(DriverError):
        reach(Failpoint.CLIENT_ASK)
    with pytest.raises(ValueError, match="names no failpoint"):
        arm_with("client.commit.nowhere=raise")
    with pytest.raises(DriverError):
        reach(Failpoint.CLIENT_ASK)
    arm_with("")
    reach(Failpoint.CLIENT_ASK)


def test_a_text_that_is_handed_on_is_read_first() -> None:
    assert checked("client.commit.ask=raise") == "client.commit.ask=raise"
    assert checked("") == ""
    with pytest.raises(ValueError, match="is no action"):
        checked("client.commit.ask=explode")


def test_every_name_says_whose_half_and_which_act_it_belongs_to() -> None:
    for point in Failpoint:
        side, act, step = point.split(".")
        assert side in {"client", "device", "pages", "owner", "request", "job"}
        assert act.isalpha()
        assert step.isalpha()


def test_every_name_begins_with_who_passes_it() -> None:
    sides = {"client": {Passer.REQUEST}, "request": {Passer.REQUEST}, "job": {Passer.JOB}, "pages": {Passer.PAGES}}
    owners = {Passer.DEVICE, Passer.PAGES}
    for point in Failpoint:
        assert set(point.passers) <= sides.get(point.partition(".")[0], owners)
        assert point.passers
        assert point.what


def test_every_place_is_passed_somewhere_and_no_place_twice() -> None:
    text = "".join(path.read_text() for room in ("kvcluster", "actors") for path in (ROOT / room).rglob("*.py"))
    shared = {  # a release, a publication and a trim; a device and host pages
        Failpoint.CLIENT_UNMAPPED: 3,
        Failpoint.OWNER_HANDING: 2,
        Failpoint.OWNER_OPENED: 2,
        Failpoint.OWNER_SERVING: 2,
    }
    for point in Failpoint:
        places = text.count(f"reach(Failpoint.{point.name})")
        assert places == shared.get(point, 1), point


def test_an_unarmed_point_costs_a_look_at_one_global_and_a_comparison() -> None:
    executed = [i.opname for i in dis.get_instructions(reach) if i.opname not in {"RESUME", "CACHE"}]
    before_the_call = executed[: next(n for n, name in enumerate(executed) if "JUMP" in name) + 1]
    assert before_the_call[0] == "LOAD_GLOBAL"
    assert len(before_the_call) <= 4
