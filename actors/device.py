"""The device actor: one device's memory, its budget, and the socket on which descriptors are handed over.

It computes nothing, so a model's crash cannot take the memory along. Frames come through Ray on the actor's one
thread; the attach socket has a thread of its own, and so has the creating of handles ahead. Whatever is no refusal (a
broken invariant, or any error that is not ours) ends the process: what its clients have mapped lives on in them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

import ray

from actors.backends import open_device_driver
from actors.device_spec import DeviceAddress, DeviceSpec
from kvcluster.attach.server import AttachServer, open_attach_server
from kvcluster.config import Backend
from kvcluster.driver.limits import descriptor_room
from kvcluster.errors import InvariantBroken, KvClusterError
from kvcluster.services.device import DeviceService
from kvcluster.services.filler import Filler
from kvcluster.services.statistics import DeviceStatistics

T = TypeVar("T")

LAST_WORDS_S = 1.0  # between an audit that fails and the end, so that whoever asked hears of it


class DeviceActor:
    """Created by `actors.devices.find_device`, one a device and node."""

    def __init__(self, spec: DeviceSpec) -> None:
        if ray.get_runtime_context().get_node_id() != spec.node_id:
            ray.actor.exit_actor()
        self._spec = spec
        opened = open_device_driver(spec)
        self._service = DeviceService(opened.driver, opened.settings, clock=time.monotonic)
        self._server: AttachServer = open_attach_server(spec.settings.name, self._service)
        self._filler = Filler(self._service.fill)
        self._descriptors = descriptor_room()
        self._closing = threading.Event()
        self._leaving = threading.Event()
        self._broken: InvariantBroken | None = None
        for work in (self._server.serve, self._filler.run, self._leave_when_idle):
            threading.Thread(target=_run_or_die, args=(work,), name=work.__name__, daemon=True).start()

    def address(self) -> DeviceAddress:
        """Where clients attach. Whoever asks a device that is leaving is told that it is gone, and makes a new one."""
        if self._leaving.is_set():
            ray.actor.exit_actor()
        return DeviceAddress(
            attach=self._server.address,
            pid=os.getpid(),
            name=self._spec.settings.name,
            backend=Backend.CUDA if self._spec.gpu else Backend.HOST,
            asked=self._spec.sizes,
            quotas=self._spec.settings.memory.quotas,
            descriptors=self._descriptors,
        )

    def measure(self) -> int:
        """Fit the capacity to what a GPU has for us beside the models that are there by now; returns it.

        Raises:
            ValueError: a host device's is as it was asked for. Nothing changed.
        """
        gpu = self._spec.gpu
        if gpu is None:
            raise ValueError("only a GPU's memory is measured")
        return _or_die(lambda: self._service.measure(gpu.utilization))

    def frame(self, data: bytes) -> bytes:
        """One frame of a client; see `DeviceService.frame`."""
        if self._broken is not None:
            _die(self._broken)
        reply = _or_die(lambda: self._service.frame(data))
        self._filler.wake()
        if self._service.has_pushes:
            self._server.nudge()
        return reply

    def statistics(self) -> DeviceStatistics:
        return self._service.statistics()

    def audit(self) -> DeviceStatistics:
        """The figures of one moment, after everything was checked to sum.

        Raises:
            InvariantBroken: it does not. This process ends a moment later, and at once where a frame comes first.
        """
        try:
            return self._service.audit()
        except InvariantBroken as broken:
            self._broken = broken
            threading.Timer(LAST_WORDS_S, _die, args=(broken,)).start()
            raise

    def close(self) -> None:
        """Give back what no client has. The actor is of no use afterwards; whoever calls this kills it next."""
        self._closing.set()
        self._filler.end()
        self._server.close()
        self._service.close()

    def _leave_when_idle(self) -> None:
        while not self._closing.wait(timeout=min(1.0, self._spec.idle_exit_s)):
            if self._service.close_if_idle(self._spec.idle_exit_s):  # who says hello from now on is refused
                self._leaving.set()
                self.close()
                ray.kill(ray.get_runtime_context().current_actor)  # an end that Ray does not report as a crash


def _or_die(work: Callable[[], T]) -> T:
    """Run `work`; a refusal is the caller's. Anything else left an act half done, and ends this process."""
    try:
        return work()
    except KvClusterError:
        raise
    except BaseException as error:  # noqa: BLE001 - the actor boundary
        _die(error)


def _run_or_die(work: Callable[[], None]) -> None:
    """The whole of a thread. Nobody waits for it, so that any error would leave half a device: it ends the process."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the actor boundary
        _die(error)


def _die(error: BaseException) -> NoReturn:
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)
