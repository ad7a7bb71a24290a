"""The report of a device: this job's figures, and not those of the jobs before it or of the dead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import kvcluster
from actors.reports import Answered, Span, device_report
from actors.seats import Seat
from actors.spec import WorkerFigures
from kvcluster import LocalDevice
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.statistics import DeviceReport

GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)
GRANULE = 4096
TOKENS_A_GRANULE = GRANULE // GEOMETRY.token_bytes
ANSWERED = Answered(requests=3, tokens=60, seconds=2.0)


@pytest.fixture
def device() -> Iterator[LocalDevice]:
    with kvcluster.open_device("host", memory=64 * GRANULE, granule=GRANULE) as device:
        yield device


def use(device: LocalDevice, granules: int) -> None:
    """A job's work: so much is committed, and given back."""
    memory = device.open(GEOMETRY, max_tokens=granules * TOKENS_A_GRANULE)
    memory.commit(memory.spec.max_tokens, memory.grant(memory.spec.max_tokens))
    memory.close()


def worker(granules: int, *, messages: int = 10, calls: int = 100) -> WorkerFigures:
    committed_bytes = granules * GRANULE
    return WorkerFigures(committed_bytes, committed_bytes, committed_bytes - 1, messages, calls)


def report(span: Span, *workers: WorkerFigures) -> DeviceReport:
    done = WorkerFigures()
    for each in workers:
        done = done.beside(each)
    return device_report("host:0", span, ANSWERED, done)


def test_an_earlier_job_s_calls_and_peaks_are_not_this_job_s(device: LocalDevice) -> None:
    use(device, 40)
    start = device.statistics()
    use(device, 9)
    now = device.statistics()
    mine = report(Span(start, now), worker(9))
    assert mine.peak_committed_bytes == mine.peak_reserved_bytes == 9 * GRANULE
    assert mine.driver_calls == 100 + sum(now.driver_calls.values()) - sum(start.driver_calls.values())


def test_what_an_earlier_job_found_is_not_this_job_s(device: LocalDevice) -> None:
    start = replace(device.statistics(), asked_tokens=100, found_tokens=40)
    now = replace(start, asked_tokens=150, found_tokens=72)
    mine, anew, gone = report(Span(start, now)), report(Span(None, now)), report(Span(start, None))
    assert [(each.asked_tokens, each.found_tokens) for each in (mine, anew, gone)] == [(50, 32), (150, 72), (0, 0)]


def test_a_peak_that_this_job_raised_is_the_device_s_own(device: LocalDevice) -> None:
    use(device, 9)
    start = device.statistics()
    use(device, 40)
    mine = report(Span(start, device.statistics()), worker(25), worker(15))
    assert (mine.peak_committed_bytes, mine.peak_live_bytes) == (40 * GRANULE, 25 * GRANULE - 1)


def test_a_device_that_was_made_again_counts_from_its_beginning(device: LocalDevice) -> None:
    with kvcluster.open_device("host", memory=64 * GRANULE, granule=GRANULE) as other:
        use(other, 40)
        figures = other.statistics()
    assert report(Span(None, figures)).peak_committed_bytes == 40 * GRANULE
    assert report(Span(None, figures)).driver_calls == sum(figures.driver_calls.values())


def test_a_device_that_is_gone_leaves_what_its_workers_told(device: LocalDevice) -> None:
    mine = report(Span(device.statistics(), None), worker(9))
    assert (mine.peak_committed_bytes, mine.driver_calls) == (9 * GRANULE, 100)


@pytest.mark.parametrize("granules", [(1, 1), (40, 3), (3, 40), (0, 5)])
def test_live_is_never_more_than_committed_however_many_workers_there_are(
    device: LocalDevice, granules: tuple[int, ...]
) -> None:
    use(device, max(granules))
    for span in (Span(None, device.statistics()), Span(device.statistics(), device.statistics()), Span(None, None)):
        mine = report(span, *(worker(count) for count in granules if count))
        assert 0 < mine.peak_live_bytes <= mine.peak_committed_bytes <= 64 * GRANULE


def test_what_a_dead_worker_told_stays_with_its_seat() -> None:
    seat = Seat(0, "host:0", told=worker(9))
    seat.leave()
    assert seat.figures == worker(9)
    seat.told = worker(4, messages=1, calls=2)
    assert seat.figures == WorkerFigures(9 * GRANULE, 9 * GRANULE, 9 * GRANULE - 1, 11, 102)
