from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.engine.stop_strings import Passed, StopStrings


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(
    st.text("ab\n", max_size=30),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=10),
)
def test_the_text_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    finder, shown, stopped = StopStrings(stops), "", False
    for piece in pieces_of(text, cuts):
        passed = finder.push(piece)
        shown, stopped = shown + passed.text, passed.stopped
        if stopped:
            break
    if not stopped:
        shown += finder.finish()
    ended = [text[: text.find(stop)] for stop in stops if stop in text]
    assert stopped == bool(ended)
    if not ended:
        assert shown == text
    else:
        assert shown in ended
        assert not any(stop in shown for stop in stops)


def test_only_what_could_begin_a_stop_string_is_held_back() -> None:
    finder = StopStrings(["\n\n", "END"])
    assert finder.push("a line\n") == Passed("a line", stopped=False)
    assert finder.push("EN") == Passed("\n", stopped=False)
    assert finder.push("OUGH") == Passed("ENOUGH", stopped=False)
    assert finder.push("E") == Passed("", stopped=False)
    assert finder.push("ND and more") == Passed("", stopped=True)
    assert finder.finish() == ""


def test_a_stop_string_that_was_passed_by_ends_nothing_later_and_one_that_was_begun_does() -> None:
    finder = StopStrings(["ab", "xaby", "END"])
    assert finder.pass_by("one ab two xab") == "one ab two "
    assert finder.push("z, EN") == Passed("xabz, ", stopped=False)
    assert finder.push("D") == Passed("", stopped=True)
    finder = StopStrings(["END"])
    assert finder.pass_by("an END, an EN") == "an END, an "
    assert finder.push("D of it") == Passed("", stopped=True)


@given(
    st.text("ab\n", max_size=30),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=10),
    st.integers(0, 6),
)
def test_the_text_ends_before_the_first_stop_string_that_is_complete_after_what_was_passed_by(
    text: str, stops: list[str], cuts: list[int], passed_by: int
) -> None:
    finder, shown, stopped = StopStrings(stops), "", False
    pieces = pieces_of(text, cuts)
    for piece in pieces[:passed_by]:
        shown += finder.pass_by(piece)
    for piece in pieces[passed_by:]:
        passed = finder.push(piece)
        shown, stopped = shown + passed.text, passed.stopped
        if stopped:
            break
    known = sum(map(len, pieces[:passed_by]))
    ends = [at for stop in stops if (at := text.find(stop, max(0, known - len(stop) + 1))) >= 0]
    assert stopped == bool(ends)
    assert text.startswith(shown)
    assert len(shown) in ends if stopped else shown + finder.finish() == text


def test_without_stop_strings_all_text_passes() -> None:
    assert StopStrings([]).push("END") == Passed("END", stopped=False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 character"):
        StopStrings(["a", ""])
