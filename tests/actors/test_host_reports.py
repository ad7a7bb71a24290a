"""The report of host pages: this job's figures, and not those of the jobs before it."""

from __future__ import annotations

from actors.reports import host_report
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import Find
from kvcluster.services.pages.local import LocalPages
from tests.pages.world import PITCH_BYTES, SIZE, Writer, small_pages

PROMPT = list(range(20, 20 + 3 * SIZE + 1))


def ask(pages: LocalPages) -> None:
    """A job's work: one prompt, which whoever asks next finds."""
    writer = Writer(pages.port)
    writer.begin(PROMPT)
    writer.end(retain=True)


def test_an_earlier_jobs_lookups_and_found_tokens_are_not_this_jobs() -> None:
    with small_pages(16) as pages:
        ask(pages)
        start = pages.statistics()
        ask(pages)
        mine = host_report(start, pages.statistics())
    assert (mine.lookups, mine.asked_tokens, mine.found_tokens, mine.evictions) == (1, len(PROMPT), 3 * SIZE, 0)
    assert (mine.memory_bytes, mine.peak_used_bytes) == (16 * PITCH_BYTES, 4 * PITCH_BYTES)


def test_pages_that_were_made_again_count_from_their_beginning() -> None:
    with small_pages(16) as first, small_pages(16) as second:
        for _ in range(3):
            ask(first)
        ask(second)
        again = host_report(first.statistics(), second.statistics())
    assert (again.lookups, again.found_tokens) == (1, 0)


def test_what_is_only_kept_for_others_is_not_used() -> None:
    with small_pages(16) as pages:
        writer = Writer(pages.port)
        writer.begin(PROMPT)
        writer.end(retain=True)
        for place in range(3):
            other = Writer(pages.port)
            pages.port.one(Find(other.memory, packed([place]), 1))
            other.end()
        assert pages.statistics().retained_bytes == 3 * PITCH_BYTES
        assert pages.statistics().peak_used_bytes == 4 * PITCH_BYTES
