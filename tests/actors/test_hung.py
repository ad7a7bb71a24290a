"""Workers that hang, or find no place: noticed, and replaced or refused in one sentence."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.cluster import open_cluster
from actors.workers import RayWorkers, WorkerFailed
from kvcluster.services.batch.job import Progress
from tests.actors.job import answered
from tests.actors.world import World, audit, eventually, has_ended

LEASE_S = 2.0


def when_done(count: int, act: Callable[[], None]) -> Callable[[Progress], None]:
    return lambda progress: act() if progress.done == count else None


class Blocked:
    """A copy of a model's folder whose tokenizer nobody can read to its end."""

    def __init__(self, folder: Path, copy: Path) -> None:
        self.folder = Path(shutil.copytree(folder, copy))
        self._file, self._aside = self.folder / "tokenizer.json", self.folder / "aside"

    def block(self) -> None:
        self._file.rename(self._aside)
        os.mkfifo(self._file)

    def unblock(self) -> None:
        self._aside.replace(self._file)


def test_a_worker_that_hangs_and_one_that_hangs_while_it_opens_are_replaced_and_every_line_is_answered_once(
    world: World, folder: Path, tmp_path: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Blocked(folder, tmp_path / "model")
    settings = world.settings(model=str(model.folder), lease_s=LEASE_S, heartbeat_s=0.5, max_restarts=100)
    with open_cluster(settings) as cluster:
        [seat] = cluster.seats
        first = seat.pid

        def hang() -> None:
            os.kill(first, signal.SIGSTOP)
            model.block()

        monkeypatch.setattr("actors.workers.START_TIMEOUT_S", 4.0)
        monkeypatch.setattr(cluster, "wait", unblocked_after(cluster, seat.restarts + 2, model, monkeypatch))
        assert answered(cluster, tmp_path, when_done(3, hang), rounds=2) == 2 * wanted
        assert has_ended(first, 10.0)
        assert seat.restarts >= 2
    figures = audit(world.device(settings))
    assert figures.free_bytes == figures.capacity_bytes
