"""Request actors of one job: started, fed, listened to, replaced when they die, ended.

One long poll a worker is always under way (`RequestActor.collect`), so that results and deaths arrive alike as a
reply. Nothing is awaited without a limit. A worker finds its device by itself, so that replacing one, and a device
that died with it, holds up nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.devices import reason_of
from actors.reports import Answered, device_report
from actors.request import RequestActor
from actors.spec import WorkerSpec
from kvcluster.config import ConfigError, Settings
from kvcluster.errors import KvClusterError
from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.statistics import DeviceReport
from kvcluster.services.workers import Event, Finished, WorkerLost, WorkerReady

POLL_S = 5.0
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 1.0


class WorkerFailed(KvClusterError):
    """A worker could not be started."""

    def __init__(self, *, worker: int, reason: str) -> None:
        super().__init__(f"worker {worker} did not start: {reason}")
        self.worker = worker
        self.reason = reason


@dataclass(slots=True)
class Seat:
    """One worker's place at a device; the actor in it changes when it dies. `awaited` is its start, or its long poll.

    `requests` and `tokens` were answered from this seat, by whichever actor sat in it. `pid` is 0 until it is ready.
    """

    number: int
    device: str
    actor: Any
    awaited: Any
    pid: int = 0
    restarts: int = 0
    requests: int = 0
    tokens: int = 0


class RayWorkers:
    """`services.workers.Cluster` over Ray, at devices of one node. Used by one thread."""

    def __init__(self, settings: Settings, model_folder: str, node_id: str, *, env: dict[str, str]) -> None:
        self._settings = settings
        self._model_folder = model_folder
        self._node_id = node_id
        self._env = env
        self._started_at = 0.0
        self.seats: list[Seat] = []

    @property
    def count(self) -> int:
        return len(self.seats)

    def start(self) -> None:
        """Start `workers_per_device` workers at each device, and wait until all have loaded the model.

        Raises:
            ConfigError, KvClusterError: what the first that failed said. The caller ends the others (`stop`).
        """
        for device in self._settings.device_names * self._settings.workers_per_device:
            actor = self._create(device)
            self.seats.append(Seat(len(self.seats), device, actor, actor.open.remote()))
        deadline = time.monotonic() + START_TIMEOUT_S
        for seat in self.seats:
            seat.pid = _opened(seat, deadline - time.monotonic())
            self._listen(seat)
        self._started_at = time.monotonic()

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        self.seats[worker].actor.submit.remote(list(items))

    def wait(self, timeout_s: float) -> Sequence[Event]:
        awaited = {seat.awaited: seat for seat in self.seats if seat.awaited is not None}
        arrived, _ = ray.wait(list(awaited), num_returns=1, timeout=timeout_s) if awaited else ([], [])
        return [event for reference in arrived for event in self._heard(awaited[reference])]

    def device_reports(self) -> list[DeviceReport]:
        """What each device and its living workers did since `start` returned."""
        seconds = time.monotonic() - self._started_at
        return [self._report(device, seconds) for device in self._settings.device_names]

    def stop(self) -> None:
        """End every worker: politely, and after `STOP_TIMEOUT_S` by force."""
        stopping = [seat.actor.stop.remote() for seat in self.seats if seat.pid]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_TIMEOUT_S)
        for seat in self.seats:
            ray.kill(seat.actor)

    def _create(self, device: str) -> Any:
        options = {
            "num_cpus": 1,
            "max_concurrency": 4,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self._node_id, soft=False),
            "runtime_env": {"env_vars": self._env} if self._env else {},
        }
        spec = WorkerSpec(self._model_folder, self._settings, device, self._node_id)
        return ray.remote(RequestActor).options(**options).remote(spec)

    def _listen(self, seat: Seat) -> None:
        seat.awaited = seat.actor.collect.remote(POLL_S)

    def _heard(self, seat: Seat) -> Iterator[Event]:
        try:
            said = ray.get(seat.awaited, timeout=POLL_S)
        except RayError as error:
            yield self._lost(seat, reason_of(error))
            return
        if seat.pid:
            yield from (self._finished(seat, key, outcome) for key, outcome in said)
        else:
            seat.pid = said
            yield WorkerReady(seat.number)
        self._listen(seat)

    def _finished(self, seat: Seat, key: int, outcome: Any) -> Finished:
        seat.requests += 1
        seat.tokens += outcome.completion_tokens if isinstance(outcome, Completion) else 0
        return Finished(key, outcome)

    def _lost(self, seat: Seat, reason: str) -> WorkerLost:
        seat.pid, seat.awaited = 0, None
        ray.kill(seat.actor)
        returns = seat.restarts < self._settings.max_restarts
        if returns:
            seat.restarts += 1
            seat.actor = self._create(seat.device)
            seat.awaited = seat.actor.open.remote()
        return WorkerLost(seat.number, reason, returns=returns)

    def _report(self, device: str, seconds: float) -> DeviceReport:
        here = [seat for seat in self.seats if seat.device == device]
        answered = Answered(sum(seat.requests for seat in here), sum(seat.tokens for seat in here), seconds)
        return device_report(device, self._node_id, answered, [seat.actor for seat in here if seat.pid])


def _opened(seat: Seat, timeout_s: float) -> int:
    try:
        pid: int = ray.get(seat.awaited, timeout=max(timeout_s, 0.0))
    except GetTimeoutError:
        reason = f"no answer within {START_TIMEOUT_S:.0f} s; has the cluster a free CPU on this node?"
        raise WorkerFailed(worker=seat.number, reason=reason) from None
    except RayTaskError as error:
        if isinstance(error.cause, KvClusterError | ConfigError):
            raise error.cause from None
        raise
    except RayError as error:
        raise WorkerFailed(worker=seat.number, reason=reason_of(error)) from None
    return pid
