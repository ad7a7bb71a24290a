"""Two workers and a client at the same host pages: what one computed another finds, and what is left of who dies.

The workers load their model once, for all tests; one that was killed is replaced before the next test begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.units import MIB
from tests.actors.answers import PROMPTS
from tests.actors.host_client import HostClient
from tests.actors.host_workers import HostJob, open_host_job
from tests.actors.test_batch import answered, at_the_third_result
from tests.actors.world import GRANULE, TIMEOUT_S, World, audit, eventually, kill_and_wait

BLOCK_BYTES = 16 * 512
BLOCKS = 128
LEFT = 16  # all prompts of one worker take 27 in the end

_salts = itertools.count()


def told(reference: Any) -> Any:
    return ray.get(reference, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def opened(node_id: str, folder: Path) -> Iterator[HostJob]:
    world = World(node_id, itertools.count(2_000))
    with open_host_job(world, folder, workers=2) as job:
        yield job
    world.close()


@pytest.fixture
def job(opened: HostJob) -> HostJob:
    """Both workers are there, whatever the test before did to them."""
    opened.all_return()
    eventually(opened.is_alone, "nobody else is at the pages")
    return opened


def test_lines_that_no_device_can_hold_get_the_texts_of_generate_in_host_pages(
    job: HostJob, tmp_path: Path, wanted: list[str]
) -> None:
    before = sum(pages.lookups for pages in job.cluster.host_reports())
    assert answered(job.cluster, tmp_path, rounds=1) == wanted
    assert audit(job.world.device(job.settings)).peak_committed_bytes <= 2 * GRANULE
    [pages] = job.cluster.host_reports()
    assert (pages.pages, pages.memory_bytes) == (job.pages, MIB)
    assert 0 < pages.peak_used_bytes <= MIB
    assert pages.lookups - before >= len(wanted)
    assert pages.asked_tokens > pages.found_tokens


def test_what_one_worker_computed_the_other_finds_and_both_say_what_generate_says(
    job: HostJob, wanted: list[str]
) -> None:
    before, salt = job.figures().found_tokens, f"salt {next(_salts)}"
    first, second = [job.answers(job.begin(worker, salt=salt)) for worker in (0, 1)]
    assert [answer.text for answer in first] == [answer.text for answer in second] == wanted
    assert [answer.cached_tokens for answer in first] == [0] * len(PROMPTS)
    cached = [answer.cached_tokens for answer in second]
    assert all(found >= 16 for found, prompt in zip(cached, PROMPTS, strict=True) if len(prompt) > 16)
    assert job.figures().found_tokens - before == sum(cached)
    eventually(job.is_alone, "every byte is back")


def test_a_process_killed_between_grant_and_commit_after_a_find_and_with_forks_leaves_no_byte_and_no_text_changes(
    job: HostJob, world: World, wanted: list[str]
) -> None:
    client = world.started(HostClient, job.host(), job.geometry, num_cpus=0)
    told(client.leave_blocks.remote())
    assert told(client.begin.remote("grant")) == "opened granted"
    assert told(client.begin.remote("find")) == "opened paged"
    own_blocks = told(client.fork.remote(3)) // BLOCK_BYTES
    seen = job.figures()
    held = {kind: of_kind(seen, kind) // BLOCK_BYTES for kind in ("granted", "prefix", "request")}
    assert held == {"granted": 4, "prefix": 3 + 3, "request": own_blocks}
    assert seen.open_requests == 2 + 4
    asked = job.begin(0)
    kill_and_wait(told(client.pid.remote()))
    assert [answer.text for answer in job.answers(asked)] == wanted
    eventually(job.is_alone, "every byte is back, and the sessions of the dead are gone")


def test_two_workers_at_pages_that_are_too_few_for_either_finish_with_exact_texts(
    job: HostJob, world: World, wanted: list[str]
) -> None:
    client = world.started(HostClient, job.host(), job.geometry, num_cpus=0)
    refused = job.figures().refusals.get("OutOfBudget", 0)
    assert told(client.hold.remote(BLOCKS - LEFT)) == (BLOCKS - LEFT) * BLOCK_BYTES
    asked = [job.begin(worker, salt=f"salt {next(_salts)}") for worker in (0, 1)]
    answers = job.all_answers(asked)
    assert [[answer.text for answer in said] for said in answers] == [wanted, wanted]
    assert job.figures().refusals["OutOfBudget"] > refused
    kill_and_wait(told(client.pid.remote()))
    eventually(job.is_alone, "every byte is back")


def test_a_worker_killed_in_the_middle_of_its_answers_leaves_no_byte_and_the_others_text_stays(
    job: HostJob, wanted: list[str]
) -> None:
    for _ in range(3):
        job.begin(1)
    eventually(lambda: job.figures().running_requests, "it holds pages")
    asked = job.begin(0)
    kill_and_wait(job.cluster.seats[1].pid)
    assert [answer.text for answer in job.answers(asked)] == wanted
    eventually(lambda: not job.figures().open_requests, "its requests are gone")
    seen = job.figures()
    assert seen.free_bytes + seen.retained_bytes == seen.capacity_bytes
    job.all_return()


def test_host_pages_killed_in_the_job_come_back_and_their_workers_begin_again_there(
    job: HostJob, tmp_path: Path, wanted: list[str]
) -> None:
    first, restarts = job.address().pid, sum(seat.restarts for seat in job.cluster.seats)
    kill = at_the_third_result(lambda: kill_and_wait(first))
    assert answered(job.cluster, tmp_path, kill, rounds=2) == 2 * wanted
    assert sum(seat.restarts for seat in job.cluster.seats) == restarts
    assert job.address().pid != first
    eventually(job.is_alone, "both workers are at the new pages")
    [report] = job.cluster.host_reports()
    assert report.lookups > 0


def of_kind(figures: PageStatistics, kind: str) -> int:
    """Bytes of all accounts of a kind."""
    return sum(size_bytes for account, size_bytes in figures.accounts.items() if account.split("/")[0] == kind)
