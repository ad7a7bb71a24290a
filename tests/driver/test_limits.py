"""An allowance counts between measurements, and measures in time."""

from __future__ import annotations

import pytest

from kvcluster.driver.limits import Allowance, descriptor_room, mapping_room, memory_room
from kvcluster.errors import LimitReached


class Kernel:
    """So many are left by its own figures; counts how often it is asked."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked = 0

    def measure(self) -> int:
        self.asked += 1
        return self.left


def _allowance(kernel: Kernel) -> Allowance:
    return Allowance("pens", remedy="buy pens", measure=kernel.measure)


def test_what_is_left_is_granted_to_the_last_one() -> None:
    kernel = Kernel(100)
    allowance = _allowance(kernel)
    for _ in range(100):
        allowance.ensure(1)
        allowance.used(1)
        kernel.left -= 1
    with pytest.raises(LimitReached) as caught:
        allowance.ensure(1)
    refusal = caught.value
    assert (refusal.limit, refusal.need, refusal.free, refusal.remedy) == ("pens", 1, 0, "buy pens")


def test_a_refusal_takes_nothing() -> None:
    allowance = _allowance(Kernel(3))
    with pytest.raises(LimitReached):
        allowance.ensure(4)
    allowance.ensure(3)


def test_the_kernel_is_asked_seldom() -> None:
    kernel = Kernel(1_000_000)
    allowance = _allowance(kernel)
    for _ in range(100_000):
        allowance.ensure(1)
        allowance.used(1)
    assert kernel.asked == 1


def test_what_others_use_is_noticed_once_half_is_used() -> None:
    kernel = Kernel(100)
    allowance = _allowance(kernel)
    allowance.ensure(1)
    allowance.used(51)
    kernel.left = 0  # the rest of the process took 49
    with pytest.raises(LimitReached):
        allowance.ensure(1)


def test_what_is_given_back_may_be_used_again_without_asking() -> None:
    kernel = Kernel(10)
    allowance = _allowance(kernel)
    for _ in range(50):
        allowance.ensure(1)
        allowance.used(1)
        allowance.used(-1)
    assert kernel.asked == 1


def test_what_is_used_to_the_last_is_refused_and_measured_a_few_times_on_the_way() -> None:
    kernel = Kernel(100)
    allowance = _allowance(kernel)
    for _ in range(50):
        allowance.ensure(2)
        allowance.used(2)
        kernel.left -= 2
    with pytest.raises(LimitReached) as caught:
        allowance.ensure(1)
    assert (caught.value.need, caught.value.free) == (1, 0)
    assert kernel.asked < 20


def test_what_others_give_back_is_found() -> None:
    kernel = Kernel(0)
    allowance = _allowance(kernel)
    with pytest.raises(LimitReached):
        allowance.ensure(1)
    kernel.left = 1
    allowance.ensure(1)


def test_every_room_of_this_process_is_positive() -> None:
    assert min(descriptor_room(), mapping_room(), memory_room()) > 0
