"""A replica of a served model: the loop of a request actor, whose answers are streamed, in a deployment of Ray Serve.

It sits at one device for life. What its loop says is handed to the event loop once a step (`actors.answers`), and each
request gets what concerns it in lists: all that was said since it last took some. A loop that fails, ends: every
request hears so at once, and the process ends too, because only that frees what it cannot unmap; Serve starts
another. Whether the loop hangs is `check_health`'s question.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray import serve

from actors.answers import Answer, Answers, computed
from actors.berths import Berth, take_berth
from actors.callers import Callers
from actors.gpus import given_gpu
from actors.loop_thread import LAST_WORDS_S, LoopThread
from actors.openai.seams import Room
from actors.replicas import replica_name, with_word
from actors.request import SHUTDOWN_S, WORKER
from actors.routing_stats import RoutingStats
from actors.spec import WorkerSpec
from actors.supervisor import announce, tell_own_death, tell_own_leave
from kvcluster.config import Backend, Settings
from kvcluster.engine.pretrained import model_folder
from kvcluster.failpoints import Passer, arm_with, process_is
from kvcluster.services.completion import UNAVAILABLE, CompletionRequest, Refused, Said
from kvcluster.serving_config import ServingSettings

RESTART_S = 2.0  # of a device, until it answers again; measured: 0.8 to 1.5 s
RELOAD_S = 5.0  # of a replica, with a small model
DEVICE_AWAY, REPLICA_LOST = "device_restarting", "replica_lost"


def lost(why: str) -> Refused:
    """What everybody is told whose replica is."""
    sentence = f"the replica that computed this is lost: {why}; ask again in {RELOAD_S:.0f} s"
    return Refused(UNAVAILABLE, REPLICA_LOST, sentence, retry_after_s=RELOAD_S)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a gateway asks of a model: what its clients are told (see `actors.replica.Replica`), and how many texts fit
    at one time, where that is known.
    """

    most_tokens: int
    context_tokens: int = 0
    room: Room | None = None


class LoopSilent(Exception):
    """The loop has not been at a step boundary for longer than a lease, or has ended: this replica is of no use."""


