"""What is asked of host pages passes every failpoint of theirs, so that a test that kills there shows something."""

from __future__ import annotations

from kvcluster.failpoints import Failpoint
from kvcluster.testing.arming import Arms, armed
from tests.pages.test_faults import ASKS, PROMPT, Scene
from tests.pages.world import Writer, small_pages

WATCHED = "pages.share.told=delay:0@*"  # armed with anything, a process counts what it passes


def passed_by(ask: str) -> Arms:
    with small_pages(40) as pages, armed(WATCHED) as arms:
        scene = Scene(pages)
        scene.submit(ASKS[ask](scene))
    return arms


def test_between_them_all_asks_pass_every_point_of_pages_but_an_eviction() -> None:
    passed = {point for ask in ASKS for point in passed_by(ask).passed}
    ours = {point for point in Failpoint if point.startswith(("pages.", "client.pages."))}
    assert ours - passed == {Failpoint.PAGES_EVICTING}


def test_who_needs_what_is_retained_passes_the_point_of_an_eviction() -> None:
    with small_pages(16) as pages, armed(WATCHED) as arms:
        first, second = Writer(pages.port), Writer(pages.port)
        first.begin(PROMPT)
        first.end(retain=True)
        second.begin([9] * 60)
        second.end()
    assert arms.passed[Failpoint.PAGES_EVICTING] >= 1


def test_a_sequence_that_is_shared_passes_the_point_of_it_and_no_other_ask_does() -> None:
    assert passed_by("publish").passed[Failpoint.PAGES_SHARED] == 1
    assert passed_by("grow").passed[Failpoint.PAGES_SHARED] == 0
