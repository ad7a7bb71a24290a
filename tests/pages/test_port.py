"""A client's end of host pages: what it refuses before anything is sent, and what it gives back by itself."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kvcluster.errors import DriverError, LimitReached, NotAllowed, Quarantined
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import MOST, MOST_RUNS, Find, Grow, Leave, Publish
from kvcluster.services.frames import in_frames
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.pages.asks import Fork, Permute
from kvcluster.services.pages.local import LocalPages
from tests.pages.frames import page_host
from tests.pages.test_faults import Protection
from tests.pages.test_faults import protection as protection
from tests.pages.test_finding_and_sharing import LONG
from tests.pages.world import PITCH_BYTES, SIZE, Writer, small_pages


def two(pages: LocalPages) -> tuple[Writer, Writer]:
    one, other = Writer(pages.port), Writer(pages.port)
    one.begin(LONG[:8])
    other.begin([9, *LONG[:7]])
    return one, other


# --- before anything is sent ------------------------------------------------------------------------------------------


def test_a_sequence_is_in_one_ask_of_a_frame_whichever_asks_name_it() -> None:
    with small_pages(20) as pages:
        one, other = two(pages)
        new, frames = Writer(pages.port), pages.statistics().frames
        fork = Fork(one.memory, (new.memory,), 8)
        permute = Permute(one.memory, (one.memory, other.memory), (0, 0), 8)
        for asks in ([Grow(other.memory, 20), permute], [Grow(new.memory, 4), fork], [permute, Grow(one.memory, 20)]):
            with pytest.raises(NotAllowed, match="one ask in flight"):
                pages.port.submit(asks)
        assert pages.statistics().frames == frames


def test_every_sequence_that_an_ask_names_is_in_flight_until_it_is_settled() -> None:
    with small_pages(20) as pages:
        one, other = two(pages)
        permute = Permute(one.memory, (one.memory, other.memory), (0, 0), 8)
        pending = pages.port.submit([permute])
        for writer in (one, other):
            with pytest.raises(NotAllowed, match="in flight"):
                pages.port.submit([Grow(writer.memory, 20)])
        pending.settle()
        for writer in (one, other):
            pages.port.one(Grow(writer.memory, 20))


def test_more_than_a_frame_carries_is_refused_and_what_is_packed_into_frames_is_not() -> None:
    with small_pages(20) as pages:
        port = pages.port
        asks = [Grow(Writer(port).memory, SIZE) for _ in range(MOST.asks + 1)]
        with pytest.raises(ValueError, match="a frame carries at most"):
            port.submit(asks)
        assert [len(frame) for frame in in_frames(asks, load_of=port.load)] == [MOST.asks, 1]


def test_an_ask_for_a_device_and_tokens_that_are_no_good_are_refused() -> None:
    with small_pages(20) as pages:
        one, other = two(pages)
        new = Writer(pages.port)
        with pytest.raises(NotAllowed, match="Leave is for a device"):
            pages.port.submit([Leave(one.memory)])  # type: ignore[arg-type]
        for ask in (
            Permute(one.memory, (other.memory,), (0,), 8),
            Find(new.memory, packed(LONG), len(LONG) - 1),
            Publish(one.memory, 9),
        ):
            with pytest.raises(ValueError, match=r"none of the members|has room for"):
                pages.port.submit([ask])


# --- what is given back -----------------------------------------------------------------------------------------------


def test_a_find_whose_access_fails_holds_nothing_and_is_served_when_it_is_asked_again(protection: Protection) -> None:
    with small_pages(20) as pages:
        new = Writer(pages.port)
        with protection.failing_at(1):
            [outcome] = pages.port.submit([Find(new.memory, packed(LONG), 20)]).settle()
        assert isinstance(outcome.error, DriverError)
        assert (outcome.joined_tokens, new.memory.tokens, new.memory.committed_bytes) == (0, 0, 0)
        assert pages.audit().accounts == {"free": 20 * PITCH_BYTES}
        assert new.begin(LONG) == 0
        new.check()
        new.end()


def test_a_growth_whose_access_fails_is_kept_by_who_has_tokens_and_goes_back_from_who_has_none(
    protection: Protection,
) -> None:
    with small_pages(20) as pages:
        one, new = Writer(pages.port), Writer(pages.port)
        one.begin(LONG[:8])
        for writer in (one, new):
            with protection.failing_at(1):
                [outcome] = pages.port.submit([Grow(writer.memory, 20)]).settle()
            assert isinstance(outcome.error, DriverError)
            assert pages.audit().free_blocks == 15
        one.append([1] * 12)
        new.append([2] * 20)
        for writer in (one, new):
            writer.check()
            writer.end()


def test_what_can_neither_be_written_nor_be_given_back_is_quarantined_until_the_process_is_gone(
    protection: Protection,
) -> None:
    with small_pages(20) as pages:
        port = pages.open_port()
        new = Writer(port)
        protection.fails_always = True
        [outcome] = port.submit([Find(new.memory, packed(LONG), 16)]).settle()
        protection.fails_always = False
        assert isinstance(outcome.error, Quarantined)
        assert pages.audit().accounts == {"free": 16 * PITCH_BYTES, "quarantine": 4 * PITCH_BYTES}
        with pytest.raises(NotAllowed, match="quarantined"):
            new.begin(LONG)
        port.close()
        pages.service.gone(port.session)
        assert pages.audit().accounts == {"free": 20 * PITCH_BYTES}


def test_children_of_a_fork_that_is_refused_are_closed_and_forgotten(protection: Protection) -> None:
    with small_pages(20) as pages:
        one, other = two(pages)
        before = set(pages.port.memories())
        for failing_call, refusal in ((1, DriverError), (0, NotAllowed)):
            child, opened = pages.port.memory(one.memory.spec), other.memory
            children = (child,) if failing_call else (child, opened)
            with protection.failing_at(failing_call):
                [outcome] = pages.port.submit([Fork(one.memory, children, 8)]).settle()
            assert isinstance(outcome.error, refusal)
            assert child.state is MemoryState.CLOSED
            assert set(pages.port.memories()) == before
        one.append([1])
        one.check()


def test_a_client_that_cannot_map_the_pages_leaves_no_session(protection: Protection) -> None:
    with small_pages(20) as pages:
        for failing_call in itertools.count(1):
            sessions = pages.statistics().sessions
            try:
                with protection.failing_at(failing_call):
                    pages.open_port().close()
            except DriverError:
                assert pages.statistics().sessions == sessions
                continue
            assert failing_call > 1
            break


def test_a_sequence_of_more_blocks_than_a_reply_names_is_refused_before_anything_is_said() -> None:
    with small_pages(4) as pages:
        spec = replace(Writer(pages.port).memory.spec, max_tokens=SIZE * MOST_RUNS + 1)
        before = pages.port.memories()
        with pytest.raises(LimitReached, match="larger block_size"):
            pages.port.memory(spec)
        assert pages.port.memories() == before


@pytest.mark.parametrize("unknown", [4, 8])
def test_a_reply_that_would_name_too_many_blocks_is_refused_and_nothing_is_taken(unknown: int) -> None:
    """Two blocks of the second are found, or three are new; a reply names two."""
    with page_host(most_runs=2) as host:
        client = host.client()
        first = client.open()
        first.find(LONG[:8])
        first.close(8, [])
        second = client.open()
        before = host.picture()
        with pytest.raises(NotAllowed, match="more runs of windows or blocks"):
            second.find(LONG[: 8 + unknown])
        assert host.picture() == before
