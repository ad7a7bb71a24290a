"""The request actor: a model replica and its continuous-batching loop, on memory of one device for life.

The loop runs on a thread of its own; Ray's threads only hand requests in and results out. When the loop fails,
`collect` raises what it failed with, and the actor is of no use any more: its owner ends it and replays its requests.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from actors.proxies import open_session
from kvcluster.config import Settings
from kvcluster.driver.limits import descriptor_room, mapping_room
from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.model import open_config, open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.errors import InvariantBroken
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.residency import Shape
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from kvcluster.services.memory_check import check_memory
from kvcluster.services.port import DevicePort
from kvcluster.services.request import RequestService, RequestStatistics, open_request_service
from kvcluster.services.request.settings import request_settings

POLL_S = 0.5

Outcomes = list[tuple[int, Completion | Refused]]


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker of a job: which model, with which settings, at which device of which node."""

    model_folder: str
    settings: Settings
    device: str
    node_id: str


class RequestActor:
    """Made and fed by `actors.workers`. `open` comes first and once; the rest may be called from any thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._news = threading.Condition()
        self._outcomes: Outcomes = []
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._loop = threading.Thread(target=self._run, name="request-loop", daemon=True)
        self._port: DevicePort
        self._service: RequestService

    def open(self) -> int:
        """Say hello to the device (which stays from then on), load the model, start the loop. Returns the process id.

        Raises:
            ModelNotFound, UnsupportedModel, ConfigError: the model, or memory of this size, cannot be used here.
            DeviceUnreachable: the device does not answer.
        """
        spec, settings = self._spec, self._spec.settings
        dtype = getattr(torch, settings.dtype)
        geometry = geometry_of(open_config(spec.model_folder), dtype)
        shape = Shape.of(geometry, Layout(settings.layout), settings.granule_bytes)
        check_memory(settings, shape, descriptor_room(), mapping_room())
        with ExitStack() as undo:
            self._port = open_session(spec.device, spec.node_id, settings)
            undo.callback(self._port.close)
            model = open_model(spec.model_folder, dtype=dtype, threads=settings.worker_threads)
            tokenizer = open_tokenizer(spec.model_folder)
            undo.pop_all()
        self._service = open_request_service(model, tokenizer, self._port, request_settings(settings))
        self._loop.start()
        return os.getpid()

    def submit(self, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        """Queue requests, each under its caller's key. A key that is under way fails the actor: nobody hears us."""
        try:
            for key, request in items:
                self._service.submit(key, request)
        except ValueError as failure:
            self._fail(failure)

    def collect(self, timeout_s: float) -> Outcomes:
        """What finished since the last call; waits for the first up to `timeout_s`.

        Raises:
            Whatever ended the loop. Requests without an outcome are lost with this actor.
        """
        with self._news:
            self._news.wait_for(lambda: self._outcomes or self._failure, timeout=timeout_s)
            if self._failure and not self._outcomes:
                raise self._failure
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def report(self) -> RequestStatistics:
        """What this worker did so far."""
        return self._service.statistics()

    def stop(self) -> None:
        """End the loop at its next step and give all memory back. Requests without an outcome are dropped."""
        self._stopping.set()
        if self._loop.ident is not None:  # it was started
            self._loop.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._service.step():
                    self._service.wait(POLL_S)
                self._publish()
            self._service.close()
        except InvariantBroken:
            traceback.print_exc()
            os._exit(1)
        except BaseException as failure:  # noqa: BLE001 - the actor boundary: whoever collects hears of it
            self._publish()
            self._fail(failure)
        finally:
            self._port.close()

    def _publish(self) -> None:
        if outcomes := self._service.finished():
            with self._news:
                self._outcomes += outcomes
                self._news.notify_all()

    def _fail(self, failure: BaseException) -> None:
        with self._news:
            self._failure = failure
            self._news.notify_all()
