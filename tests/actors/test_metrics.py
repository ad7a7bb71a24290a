"""What is told as metrics: which there are, what they are set from, how many series they make, and that they arrive."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

import kvcluster
from actors.meters import MOST_SERIES, OTHER, Counts, Meters
from actors.metric_table import ROWS, Kind, Label, Row
from actors.metrics import TELL_EVERY_S, HttpTelling, MemoryTelling, WorkerTelling, tell_memory, tell_worker
from actors.openai.observer import Ended
from kvcluster.errors import OutOfBudget
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.answered import Answered
from kvcluster.services.request.statistics import RequestStatistics
from kvcluster.testing.clock import ManualClock
from tests.actors.world import CAPACITY, World, eventually
from tests.pages.world import PITCH_BYTES, small_pages

GEOMETRY = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=512, element_bytes=4)  # a granule a token
DEVICE = {"device": "host"}


class Book:
    """In the place of Ray's metrics: what was told, by name and labels. A counter may only rise."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.times: Counter[str] = Counter()  # that a gauge was told
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def make(self, row: Row) -> _Metric:
        self.made[row.name] += 1
        return _Metric(row, self)

    def value(self, name: str, labels: Mapping[str, str]) -> float | None:
        return self.values.get((name, frozenset(labels.items())))


class _Metric:
    """As strict as Ray's: all labels of its row, as text, and no others."""

    def __init__(self, row: Row, book: Book) -> None:
        self._row = row
        self._book = book

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert self._row.kind is Kind.GAUGE
        self._book.times[self._row.name] += 1
        self._book.values[self._key(tags)] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert self._row.kind is Kind.COUNTER
        assert value > 0
        key = self._key(tags)
        self._book.values[key] = self._book.values.get(key, 0) + value

    def observe(self, value: float, tags: dict[str, str]) -> None:
        assert self._row.kind is Kind.HISTOGRAM
        key = self._key(tags)
        self._book.values[key] = self._book.values.get(key, 0) + 1

    def _key(self, tags: dict[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
        assert tags.keys() == set(map(str, self._row.labels))
        assert all(type(value) is str for value in tags.values())
        return self._row.name, frozenset(tags.items())


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def counts(book: Book) -> Counts:
    return Counts(Meters(book.make, is_connected=lambda: True))


def test_each_metric_is_there_once_with_few_labels_and_its_unit_in_its_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.name.startswith("kvcluster_")
        assert set(row.labels) <= set(Label)
        assert (row.unit not in ("bytes", "seconds")) or row.name.endswith(row.unit)
        assert bool(row.boundaries) == (row.kind is Kind.HISTOGRAM)
        assert list(row.boundaries) == sorted(row.boundaries)


def test_all_of_a_device_is_told_and_its_bytes_sum_to_its_capacity(book: Book, counts: Counts) -> None:
    with kvcluster.open_device("host", memory=16 * 4096, granule=4096) as device:
        memory = device.open(GEOMETRY, max_tokens=8)
        memory.commit(3, memory.grant(5))
        with device.open(GEOMETRY, max_tokens=16) as third, pytest.raises(OutOfBudget):
            third.grant(16)
        figures = device.audit()
    tell_memory(counts, figures, 3)
    told = {name: value for (name, labels), value in book.values.items() if dict(labels).get("device") == "host"}
    assert {row.name for row in ROWS if row.name.startswith("kvcluster_memory_")} - told.keys() == {
        "kvcluster_memory_evictions"  # a counter of nothing
    }
    parts = ("free", "granted", "request", "prefix", "retained", "foreign", "quarantined")
    assert sum(told[f"kvcluster_memory_{part}_bytes"] for part in parts) == told["kvcluster_memory_capacity_bytes"]
    assert told["kvcluster_memory_request_bytes"] == 3 * 4096
    assert (told["kvcluster_memory_sessions_live"], told["kvcluster_memory_incarnation"]) == (1, 3)
    assert book.value("kvcluster_memory_refusals", {**DEVICE, "reason": "OutOfBudget"}) == 1


def test_host_pages_are_told_as_a_device(book: Book, counts: Counts) -> None:
    with small_pages(16) as pages:
        figures = pages.statistics()
        tell_memory(counts, figures, 1)
        assert book.value("kvcluster_memory_capacity_bytes", {"device": figures.device}) == 16 * PITCH_BYTES


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_counter_rises_by_all_that_was_counted_whatever_began_again_in_between(lives: list[list[int]]) -> None:
    """Each life counts from 0 in steps; where the next one has already passed the last, nobody can tell it from one."""
    book = Book()
    counts = Counts(Meters(book.make, is_connected=lambda: True))
    expected, before = 0, 0
    for life in lives:
        total = 0
        for more in life:
            total += more
            counts.total("kvcluster_memory_evictions", total, DEVICE)
            expected += total - before if total >= before else total
            before = total
    assert (book.value("kvcluster_memory_evictions", DEVICE) or 0) == expected


def test_where_ray_is_not_connected_nothing_is_made(book: Book) -> None:
    counts = Counts(Meters(book.make, is_connected=lambda: False))
    tell_worker(counts, RequestStatistics(generated_tokens=3), Answered(completed=1), {"device": "d", "model": "m"})
    asyncio.run(told_open(HttpTelling(Meters(book.make, is_connected=lambda: False)), 1))
    assert (book.made, book.values) == ({}, {})


def test_a_metric_is_made_once_also_by_threads_that_tell_it_at_once(book: Book) -> None:
    meters = Meters(book.make, is_connected=lambda: True)
    together = threading.Barrier(8)

    def tell() -> None:
        together.wait(60)
        meters.set("kvcluster_http_open", 1, {})

    threads = [threading.Thread(target=tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert book.made == {"kvcluster_http_open": 1}


async def told_open(telling: HttpTelling, count: int, how: Sequence[Ended] = ()) -> None:
    """So many requests begin at once, and the first of them end so."""
    for _ in range(count):
        telling.began()
    await asyncio.sleep(0)
    for ended in how:
        telling.ended(ended)
    await asyncio.sleep(0)


def test_whatever_labels_are_made_of_a_metric_has_a_bounded_number_of_series(book: Book) -> None:
    telling = HttpTelling(Meters(book.make, is_connected=lambda: True))
    numbers = range(4 * MOST_SERIES)
    how = [Ended("refused", f"reason {each}", f"model {each % 7}", 0.1, None, 0, 0, 0) for each in numbers]
    asyncio.run(told_open(telling, len(how), how))
    found = Counter(name for name, _ in book.values)
    assert found["kvcluster_http_requests"] == MOST_SERIES
    assert book.value("kvcluster_http_requests", dict.fromkeys(("model", "outcome", "reason"), OTHER)) == (
        4 * MOST_SERIES - (MOST_SERIES - 1)
    )


def test_a_worker_tells_what_it_counts_and_nothing_again_before_it_is_time(book: Book) -> None:
    clock, answered = ManualClock(), Answered(2, 20, 5, 8, {"server_busy": 3})
    telling = WorkerTelling("tiny", Counts(Meters(book.make, is_connected=lambda: True)), clock=clock)
    labels = {"device": "host:0", "model": "tiny"}
    done = RequestStatistics(generated_tokens=9, control_messages=4, running=1, waiting=2)
    telling.tell("host:0", lambda: done, answered)
    assert book.value("kvcluster_worker_requests", {**labels, "outcome": "completed", "reason": ""}) == 2
    assert book.value("kvcluster_worker_requests", {**labels, "outcome": "refused", "reason": "server_busy"}) == 3
    assert [book.value(f"kvcluster_worker_{name}", labels) for name in ("running", "waiting")] == [1, 2]
    later = replace(done, generated_tokens=15, running=0)
    telling.tell("host:0", lambda: later, answered)
    assert book.value("kvcluster_worker_generated_tokens", labels) == 9
    clock.advance(TELL_EVERY_S)
    telling.tell("host:0", lambda: later, answered)
    assert book.value("kvcluster_worker_generated_tokens", labels) == 15
    assert book.value("kvcluster_worker_running", labels) == 0
    assert book.value("kvcluster_worker_cached_tokens", labels) == 5


def test_a_request_is_told_by_how_it_ended_with_its_times(book: Book) -> None:
    telling = HttpTelling(Meters(book.make, is_connected=lambda: True))
    how = [
        Ended("answered", "", "tiny", 0.4, 0.03, 3, 4, 1),
        Ended("refused", "kv_memory_full", "tiny", 0.1, None, 0, 0, 0),
    ]
    asyncio.run(told_open(telling, 2, how))
    refused = {"model": "tiny", "outcome": "refused", "reason": "kv_memory_full"}
    assert book.value("kvcluster_http_requests", refused) == 1
    assert book.value("kvcluster_http_first_token_seconds", {"model": "tiny"}) == 1
    assert book.value("kvcluster_http_request_seconds", {"model": "tiny", "outcome": "refused"}) == 1


def test_open_requests_are_told_again_and_again_and_the_last_time_there_are_none(book: Book) -> None:
    telling = HttpTelling(Meters(book.make, is_connected=lambda: True), every_s=0.001)

    async def served() -> None:
        for _ in range(2):
            telling.began()
        while book.times["kvcluster_http_open"] < 5:
            await asyncio.sleep(0)
        assert book.value("kvcluster_http_open", {}) == 2
        for _ in range(2):
            telling.ended(Ended("cancelled", "disconnected", "tiny", 0.4, None, 3, 0, 0))
        while book.value("kvcluster_http_open", {}):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(served())
    assert book.value("kvcluster_http_open", {}) == 0


def test_an_owners_telling_ends_when_it_is_told_to_though_its_next_time_is_far(book: Book, counts: Counts) -> None:
    told = threading.Event()
    with small_pages(16) as pages:
        figures = pages.statistics()

        def looked() -> object:
            told.set()
            return figures

        telling = MemoryTelling(looked, incarnation=1, counts=counts, every_s=3_600)  # type: ignore[arg-type]
        thread = threading.Thread(target=telling.run)
        thread.start()
        assert told.wait(60)
        telling.end()
        thread.join(60)
        assert not thread.is_alive()


def test_a_devices_figures_arrive_where_prometheus_asks(world: World) -> None:
    device = world.device(world.settings())
    [node] = [node for node in ray.nodes() if node["NodeID"] == world.node_id]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def arrived() -> list[str]:
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return [line for line in lines if "ray_kvcluster_memory_capacity_bytes{" in line and f'"{device.name}"' in line]

    [line] = eventually(arrived, "Ray's node agent has it")
    assert float(line.rsplit(maxsplit=1)[-1]) == CAPACITY
