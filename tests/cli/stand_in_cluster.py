"""A cluster without Ray, put in the place of `actors.cluster`. As a program: the command line on that cluster.

With KVCLUSTER_TEST_HANGS set its workers finish one line and then hang, and closing waits for a line on standard
input; both say so on standard output.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from kvcluster.config import Settings
from kvcluster.services.pages.statistics import HostReport
from kvcluster.services.statistics import DeviceReport
from kvcluster.services.workers import Event, Finished
from tests.batch.stand_in import EchoWorkers

MIB = 2**20


class EchoCluster(EchoWorkers):
    def __init__(self, settings: Settings) -> None:
        super().__init__(count=len(settings.device_names) * settings.workers_per_device)
        self.settings = settings

    def device_reports(self) -> list[DeviceReport]:
        return [
            DeviceReport(name, 2, 96, 4.0, 512 * MIB, 12 * MIB, 11 * MIB, 400, 100, 5, 1_234)
            for name in self.settings.device_names
        ]

    def host_reports(self) -> list[HostReport]:
        if self.settings.host_memory_bytes is None:
            return []
        return [HostReport("pages-2x1x16-float32-16", self.settings.host_memory_bytes, 3 * MIB, 4, 1_000, 250, 7)]


class HangingCluster(EchoCluster):
    """Hangs as Ray does: in a call that a signal's exception can leave."""

    def wait(self, timeout_s: float) -> Sequence[Event]:
        if len(self._pending) == 1:
            print("hanging", flush=True)
            threading.Event().wait(60)
        return super().wait(timeout_s)

    def drain(self, timeout_s: float) -> Sequence[Finished]:
        """With KVCLUSTER_TEST_HANGS=finished the last line is done by now."""
        is_done = os.environ["KVCLUSTER_TEST_HANGS"] == "finished"
        return [Finished(key, self.outcome(key, request)) for key, request in self._pending] if is_done else []


def stand_in_module(opened: list[EchoCluster], kind: type[EchoCluster] = EchoCluster) -> ModuleType:
    """What takes the place of `actors.cluster`; clusters are added to `opened`, and leave it when closed."""

    @contextmanager
    def open_cluster(settings: Settings, *, address: str | None = None) -> Iterator[EchoCluster]:
        cluster = kind(settings)
        opened.append(cluster)
        try:
            yield cluster
        finally:
            if kind is HangingCluster:
                print("closing", flush=True)
                sys.stdin.readline()
                print("closed", flush=True)
            opened.remove(cluster)

    module = ModuleType("actors.cluster")
    module.__dict__["open_cluster"] = open_cluster
    return module


if __name__ == "__main__":
    from kvcluster.cli.entry import main

    sys.modules["actors.cluster"] = stand_in_module(
        [], HangingCluster if "KVCLUSTER_TEST_HANGS" in os.environ else EchoCluster
    )
    main()
