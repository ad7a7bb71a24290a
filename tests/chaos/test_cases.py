"""The list of cases: nothing that can be killed is left out, and each says what must happen."""

from __future__ import annotations

from collections import Counter

from kvcluster.failpoints import Failpoint, Passer
from kvcluster.testing.arming import parse_faults
from tests.chaos.cases import ELSEWHERE, Act, all_cases, slice_of_cases
from tests.chaos.loads import LOADS


def test_every_failpoint_kills_every_kind_of_process_that_passes_it_unless_no_job_does() -> None:
    killed = Counter((fault.point, case.kind) for case in all_cases() for fault in parse_faults(case.text)[-1:])
    for point in Failpoint:
        for kind in point.passers:
            assert bool(killed[point, kind]) != (point in ELSEWHERE), f"{kind} at {point}"


def test_no_case_stands_twice_and_each_has_its_load() -> None:
    cases = all_cases()
    assert len({(case.name, case.load) for case in cases}) == len(cases)
    assert {case.load for case in cases} == LOADS.keys()


def test_what_a_case_arms_is_understood_and_ends_in_the_fault_of_who_is_hurt() -> None:
    for case in all_cases():
        faults = parse_faults(case.text)
        assert all(fault.passage or fault.percent for fault in faults), case
        assert all(fault.kind in (None, case.kind) for fault in faults[-1:]), case
        assert (case.act is Act.HELD) == bool(case.held), case


def test_replies_are_lost_at_one_ten_and_fifty_percent() -> None:
    lost = {fault.percent for case in all_cases() for fault in parse_faults(case.text) if fault.action == "lose"}
    assert lost == {1, 10, 50}


def test_the_slice_has_every_kind_of_actor_and_one_load() -> None:
    cases = slice_of_cases()
    assert {case.kind for case in cases} >= {Passer.REQUEST, Passer.DEVICE, Passer.PAGES}
    assert len({case.load for case in cases}) == 1
