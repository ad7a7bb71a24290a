"""Devices and workers of a test, and what may be done to them: killed at a failpoint, stopped, cut off, asked to run.

    deployment.kill_at("client.commit.mapped", 2)     # the second run of windows that a worker maps is its last act
    answers = deployment.run("A list is", "A tuple is")
    assert answers.lost_workers == 1
    deployment.assert_nothing_lost()

Requests go the whole way: lines of a file, a batch job, request actors, devices. Nothing is started before the first
`run`, or `start`; what was armed before holds from the start of every process on, and what is armed later is told to
those that run. A fault that names a passage happens once, in whichever process comes there first (`testing.arming`),
and one that never happened fails `assert_nothing_lost`: a test of nothing shows nothing.

Ray is in `actors.simulated`; the fixture that makes one of these is in `testing.pytest_plugin`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kvcluster.config import Settings, settings_from
from kvcluster.failpoints import Failpoint, Passer
from kvcluster.services.batch.input import read_lines
from kvcluster.services.batch.job import BatchJob, JobSpec
from kvcluster.services.batch.opening import open_results
from kvcluster.services.workers import Workers
from kvcluster.testing.arming import marks_in, parse_faults
from kvcluster.testing.batches import CountedWorkers, line_of, texts_of
from kvcluster.testing.processes import held_by, marked, name_of
from kvcluster.testing.waiting import POLL_S, eventually, unquiet

if TYPE_CHECKING:
    from actors.simulated import Owner, SimulatedNodes

DEFAULTS: dict[str, Any] = {
    "dtype": "float32",  # in which a batch's shape changes no token
    "device_memory": "512KiB",
    "granule": 4096,
    "max_num_batched_tokens": 64,
    "max_restarts": 1_000,
    "lease_s": 5.0,
    "heartbeat_s": 0.5,
}


@dataclass(frozen=True, slots=True)
class Answers:
    """What a run said, in the order of its prompts, and what it cost.

    `losses` say of each worker that was lost why; `replays` were handed to a worker once more, `recomputed_tokens`
    computed once more.
    """

    texts: tuple[str, ...]
    seconds: float
    losses: tuple[str, ...]
    replays: int
    recomputed_tokens: int

    @property
    def lost_workers(self) -> int:
        return len(self.losses)


class Deployment:
    """Devices and their workers on simulated nodes. See `open_deployment`."""

    def __init__(self, settings: Settings, nodes: SimulatedNodes, scratch: Path, *, mark: str) -> None:
        self.settings = settings
        self.nodes = nodes
        self.mark = mark
        self.marks = scratch / "marks"
        self.marks.mkdir(exist_ok=True)
        self._scratch = scratch
        self._faults: list[str] = []
        self._runs = 0
        self._stopped: set[int] = set()
        self._opened = ExitStack()
        self._workers: Any = None

    # --- running ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the devices and the workers, and wait until all have loaded the model. Again: nothing.

        Raises:
            ConfigError, KvClusterError: what `actors.cluster.open_cluster` raises. Nothing is left.
        """
        if self._workers is None:
            from actors.cluster import open_cluster  # here, because Ray takes seconds to import

            armed = self.settings.model_copy(update={"failpoints": self._text() or self.settings.failpoints})
            self._workers = self._opened.enter_context(open_cluster(armed))

    def run(
        self,
        *prompts: str | Sequence[int],
        max_tokens: int = 32,
        running: int = 8,
        on_result: Callable[[int], None] = lambda done: None,
        **body: Any,
    ) -> Answers:
        """Answer these prompts, texts or token ids, greedily; a text each, whatever was done to the workers.

        At most about `running` of them are under way at a time, the others wait for these to end.

        `on_result` is called with the number of results so far after each of them: the place to stop a process in the
        middle of a run. `body` are more fields of each request, as in /v1/completions.

        Raises:
            AllWorkersLost: nobody was left to answer.
            AssertionError: a prompt was not answered, or twice, or with an error.
        """
        self.start()
        eventually(self._all_ready, "every worker is there")  # so that its share of the prompts is its own
        self._runs += 1
        lines, results = self._scratch / f"in-{self._runs}.jsonl", self._scratch / f"out-{self._runs}.jsonl"
        asked = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **body}
        lines.write_text("".join(line_of(str(n), prompt, asked) for n, prompt in enumerate(prompts)))
        counted = CountedWorkers(self._workers)
        spec = JobSpec("test", len(prompts), max(1, running // counted.count), created=lambda: 0, most_losses=1_000)
        began, before = time.monotonic(), self._recomputed_tokens()
        with open_results(results) as output:
            workers, tell = cast(Workers, counted), lambda progress: on_result(progress.done)
            BatchJob(read_lines(lines), output=output, workers=workers, spec=spec, tell=tell).run()
        return Answers(
            texts_of(results, len(prompts)),
            seconds=time.monotonic() - began,
            losses=tuple(counted.losses),
            replays=counted.replays,
            recomputed_tokens=self._recomputed_tokens() - before,
        )

    # --- faults -----------------------------------------------------------------------------------------------------

    def kill_at(self, point: Failpoint | str, n: int = 1, *, kind: Passer | str | None = None) -> None:
        """SIGKILL the process that passes `point` for its `n`-th time, once; with `kind` one of that kind alone.

        Raises:
            ValueError: no such point, or no such process passes it; or the process of the test would.
        """
        self.arm(f"{kind}:{point}=kill@{n}" if kind else f"{point}=kill@{n}")

    def lose_replies(self, percent: int) -> None:
        """Of each hundred replies to frames of a worker so many are lost, evenly, from the first on."""
        self.arm(f"{Failpoint.CLIENT_REPLY}=lose@{percent}%")

    def arm(self, text: str) -> None:
        """Any faults (`kvcluster.testing.arming`), beside those that were armed before and have not happened.

        Raises:
            ValueError: the text says something that there is not, or a point that the test's own process passes.
        """
        for fault in parse_faults(text):
            if Passer.JOB in fault.point.passers:
                raise ValueError(f"{fault.point} is passed by the process of the test itself")
        self._faults.append(text)
        if self._workers is not None:
            self._tell(self._text())

    def disarm(self) -> None:
        """Nothing is armed any more, and nothing happened; processes that start are armed as the first ones were."""
        self._faults.clear()
        for mark in self.marks.iterdir():
            mark.unlink()
        if self._workers is not None:
            self._tell("")

    def happened(self) -> dict[str, list[int]]:
        """The faults that happened so far, as they were written, and in which processes."""
        return marks_in(self.marks)

    def pids(self, kind: Passer | str) -> list[int]:
        """The processes of that kind which are there now: workers that are ready, or owners that answer."""
        self.start()
        if Passer(kind) is Passer.REQUEST:
            return [seat.pid for seat in self._workers.seats if seat.is_ready]
        return [owner.pid for owner in self._owners() if owner.kind is Passer(kind)]

    def stop(self, pid: int) -> None:
        """SIGSTOP: the process hangs until `go_on`, which comes of itself when the deployment closes."""
        self._stopped.add(pid)
        os.kill(pid, signal.SIGSTOP)

    def go_on(self, pid: int) -> None:
        """SIGCONT; nothing where it has ended meanwhile."""
        self._stopped.discard(pid)
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return

    def remove_node(self, number: int) -> None:
        """Kill a node with all its processes. Raises ValueError for the test's own, which is 0."""
        self.nodes.remove(number)

    # --- what is left -----------------------------------------------------------------------------------------------

    def assert_quiet(self) -> None:
        """Every owner's books sum, nobody holds a byte, and its sessions are those of the workers that live.

        Workers that are being replaced are waited for, and so is what is on its way back.
        """
        self.start()
        eventually(self._all_ready, "every worker is there again")
        eventually(lambda: not self._unquiet(), lambda: f"nobody holds anything: {self._unquiet()}")

    def assert_nothing_lost(self) -> None:
        """End all of it: the books summed, and no process, descriptor, mapping or socket of ours is left.

        Raises:
            AssertionError: something is left, or a fault was armed and never happened.
        """
        missed = [name for name in self._expected() if name not in self.happened()]
        assert not missed, f"armed, and never passed: {', '.join(missed)}"
        if self._workers is None:
            return
        self.close_workers()
        eventually(lambda: not self._unquiet(), lambda: f"nobody holds anything: {self._unquiet()}")
        self._end_owners()
        eventually(lambda: not self._held(), lambda: f"nothing of ours is left: {self._held()}")

    def close_workers(self) -> None:
        """End the workers, those that are stopped too."""
        for pid in tuple(self._stopped):
            self.go_on(pid)
        self._opened.close()
        self._workers = None

    def close(self) -> None:
        """End everything, whatever state it is in."""
        self.close_workers()
        self._end_owners()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _text(self) -> str:
        return "; ".join([*self._faults, f"marks={self.marks}"]) if self._faults else ""

    def _expected(self) -> list[str]:
        return [fault.name for text in self._faults for fault in parse_faults(text)]

    def _tell(self, text: str) -> None:
        from actors.simulated import arm_actors

        workers = [seat.actor for seat in self._workers.seats if seat.is_ready]
        arm_actors([*workers, *(owner.actor for owner in self._owners())], text)

    def _owners(self) -> tuple[Owner, ...]:
        from actors.simulated import owners

        return owners()

    def _end_owners(self) -> None:
        from actors.simulated import end_owners

        end_owners()

    def _recomputed_tokens(self) -> int:
        return sum(getattr(seat.figures, "recomputed_tokens", 0) for seat in self._workers.seats)

    def _all_ready(self) -> bool:
        if all(seat.is_ready or seat.awaited is None for seat in self._workers.seats):
            return True
        self._workers.wait(POLL_S)
        return False

    def _unquiet(self) -> list[str]:
        """What somebody holds, in words."""
        from actors.simulated import audits

        lives = self.pids(Passer.REQUEST) if self._workers is not None else []
        return [words for each in audits() for words in unquiet(each, lives)]

    def _held(self) -> list[str]:
        """What of ours any process of the cluster holds, in words."""
        return [f"{name_of(pid)} ({pid}) holds {held}" for pid in marked(self.mark) if (held := held_by(pid))]


def deployment_settings(model: Path, devices: int, first: int, **changes: Any) -> Settings:
    """Settings for so many host devices, numbered from `first`: small ones, whose workers come back without end."""
    names = f"host:{','.join(str(first + n) for n in range(devices))}"
    return settings_from({**DEFAULTS, "model": str(model), "devices": names, **changes})
