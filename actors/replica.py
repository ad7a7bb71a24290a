"""What a request actor opens: a model, a session with a device, and the loop over both.

A module of its own, because importing the engine takes seconds: a job's own process, which only makes and feeds
request actors, never does it (measured: 0.7 s of imports instead of 6).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from actors.proxies import open_session
from actors.spec import WorkerSpec
from kvcluster.driver.limits import descriptor_room, mapping_room
from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.dtypes import dtype_named
from kvcluster.engine.model import open_config, open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.residency import Shape
from kvcluster.services.memory_check import check_memory
from kvcluster.services.port import DevicePort
from kvcluster.services.request import RequestService, open_request_service
from kvcluster.services.request.settings import request_settings


@dataclass(frozen=True, slots=True)
class Replica:
    """Close the service first, then the port."""

    service: RequestService
    port: DevicePort


def open_replica(spec: WorkerSpec) -> Replica:
    """Say hello to the device, which stays from then on, and load the model.

    Raises:
        ModelNotFound, UnsupportedModel, ConfigError: the model, or memory of this size, cannot be used here.
        DeviceUnreachable: the device does not answer. Whatever is raised, no session stays open.
    """
    settings, dtype = spec.settings, dtype_named(spec.settings.dtype)
    geometry = geometry_of(open_config(spec.model_folder), dtype)
    shape = Shape.of(geometry, Layout(settings.layout), settings.granule_bytes)
    check_memory(settings, shape, descriptor_room(), mapping_room())
    with ExitStack() as undo:
        port = open_session(spec.device, spec.node_id, settings)
        undo.callback(port.close)
        model = open_model(spec.model_folder, dtype=dtype, threads=settings.worker_threads)
        service = open_request_service(model, open_tokenizer(spec.model_folder), port, request_settings(settings))
        undo.pop_all()
    return Replica(service, port)