class ServedModel:
    """One deployment a model, made by `actors.serve_app`."""

    def __init__(self, served: str, settings: ServingSettings, workers: int) -> None:
        """`workers` are this model's replicas on one node. Returns when the model is loaded.

        Raises:
            ConfigError, KvClusterError, NoBerth: as `open_replica`, or there is no device left. Nothing is held.
        """
        process_is(Passer.REQUEST)
        if settings.failpoints:
            arm_with(settings.failpoints)
        self._settings = settings.of(served)
        self._answers = Answers()
        self._callers = Callers()
        self._is_leaving = False
        context = serve.get_replica_context()
        announce(WORKER, replica_name(context.replica_id.to_full_id_str()))
        self._node_id = ray.get_runtime_context().get_node_id()
        self._berth = _berth(f"{context.app_name}/{context.deployment}/{self._node_id}", self._settings)
        device = self._berth.device if self._berth else ""
        folder = str(model_folder(self._settings.model))
        threads = settings.threads_of(workers)
        spec = WorkerSpec(folder, self._settings, device, self._node_id, threads, model=served)
        self._loop = LoopThread(
            spec, lambda: device or given_gpu(), publish=self._answers.hand_over, over=self._loop_is_over
        )
        self._loop.open()

    async def generate(self, request: CompletionRequest, caller: str) -> AsyncGenerator[Sequence[Said], None]:
        """What is said of it, in order; nothing at first, which tells that it was taken. Closing it cancels it,
        and so does the death of `caller`, a replica of Serve's by its actor's name.

        Where the device is away what runs goes on, and a new request is `Refused` (503), as all are whose loop failed.
        """
        yield ()
        replica = self._loop.opened
        if replica.port.is_lost:
            yield (_away(replica.port.welcome.device),)
            return
        said = computed(request, replica.service, self._answers, within=partial(self._asking, caller))
        async with aclosing(said):
            async for each in said:
                yield each

    def _asking(self, caller: str, answer: Answer) -> AbstractContextManager[None]:
        return self._callers.asking(caller, partial(self._leave_off, answer))

    def _leave_off(self, answer: Answer) -> None:
        """Nobody waits for it any more."""
        self._loop.opened.service.cancel(answer.key)
        answer.take_in(lost("whoever asked for it is gone"))

    async def facts(self) -> ModelFacts:
        opened, texts = self._loop.opened, self._settings.max_num_seqs + (self._settings.max_num_waiting or 0)
        room = Room(most_replicas(serve.get_replica_context()), texts)
        return ModelFacts(opened.most_tokens, opened.context_tokens, room)

    async def ready(self) -> Refused | None:
        """Why a request would not be computed now, if so."""
        if why := self._silence():
            return lost(why)
        port = self._loop.opened.port
        return _away(port.welcome.device) if port.is_lost else None

    async def end(self) -> None:
        """The loop ends at its next step, and whoever is still answered is told so. For an endpoint that ends."""
        await asyncio.to_thread(self._leave)

    async def check_health(self) -> None:
        """Serve asks now and then, and replaces a replica that raises three times.

        Raises:
            LoopSilent: its loop hangs, or is over.
        """
        if why := self._silence():
            raise LoopSilent(why)

    def record_routing_stats(self) -> dict[str, Any]:
        """For the request router, and for `kvcluster top` and `status`, which ask it by this method."""
        replica = self._loop.opened
        device = replica.port.welcome.device
        told = RoutingStats.of(replica.identity, device=device, node_id=self._node_id, token_bytes=replica.token_bytes)
        return with_word(told.to_dict(), self._loop.standing())

    def __del__(self) -> None:
        """Serve calls it when nothing is under way any more, or after `graceful_shutdown_timeout_s`."""
        self._leave()

    def __ray_shutdown__(self) -> None:
        """Ray calls it when this process is told to end (SIGTERM)."""
        self._leave()

    def _silence(self) -> str | None:
        return why_silent(self._loop.failure, self._loop.silent_s, lease_s=self._settings.lease_s)

    def _leave(self) -> None:
        """Give the memory back in order. Nothing depends on it: the owners of the memory see this process end."""
        if self._is_leaving or not hasattr(self, "_loop"):
            return
        self._is_leaving = True
        tell_own_leave()
        self._loop.stop(SHUTDOWN_S)
        if self._berth is not None:
            self._berth.close()

    def _loop_is_over(self) -> None:
        """On the loop's thread. A failure before the model was loaded is the constructor's to raise."""
        if self._loop.replica is None:
            return
        failure = self._loop.failure
        reason = f"its loop failed: {failure}" if failure else "it is ending"
        self._answers.end(lost(reason))
        if failure is not None:
            tell_own_death(str(failure), within_s=LAST_WORDS_S)
            threading.Event().wait(LAST_WORDS_S)  # for those who hear of it now
            os._exit(1)


def most_replicas(context: Any) -> int:
    """How many this deployment has, or may have where Serve counts them by the load. `context` is one replica's."""
    scaling = context._deployment_config.autoscaling_config  # the one place that has it (Ray 2.60)
    return int(scaling.max_replicas if scaling else context.world_size)


def why_silent(failure: BaseException | None, silent_s: float, *, lease_s: float) -> str | None:
    """Why a loop is of no use that failed so, if it did, and was last heard of so long ago; None where it is."""
    if failure is not None:
        return f"the loop failed: {failure}"
    return f"the loop was not heard of for {silent_s:.0f} s" if silent_s > lease_s else None


def _berth(owner: str, settings: Settings) -> Berth | None:
    """A place at a host device; a GPU is Ray's to give."""
    if settings.backend is Backend.CUDA:
        return None
    return take_berth(owner, settings.device_names, each=settings.workers_per_device)


def _away(device: str) -> Refused:
    sentence = f"the memory of device {device} is being started again: ask again in {RESTART_S:.0f} s"
    return Refused(UNAVAILABLE, DEVICE_AWAY, sentence, retry_after_s=RESTART_S)
