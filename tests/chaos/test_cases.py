"""The list of cases: nothing that can be killed is left out, and each says what must happen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kvcluster.failpoints import Failpoint, Passer
from kvcluster.testing.arming import parse_faults
from tests.chaos.bounds import killed_by, most_of
from tests.chaos.cases import ELSEWHERE, Act, Case, all_cases, slice_of_cases
from tests.chaos.loads import LOADS
from tests.chaos.play import Outcome, overrun_of


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


def case_of(name: str, load: str) -> Case:
    return next(case for case in all_cases() if (case.name, case.load) == (name, load))


def test_whoever_survives_the_death_of_a_device_loses_no_worker_and_computes_nothing_again() -> None:
    alone = [case for case in all_cases() if set(killed_by(case)) == {Passer.DEVICE} and case.stops is None]
    assert len(alone) > 10
    for case in alone:
        most = most_of(case)
        assert (most.lost_workers, most.recomputed_tokens, most.why) == (0, 0, ""), case


def test_only_a_case_that_ends_a_worker_may_lose_one() -> None:
    for case in all_cases():
        ends = killed_by(case).count(Passer.REQUEST) + (case.name == "request stopped for 12 s")
        assert most_of(case).lost_workers == (4 if case.act is Act.NODE else ends), case


def test_what_may_be_computed_again_is_less_than_all_and_has_a_reason() -> None:
    for case in all_cases():
        most, load = most_of(case), LOADS[case.load]
        everything = sum(len(prompt) + work.max_tokens for work in load.works for prompt in work.prompts)
        assert bool(most.recomputed_tokens) == bool(most.why), case
        assert most.recomputed_tokens < everything, case


@pytest.mark.parametrize(
    ("name", "load", "lost", "tokens"),
    [
        ("device at device.commit.charged", "grow", 0, 0),
        ("device at device.publish.planned", "rings", 0, 0),
        ("device at owner.exit.leaving", "grow", 0, 0),
        ("10 % of replies lost", "pages", 0, 0),
        ("device stopped for 12 s", "pages", 0, 0),
        ("request stopped for 2 s", "pages", 0, 0),
        ("request at request.step.sampled", "heirs", 1, 0),
        ("request at client.successor.adopted", "heirs", 2, 0),
        ("request at client.commit.mapped", "grow", 1, 256),  # all that a device holds
        ("request at client.seal.sealed", "rings", 1, 4 * 131),
        ("device at owner.session.gone", "grow", 1, 256),
        ("pages at pages.grow.charged", "pages", 0, 512),  # all that the pages hold
        ("a node of three removed", "grow", 4, 512),
    ],
)
def test_a_run_that_cost_a_worker_or_a_token_more_than_its_case_may_is_refused(
    name: str, load: str, lost: int, tokens: int
) -> None:
    outcome = Outcome(case_of(name, load), losses=("it was killed",) * lost, recomputed_tokens=tokens)
    assert overrun_of(outcome) == ""
    assert f"{lost + 1} workers lost" in overrun_of(replace(outcome, losses=("it was killed",) * (lost + 1)))
    assert f"{tokens + 1} tokens computed again" in overrun_of(replace(outcome, recomputed_tokens=tokens + 1))
