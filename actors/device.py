"""The device actor: one device's memory, its budget, and the socket on which descriptors are handed over.

It computes nothing, so a model's crash cannot take the memory along. How it serves, and how it ends, is in
`actors.serving`; handles are created ahead on a thread of their own.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from actors.backends import open_device_driver
from actors.boundary import or_die
from actors.device_spec import DeviceAddress, DeviceSpec
from actors.incarnations import begin_incarnation
from actors.metrics import MemoryTelling
from actors.owners import OwnerKind
from actors.serving import open_serving, stay_on
from actors.supervisor import announce
from kvcluster.config import Backend
from kvcluster.driver.limits import descriptor_room
from kvcluster.failpoints import Failpoint, Passer, arm_with, process_is, reach
from kvcluster.services.device import DeviceService
from kvcluster.services.filler import Filler
from kvcluster.services.known_blocks import KnownBlocks
from kvcluster.services.statistics import DeviceStatistics


class DeviceActor:
    """Created by `actors.devices.find_device`, one a device and node."""

    def __init__(self, spec: DeviceSpec) -> None:
        process_is(Passer.DEVICE)
        stay_on(spec.node_id)
        self._spec = spec
        file, settings = begin_incarnation(OwnerKind.DEVICE, spec.node_id, spec.settings)
        opened = open_device_driver(replace(spec, settings=settings), file.survivors)
        self._service = DeviceService(opened.driver, opened.settings, clock=time.monotonic, log=file)
        self._filler = Filler(self._service.fill)
        telling = MemoryTelling(self._service.statistics, incarnation=file.incarnation)
        self._descriptors = descriptor_room()
        reach(Failpoint.OWNER_OPENED)
        self._serving = open_serving(
            settings.name, self._service, file, idle_exit_s=spec.idle_exit_s, chores=[self._filler, telling]
        )
        announce(OwnerKind.DEVICE, spec.settings.name, epoch=self._service.statistics().epoch)
        reach(Failpoint.OWNER_SERVING)

    def address(self) -> DeviceAddress:
        """Where clients attach, and what of. A device that is leaving is gone: see `Serving.attach`."""
        return DeviceAddress(
            attach=self._serving.attach(),
            pid=os.getpid(),
            name=self._spec.settings.name,
            backend=Backend.CUDA if self._spec.gpu else Backend.HOST,
            asked=self._spec.sizes,
            quotas=self._spec.settings.memory.quotas,
            descriptors=self._descriptors,
            file=self._serving.file,
        )

    def measure(self) -> int:
        """Fit the capacity to what a GPU has for us beside the models that are there by now; returns it.

        Raises:
            ValueError: a host device's is as it was asked for. Nothing changed.
        """
        gpu = self._spec.gpu
        if gpu is None:
            raise ValueError("only a GPU's memory is measured")
        return or_die(lambda: self._service.measure(gpu.utilization))

    def frame(self, data: bytes) -> bytes:
        """One frame of a client; see `DeviceService.frame`."""
        reply = self._serving.frame(data)
        self._filler.wake()
        return reply

    def statistics(self) -> DeviceStatistics:
        return self._service.statistics()

    def known_since(self, epoch: int, number: int) -> KnownBlocks:
        """For routers, which ask some times a second: see `DeviceService.known_since`. It never waits for anything."""
        return self._service.known_since(epoch, number)

    def audit(self) -> DeviceStatistics:
        """The figures of one moment, after everything was checked to sum. Raises as `Serving.audited`."""
        return self._serving.audited(self._service.audit)

    def arm(self, text: str) -> None:
        """Arm this process's failpoints, for fault tests: see `kvcluster.failpoints.arm_with`. Raises as it does."""
        arm_with(text)

    def leave(self) -> bool:
        """Close, if no session is there; whether it did. See `Serving.leave`."""
        return self._serving.leave()

    def __ray_shutdown__(self) -> None:
        """Ray calls it when this process is told to end (SIGTERM). With sessions it ends as it would by SIGKILL."""
        self._serving.leave()

    def close(self) -> None:
        """Give back what no client has. The actor is of no use afterwards; whoever calls this kills it next."""
        self._serving.close()
