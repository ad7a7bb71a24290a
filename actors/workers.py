"""Request actors of one job: started, fed, listened to, replaced when they die or hang, ended.

One long poll a worker is always under way (`RequestActor.collect`), so that results and deaths arrive alike as a
reply, and a worker that hangs is one whose reply does not come. Nothing is awaited without a limit. A worker finds
its device by itself, so that replacing one, and a device that died with it, holds up nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.causes import NODE_DIED, UNKNOWN, cause_of
from actors.owners import NAMESPACE, OwnerKind, living_owner
from actors.records import last_stop
from actors.reports import Answered, Span, device_report, host_report, told
from actors.request import WORKER, RequestActor
from actors.seats import NOTHING, Seat, together
from actors.site import Place, Site, is_alive
from actors.spec import Collected, Opened, Placed, WorkerSpec
from actors.starting import START_TIMEOUT_S, check_goes_on, check_in_time, own_error
from actors.supervisor import meet_supervisor, tell_death, tell_leave
from actors.vigil import watch_begun
from kvcluster.config import ConfigError, Settings
from kvcluster.errors import KvClusterError
from kvcluster.services.chronicle import Who
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.pages.statistics import HostReport, PageStatistics
from kvcluster.services.statistics import DeviceReport, DeviceStatistics
from kvcluster.services.workers import ClusterStopped, Event, Finished, WorkerLost, WorkerReady, WorkerStopped

POLL_S = 5.0
STOP_TIMEOUT_S = 1.0
START_POLL_S = 1.0  # at least so often it is asked whether the start takes too long


class RayWorkers:
    """`services.workers.Cluster` over Ray, at one site. Used by one thread."""

    def __init__(self, settings: Settings, model_folder: str, site: Site, *, env: dict[str, str]) -> None:
        self._settings = settings
        self._model_folder = model_folder
        self._site = site
        self._env = env
        self._name = uuid4().hex[:8]
        self._node_id = ray.get_runtime_context().get_node_id()
        self._is_starting = True  # until all have loaded the model
        self._started_at = 0.0
        self._stop_before = last_stop()  # what is told to everybody from now on is told to this job
        self._devices_at_start: dict[Place, DeviceStatistics | None] = {}
        self._pages_at_start: dict[Place, PageStatistics | None] = {}
        self.seats: list[Seat] = []

    @property
    def count(self) -> int:
        return len(self.seats)

    @property
    def ready(self) -> list[int]:
        """As `Workers.ready`."""
        return [seat.number for seat in self.seats if seat.is_ready and seat.awaited is not None]

    @property
    def returning(self) -> list[int]:
        """As `Workers.returning`; one that does not start for `START_TIMEOUT_S` is lost, says `wait`."""
        return [seat.number for seat in self.seats if not seat.is_ready and seat.awaited is not None]

    def start(self) -> None:
        """Start `workers_per_device` workers at each device, and wait until all have loaded the model.

        One that dies meanwhile is replaced, as later.

        Raises:
            ClusterStopped: one ended because everything was told to.
            WorkerFailed: one died more than `max_restarts` times, or has no place or no model in time.
            ConfigError, KvClusterError: what the first that refused said. Whatever is raised, the caller ends the
                others (`stop`).
        """
        meet_supervisor()
        if self._is_stopped:
            raise ClusterStopped
        try:
            self._open()
        except KvClusterError:  # an owner that was told to end is not reached either
            if self._is_stopped:
                raise ClusterStopped from None
            raise
        self._is_starting, self._started_at = False, time.monotonic()

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        self.seats[worker].actor.submit.remote(list(items))

    def wait(self, timeout_s: float) -> Sequence[Event]:
        awaited = {seat.awaited: seat for seat in self.seats if seat.awaited is not None}
        if not awaited:
            return []
        began = time.monotonic()
        ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
        waited_s = min(time.monotonic() - began, timeout_s)  # not more, though this process may have been stopped
        arrived, silent = ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        heard = [event for reference in arrived for event in self._heard(awaited[reference])]
        return heard + [event for reference in silent for event in self._unheard(awaited[reference], waited_s)]

    def drain(self, timeout_s: float) -> list[Finished]:
        """As `Workers.drain`: what the long polls brought, and what was finished since."""
        seats = [seat for seat in self.seats if seat.is_ready and seat.awaited is not None]
        asked = [seat.actor.collect.remote(0.0) for seat in seats]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
        said = [_collected(reference) for reference in [*(seat.awaited for seat in seats), *asked]]
        for seat in seats:
            seat.awaited = None
        return [Finished(key, outcome) for collected in said for key, outcome in collected.outcomes]

    def device_reports(self) -> list[DeviceReport]:
        """What each device and its workers did since `start`."""
        seconds = time.monotonic() - self._started_at
        asked = [(seat, seat.actor.figures.remote()) for seat in self.seats if seat.is_ready]
        for seat, reference in asked:
            seat.told = told(reference) or seat.told
        return [self._report(place, seconds) for place in self._devices()]

    def host_reports(self) -> list[HostReport]:
        """What was done in each node's host pages since `start`; none of pages that are gone."""
        found = {pages: self._audited(OwnerKind.HOST_PAGES, pages) for pages in self._pages()}
        reports = {place: host_report(self._pages_at_start.get(place), now) for place, now in found.items() if now}
        return [replace(report, pages=self._site.named(place)) for place, report in reports.items()]

    def stop(self) -> None:
        """End every worker: politely, and after `STOP_TIMEOUT_S` by force."""
        stopping = [seat.actor.stop.remote() for seat in self.seats if seat.is_ready]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_TIMEOUT_S)
        for seat in self.seats:
            tell_leave(self._who(seat))
            ray.kill(seat.actor)
            seat.watch(None)

    def _open(self) -> None:
        """A worker at each place, which has loaded the model. Raises as `start`."""
        for place in self._site.seats:
            seat = Seat(len(self.seats), place.device, node_id=place.node_id)
            seat.actor = self._create(seat)
            self.seats.append(seat)
            seat.find_place()
        began = time.monotonic()
        while self.returning:
            for event in self.wait(START_POLL_S):
                check_goes_on(event, self.seats)
            check_in_time(self.seats, self._site, waited_s=time.monotonic() - began)
        self._pages_at_start = {place: self._standing(OwnerKind.HOST_PAGES, place) for place in self._pages()}

    @property
    def _is_stopped(self) -> bool:
        """Whether everything on the cluster was told to end since the job began (`records.note_stop`)."""
        return last_stop() != self._stop_before

    def _create(self, seat: Seat) -> Any:
        place = self._site.seats[seat.number]
        options = {
            "name": f"{WORKER}/{place.node_id}/{self._named(seat)}.{seat.restarts}",
            "namespace": NAMESPACE,
            "num_cpus": 1,
            "num_gpus": self._site.gpu_share,
            "max_concurrency": 4,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(place.node_id, soft=False),
            "runtime_env": {"env_vars": self._env} if self._env else {},
        }
        threads = self._settings.threads_of(self._site.workers_per_node)
        spec = WorkerSpec(self._model_folder, self._settings, place.device, place.node_id, threads, self._named(seat))
        return ray.remote(RequestActor).options(**options).remote(spec)

    def _devices(self) -> list[Place]:
        return list(dict.fromkeys(seat.place for seat in self.seats))

    def _pages(self) -> list[Place]:
        return list(dict.fromkeys(Place(seat.node_id, seat.pages) for seat in self.seats if seat.pages))

    def _is_placed(self, seat: Seat, placed: Placed) -> None:
        """Raises ConfigError where it may not be there."""
        self._site.check(placed.device)
        seat.is_placed(placed)
        if self._is_starting and seat.place not in self._devices_at_start:
            self._devices_at_start[seat.place] = self._standing(OwnerKind.DEVICE, seat.place)
        if seat.node_id == self._node_id:
            with suppress(OSError):  # no descriptor is left: then nobody says how it ends
                seat.watch(watch_begun(placed.pid, placed.started))

    def _who(self, seat: Seat) -> Who:
        return Who(WORKER, self._named(seat), seat.node_id, seat.pid)

    def _named(self, seat: Seat) -> str:
        return f"{self._name}/{seat.number}"

    def _listen(self, seat: Seat) -> None:
        seat.listen(seat.actor.collect.remote(POLL_S))

    def _heard(self, seat: Seat) -> Iterator[Event]:
        try:
            said = ray.get(seat.awaited, timeout=POLL_S)
            if isinstance(said, Placed):
                self._is_placed(seat, said)
        except (RayError, ConfigError) as error:
            self._check_died(seat, error)
            yield self._lost(seat, cause_of(error, ending=seat.ending))
            return
        if isinstance(said, Placed):
            seat.open()
            return
        if isinstance(said, Opened):
            seat.is_open(said)
            yield WorkerReady(seat.number)
        else:
            seat.told, seat.session = said.figures, said.session
            for key, outcome in said.outcomes:
                seat.answered(outcome)
                yield Finished(key, outcome)
            if said.is_last:
                seat.awaited = None
                yield WorkerStopped(seat.number)
                return
        self._listen(seat)

    def _check_died(self, seat: Seat, error: RayError | ConfigError) -> None:
        """Raises what is said against the start of one that lives, while the job's workers start."""
        if self._is_starting and not seat.is_ready and (refusal := own_error(error)) is not None:
            raise refusal from None

    def _unheard(self, seat: Seat, waited_s: float) -> Iterator[Event]:
        """A worker that replies to nothing for longer than its lease is taken for hung."""
        seat.silent_s += waited_s
        limit_s = POLL_S + self._settings.lease_s if seat.is_ready else START_TIMEOUT_S
        if seat.silent_s > limit_s:
            yield self._lost(seat, f"it did not answer for more than {limit_s:.0f} s")

    def _lost(self, seat: Seat, reason: str) -> WorkerLost | WorkerStopped:
        if self._is_stopped:
            seat.leave()
            return WorkerStopped(seat.number)
        tell_death(self._who(seat), "" if reason == UNKNOWN else reason)  # somebody else may know more
        ray.kill(seat.actor)  # a stopped process too: after 5 s by SIGKILL
        session, kept_s = seat.session, self._settings.successor_grace_s
        beside = tuple(each.number for each in self.seats if each.place == seat.place and each is not seat)
        seat.leave()
        returns = seat.restarts < self._settings.max_restarts and reason != NODE_DIED and is_alive(seat.node_id)
        if returns:
            seat.restarts += 1
            seat.actor = self._create(seat)
            seat.find_place()
        return WorkerLost(seat.number, reason, returns=returns, session=session, kept_s=kept_s, beside=beside)

    def _report(self, place: Place, seconds: float) -> DeviceReport:
        here = [seat for seat in self.seats if seat.place == place]
        answered = Answered(sum(seat.requests for seat in here), sum(seat.tokens for seat in here), seconds)
        span = Span(self._devices_at_start.get(place), self._audited(OwnerKind.DEVICE, place))
        return device_report(self._site.named(place), span, answered, together(seat.figures for seat in here))

    def _standing(self, kind: OwnerKind, place: Place) -> Any | None:
        actor = living_owner(kind, place.device, place.node_id)
        return told(actor.statistics.remote()) if actor else None

    def _audited(self, kind: OwnerKind, place: Place) -> Any | None:
        actor = living_owner(kind, place.device, place.node_id)
        return told(actor.audit.remote()) if actor else None


def _collected(reference: Any) -> Collected:
    """What a long poll brought, if it is over; nothing where its worker is dead."""
    try:
        said = ray.get(reference, timeout=0)
    except RayError:
        return Collected([], NOTHING)
    return said if isinstance(said, Collected) else Collected([], NOTHING)
