"""The batch job over Ray: exact texts, two devices, two workers on one, and what happens when one of them is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ray

from actors.cluster import open_cluster
from actors.devices import find_device
from actors.records import read_log
from actors.workers import RayWorkers
from kvcluster.config import Settings
from kvcluster.failpoints import Failpoint
from kvcluster.services.batch.input import read_lines
from kvcluster.services.batch.job import BatchJob, JobSpec, Progress
from kvcluster.services.batch.opening import open_results
from kvcluster.units import KIB
from tests.actors.answers import LENGTHS, PROMPTS
from tests.actors.world import World, audit, eventually, has_ended, kill_and_wait
from tests.batch.stand_in import line, results, write_input

ROUNDS = 4
LINES = ROUNDS * len(PROMPTS)


def answered(
    cluster: RayWorkers, folder: Path, tell: Callable[[Progress], None] = lambda _: None, *, rounds: int = ROUNDS
) -> list[str]:
    """The texts of a job that asks for every prompt `rounds` times, in their order; each line has one result."""
    lines = rounds * len(PROMPTS)
    bodies = [
        line(f"{round_}/{place}", list(prompt), max_tokens=length, temperature=0, ignore_eos=True)
        for round_ in range(rounds)
        for place, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    given, out = write_input(folder / "in.jsonl", *bodies), folder / "out.jsonl"
    with open_results(out) as output:
        spec = JobSpec("llama", lines, lookahead=8, created=lambda: 1_700_000_000)
        progress = BatchJob(read_lines(given), output=output, workers=cluster, spec=spec, tell=tell).run()
    assert (progress.done, progress.failed) == (lines, 0)
    found = results(out)
    assert sorted(found) == list(range(1, lines + 1))
    return [found[number]["response"]["body"]["choices"][0]["text"] for number in sorted(found)]


def causes_of(pid: int) -> list[str]:
    """Of what the process died, as the log has it."""
    return [death.cause for death in read_log().deaths if death.who.pid == pid and death.cause]


def at_the_third_result(act: Callable[[], None]) -> Callable[[Progress], None]:
    return lambda progress: act() if progress.done == 3 else None


def test_two_devices_answer_exactly_and_their_reports_have_the_figures(
    cluster: RayWorkers, tmp_path: Path, wanted: list[str]
) -> None:
    before = cluster.device_reports()
    assert answered(cluster, tmp_path) == ROUNDS * wanted
    reports = cluster.device_reports()
    assert sum(now.requests - then.requests for now, then in zip(reports, before, strict=True)) == LINES
    for now, then in zip(reports, before, strict=True):
        assert now.requests > then.requests
        assert now.generated_tokens - then.generated_tokens >= now.requests - then.requests
        assert now.peak_live_bytes <= now.peak_committed_bytes <= 256 * KIB
        assert now.control_messages > 0
        assert now.driver_calls > 0


def test_a_worker_killed_in_the_job_comes_back_and_computes_no_token_a_second_time(
    cluster: RayWorkers, tmp_path: Path, wanted: list[str]
) -> None:
    victim = cluster.seats[0]
    pid, restarts, before = victim.pid, victim.restarts, victim.figures
    ray.get(victim.actor.arm.remote(f"{Failpoint.STEP_NOTED}=kill@3"))
    texts = answered(cluster, tmp_path)
    assert texts == ROUNDS * wanted
    assert victim.restarts == restarts + 1
    assert "it was killed by SIGKILL" in eventually(lambda: causes_of(pid), "its death is told with the signal")
    eventually(lambda: cluster.wait(1.0) or victim.is_ready, "it is back")
    assert cluster.device_reports()[0].control_messages > before.control_messages
    assert victim.figures.recomputed_tokens == before.recomputed_tokens


def test_a_device_killed_in_the_job_comes_back_and_its_worker_goes_on_with_what_it_has(
    cluster: RayWorkers, pair: tuple[RayWorkers, Settings], node_id: str, tmp_path: Path, wanted: list[str]
) -> None:
    _, settings = pair
    seat = cluster.seats[1]
    first = find_device(seat.device, node_id, settings)
    pid, restarts, recomputed = seat.pid, seat.restarts, seat.figures.recomputed_tokens
    texts = answered(cluster, tmp_path, at_the_third_result(lambda: kill_and_wait(first.address.pid)))
    assert texts == ROUNDS * wanted
    assert (seat.pid, seat.restarts) == (pid, restarts)
    assert seat.figures.recomputed_tokens == recomputed
    second = find_device(seat.device, node_id, settings)
    assert second.address.pid != first.address.pid
    figures = eventually(lambda: (now := audit(second)).foreign_bytes == 0 and now, "nothing is foreign any more")
    assert len(figures.sessions) == 1


def test_a_later_job_at_the_same_device_reports_its_own_figures_only(
    cluster: RayWorkers, pair: tuple[RayWorkers, Settings], world: World, tmp_path: Path
) -> None:
    _, settings = pair
    answered(cluster, tmp_path)
    first, _ = cluster.device_reports()
    (tmp_path / "out.jsonl").unlink()
    [name, _] = settings.device_names
    with open_cluster(settings.model_copy(update={"devices": name})) as later:
        answered(later, tmp_path, rounds=1)
        [second] = later.device_reports()
    assert first.requests > second.requests == len(PROMPTS)
    assert 0 < second.driver_calls < first.driver_calls
    assert 0 < second.control_messages < first.control_messages
    assert second.peak_live_bytes <= second.peak_committed_bytes <= first.peak_committed_bytes
    device = find_device(name, world.node_id, settings)
    assert audit(device).peak_committed_bytes == first.peak_committed_bytes


def test_two_workers_on_a_device_too_small_for_both_finish_with_exact_texts(
    world: World, folder: Path, tmp_path: Path, wanted: list[str]
) -> None:
    settings = world.settings(model=str(folder), workers_per_device=2, device_memory="80KiB")
    with open_cluster(settings) as cluster:
        assert answered(cluster, tmp_path, rounds=2) == 2 * wanted
        pids = [seat.pid for seat in cluster.seats]
        assert all(seat.requests for seat in cluster.seats)
        [report] = cluster.device_reports()
        assert 0 < report.peak_live_bytes <= report.peak_committed_bytes <= settings.device_memory_bytes
    assert all(has_ended(pid, 10.0) for pid in pids)
    figures = audit(world.device(settings))
    assert figures.refusals["OutOfBudget"] > 0
    assert figures.free_bytes + figures.retained_bytes == figures.capacity_bytes
