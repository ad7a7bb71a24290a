"""Request actors of one job: started, fed, listened to, replaced when they die, ended.

One long poll a worker is always under way (`RequestActor.collect`), so that results and deaths arrive alike as a
reply. Nothing is awaited without a limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.devices import Device, find_device
from actors.request import RequestActor, WorkerSpec
from kvcluster.config import ConfigError, Settings
from kvcluster.errors import KvClusterError
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.request import RequestStatistics
from kvcluster.services.statistics import DeviceReport, DeviceStatistics
from kvcluster.services.workers import Event, Finished, WorkerLost, WorkerReady

POLL_S = 5.0
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 2.0


class WorkerFailed(KvClusterError):
    """A worker could not be started."""

    def __init__(self, *, worker: int, reason: str) -> None:
        super().__init__(f"worker {worker} did not start: {reason}")
        self.worker = worker
        self.reason = reason


@dataclass(slots=True)
class _Worker:
    """One seat at a device; the actor in it changes when it dies. `awaited` is its start, or its long poll."""

    number: int
    device: Device
    actor: Any
    awaited: Any
    ready: bool = False
    restarts: int = 0


class RayWorkers:
    """`services.workers.Workers` over Ray. Made by `start_workers`; used by one thread."""

    def __init__(self, settings: Settings, model_folder: str, *, env: dict[str, str]) -> None:
        self._settings = settings
        self._model_folder = model_folder
        self._env = env
        self._workers: list[_Worker] = []
        self._devices: tuple[Device, ...] = ()
        self._started_at = 0.0

    @property
    def count(self) -> int:
        return len(self._workers)

    def start(self, devices: Sequence[Device]) -> None:
        """Start `workers_per_device` workers at each device, and wait until all have loaded the model.

        Raises:
            ConfigError, KvClusterError: what the first that failed said. The caller ends the others (`stop`).
        """
        self._devices = tuple(devices)
        for device in devices:
            for _ in range(self._settings.workers_per_device):
                self._workers.append(self._seat(len(self._workers), device))
        deadline = time.monotonic() + START_TIMEOUT_S
        for worker in self._workers:
            _opened(worker, deadline - time.monotonic())
            self._listen(worker)
        self._started_at = time.monotonic()

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        self._workers[worker].actor.submit.remote(list(items))

    def wait(self, timeout_s: float) -> Sequence[Event]:
        awaited = {worker.awaited: worker for worker in self._workers if worker.awaited is not None}
        arrived, _ = ray.wait(list(awaited), num_returns=1, timeout=timeout_s) if awaited else ([], [])
        return [event for reference in arrived for event in self._heard(awaited[reference])]

    def device_reports(self) -> list[DeviceReport]:
        """What each device and its living workers did since `start` returned."""
        seconds = time.monotonic() - self._started_at
        asked = [(worker.device, worker.actor.report.remote()) for worker in self._workers if worker.ready]
        reports = [(device, ray.get(reference, timeout=POLL_S)) for device, reference in asked]
        return [_device_report(d, [r for at, r in reports if at.name == d.name], seconds) for d in self._devices]

    def stop(self) -> None:
        """End every worker: politely, and after `STOP_TIMEOUT_S` by force."""
        stopping = [worker.actor.stop.remote() for worker in self._workers if worker.ready]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_TIMEOUT_S)
        for worker in self._workers:
            ray.kill(worker.actor)

    def _seat(self, number: int, device: Device) -> _Worker:
        actor = self._create(device)
        return _Worker(number, device, actor, actor.open.remote())

    def _create(self, device: Device) -> Any:
        options = {
            "num_cpus": 1,
            "max_concurrency": 4,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(device.node_id, soft=False),
            "runtime_env": {"env_vars": self._env} if self._env else {},
        }
        spec = WorkerSpec(self._model_folder, self._settings, device.name, device.address)
        return ray.remote(RequestActor).options(**options).remote(spec, device.actor)

    def _listen(self, worker: _Worker) -> None:
        worker.ready = True
        worker.awaited = worker.actor.collect.remote(POLL_S)

    def _heard(self, worker: _Worker) -> Iterator[Event]:
        try:
            outcomes = ray.get(worker.awaited)
        except RayError as error:
            yield from self._lost(worker, _reason(error))
        else:
            if not worker.ready:
                yield WorkerReady(worker.number)
            else:
                yield from (Finished(key, outcome) for key, outcome in outcomes)
            self._listen(worker)

    def _lost(self, worker: _Worker, reason: str) -> Iterator[Event]:
        worker.ready, worker.awaited = False, None
        ray.kill(worker.actor)
        returns = worker.restarts < self._settings.max_restarts
        yield WorkerLost(worker.number, reason, returns=returns)
        if returns:
            worker.restarts += 1
            device = worker.device
            worker.device = find_device(device.name, device.node_id, self._settings)
            worker.actor = self._create(worker.device)
            worker.awaited = worker.actor.open.remote()


def _opened(worker: _Worker, timeout_s: float) -> None:
    try:
        ray.get(worker.awaited, timeout=max(timeout_s, 0.0))
    except GetTimeoutError:
        reason = f"no answer within {START_TIMEOUT_S:.0f} s; has the cluster a free CPU on that node?"
        raise WorkerFailed(worker=worker.number, reason=reason) from None
    except RayTaskError as error:
        if isinstance(error.cause, KvClusterError | ConfigError):
            raise error.cause from None
        raise
    except RayActorError as error:
        raise WorkerFailed(worker=worker.number, reason=_reason(error)) from None


def _device_report(device: Device, workers: Sequence[RequestStatistics], seconds: float) -> DeviceReport:
    there: DeviceStatistics = ray.get(device.actor.audit.remote(), timeout=POLL_S)
    return DeviceReport(
        device=device.name,
        requests=sum(worker.requests_done for worker in workers),
        generated_tokens=sum(worker.generated_tokens for worker in workers),
        seconds=seconds,
        peak_reserved_bytes=there.peak_reserved_bytes,
        peak_committed_bytes=there.peak_committed_bytes,
        peak_live_bytes=sum(worker.peak_live_bytes for worker in workers),
        control_messages=sum(worker.control_messages for worker in workers),
        driver_calls=sum(there.driver_calls.values()) + sum(worker.driver_calls for worker in workers),
    )


def _reason(error: RayError) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__
