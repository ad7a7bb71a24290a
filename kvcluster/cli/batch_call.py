"""`kvcluster run-batch`, once its options are read: the files, the cluster, the job, and what is printed at the end.

Files are opened and checked before anything is started. Exit codes: 0 all answered, 1 some lines failed, 2 wrong
use (raised as an error, see `cli.sentences`), 130 stopped by Ctrl-C, SIGTERM or `kvcluster stop`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvcluster.cli import interrupts
from kvcluster.cli.failures import say_failures
from kvcluster.cli.listeners import reader_may_leave
from kvcluster.cli.progress import shown_progress
from kvcluster.cli.report import write_device_table, write_host_table
from kvcluster.cli.sentences import say, tell
from kvcluster.cli.texts import write_texts
from kvcluster.config import Settings
from kvcluster.services.batch.input import check_input, read_lines
from kvcluster.services.batch.job import BatchJob, JobSpec, Progress
from kvcluster.services.batch.opening import open_results
from kvcluster.services.batch.output import ResultFile
from kvcluster.services.batch.survey import Survey, survey
from kvcluster.services.pages.statistics import HostReport
from kvcluster.services.statistics import DeviceReport
from kvcluster.services.workers import Cluster, ClusterStopped

ALL_ANSWERED, SOME_FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class BatchCall:
    input_path: Path
    output_path: Path
    retry_failed: bool = False
    print_texts: bool = False
    ray_address: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """How far the job came, and what was done where."""

    progress: Progress
    devices: list[DeviceReport] = field(default_factory=list)
    hosts: list[HostReport] = field(default_factory=list)


def answer_file(call: BatchCall, settings: Settings) -> int:
    """Every line of the input gets its line in the output. Returns the exit code.

    Raises:
        KvClusterError: the files, the model or the cluster cannot be used, or fail on the way. Results are kept.
    """
    try:
        with interrupts.stopped_once():
            check_input(call.input_path)
            with open_results(call.output_path, forget_failed=call.retry_failed) as output:
                answered = _answer(call, settings, output)
    except (KeyboardInterrupt, SystemExit):  # SystemExit: Ray's own handler of SIGTERM while it starts
        say("stopped; finished results are kept, and the same command continues where it stopped")
        return interrupts.INTERRUPTED
    except ClusterStopped as stopped:
        say(str(stopped))
        return interrupts.INTERRUPTED
    with reader_may_leave(sys.stdout):
        if call.print_texts:
            write_texts(call.input_path, call.output_path)
        if answered.devices:
            write_device_table(answered.devices)
            write_host_table(answered.hosts)
    if not answered.progress.failed:
        return ALL_ANSWERED
    say_failures(call.output_path)
    return SOME_FAILED


def _answer(call: BatchCall, settings: Settings, output: ResultFile) -> Answered:
    """A cluster is started only where something is left to do."""
    surveyed = survey(call.input_path, output, model=settings.model)
    _say_edited(surveyed, call.output_path)
    total = surveyed.total_lines
    if total == len(output.earlier):
        tell(f"all {total} lines have their result already")
        failed = sum(done.failed for done in output.earlier.values())
        return Answered(Progress(total, total, failed, 0))
    _announce(total, len(output.earlier), settings)
    from actors.cluster import open_cluster  # here, because Ray takes seconds to import

    with open_cluster(settings, address=call.ray_address) as cluster:
        interrupts.heed()  # Ray has set a handler of its own
        try:
            return _run(call, JobSpec(settings.model, total, 2 * settings.max_num_seqs, _now), output, cluster)
        finally:
            interrupts.ignore()  # the cluster closes undisturbed


def _say_edited(surveyed: Survey, path: Path) -> None:
    """Which lines keep the answer to what they asked before: to answer them again is for whoever edited them."""
    if (first := surveyed.first_edited) is None:
        return
    name = f"line {first.number}" + (f" (custom_id {first.custom_id!r})" if first.custom_id is not None else "")
    remedy = f"from {path}, or choose another output file"
    if surveyed.edited == 1:
        say(
            f"{name} was edited after it was answered, and keeps that answer: to have it answered again remove its "
            f"result {remedy}"
        )
    else:
        say(
            f"{surveyed.edited} lines were edited after they were answered, the first of them {name}, and keep those "
            f"answers: to have them answered again remove their results {remedy}"
        )


def _announce(total: int, done: int, settings: Settings) -> None:
    """What is waited for while the workers load the model."""
    tell(f"{total - done} of {total} lines to answer; making {settings.model} and its workers ready")


def _run(call: BatchCall, spec: JobSpec, output: ResultFile, cluster: Cluster) -> Answered:
    with shown_progress(spec.total_lines) as tell:
        job = BatchJob(read_lines(call.input_path), output=output, workers=cluster, spec=spec, tell=tell)
        try:
            progress = job.run()
        except KeyboardInterrupt:
            job.drain()
            raise
    return Answered(progress, cluster.device_reports(), cluster.host_reports())


def _now() -> int:
    return int(time.time())
