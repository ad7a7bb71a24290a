"""What a strict call does besides its work: failures are told as ours, with what was asked; all else passes."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from kvcluster.driver.books import RuleBroken
from kvcluster.driver.gate import CaptureGate
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.driver.strict import Asked, CallFailed, Entrance, strict
from kvcluster.errors import DriverError, KvClusterError
from kvcluster.testing.driver_contract import forked


class Refused(CallFailed):
    """The hardware said no."""


class Hardware:
    """Does what it is told, strictly; writes down what its translator was told."""

    def __init__(self) -> None:
        self._entrance = Entrance(self._as_ours, CaptureGate())
        self.told: list[tuple[Asked, Exception]] = []

    def _as_ours(self, asked: Asked, failure: Exception) -> KvClusterError:
        self.told.append((asked, failure))
        return DriverError(call=asked.call, code=errno.EIO, name="EIO")

    @strict
    def map(self, address: int, handle: PhysicalHandle, act: Callable[[], int]) -> int:
        return act()

    @strict
    def create(self, size_bytes: int, act: Callable[[], int]) -> int:
        return act()

    def wait(self, act: Callable[[], int]) -> int:
        with self._entrance.passing("wait"):
            return act()

    def close(self) -> None:
        self._entrance.shut()


def _failing(failure: Exception) -> Callable[[], int]:
    def act() -> int:
        raise failure

    return act


FAILURES = pytest.mark.parametrize("failure", [RuleBroken("a rule"), OSError(errno.ENOMEM, "full"), Refused("no")])


def test_a_call_returns_what_its_work_returns() -> None:
    hardware = Hardware()
    assert hardware.create(1, lambda: 7) == 7
    assert hardware.wait(lambda: 8) == 8
    assert hardware.told == []


@FAILURES
def test_a_failure_is_told_with_the_size_that_was_asked(failure: Exception) -> None:
    hardware = Hardware()
    with pytest.raises(DriverError) as caught:
        hardware.create(3, _failing(failure))
    assert hardware.told == [(Asked("create", 0, 3), failure)]
    assert caught.value.__cause__ is failure


@FAILURES
def test_a_failure_is_told_with_address_and_handle_however_they_were_given(failure: Exception) -> None:
    hardware = Hardware()
    with pytest.raises(DriverError):
        hardware.map(4_096, PhysicalHandle(1, 5), _failing(failure))
    with pytest.raises(DriverError):
        hardware.map(act=_failing(failure), handle=PhysicalHandle(1, 5), address=4_096)
    assert [asked for asked, _ in hardware.told] == [Asked("map", 4_096, 5)] * 2


@FAILURES
def test_a_failure_within_a_passage_is_told_by_its_name(failure: Exception) -> None:
    hardware = Hardware()
    with pytest.raises(DriverError):
        hardware.wait(_failing(failure))
    assert hardware.told == [(Asked("wait"), failure)]
    assert hardware.wait(lambda: 1) == 1


@pytest.mark.parametrize("kind", [TypeError, RuntimeError, KeyError, DriverError])
def test_every_other_error_passes_as_it_is(kind: type[Exception]) -> None:
    failure = DriverError(call="x", code=1, name="X") if kind is DriverError else kind("other")
    hardware = Hardware()
    for verb in (lambda: hardware.create(1, _failing(failure)), lambda: hardware.wait(_failing(failure))):
        with pytest.raises(kind) as caught:
            verb()
        assert caught.value is failure
    assert hardware.told == []


def test_after_a_failure_the_next_call_works() -> None:
    hardware = Hardware()
    for failure in (RuleBroken("a rule"), ValueError("other")):
        with pytest.raises((DriverError, ValueError)):
            hardware.create(1, _failing(failure))
    assert hardware.create(1, lambda: 2) == 2


def test_a_closed_one_does_nothing_and_says_so() -> None:
    hardware = Hardware()
    hardware.close()
    hardware.close()
    for verb in (lambda: hardware.create(1, lambda: 0), lambda: hardware.wait(lambda: 0)):
        with pytest.raises(DriverError) as caught:
            verb()
        assert str(caught.value.__cause__) == "the driver is closed"


def test_a_forked_child_does_nothing_with_what_it_inherited_even_where_a_call_was_under_way() -> None:
    gate = CaptureGate()
    entrance = Entrance(lambda asked, failure: DriverError(call=asked.call, code=0, name="?"), gate)

    def act() -> None:
        gate.inherit()  # as the process's own gate does by itself
        with pytest.raises(DriverError) as caught, entrance.passing("map"):
            raise AssertionError("it passes")
        assert "forked" in str(caught.value.__cause__)

    with entrance.passing("map"):  # the child's copy of the lock is held, by nobody
        assert forked(act) == 0
