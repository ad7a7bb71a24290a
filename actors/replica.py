"""What a request actor opens: a model, a session with a device, and the loop over both.

A module of its own, because importing the engine takes seconds: a job's own process, which only makes and feeds
request actors, never does it (measured: 0.7 s of imports instead of 6).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from actors.devices import measured_bytes
from actors.gpus import ordinal_of
from actors.host_proxies import open_page_session
from actors.proxies import open_session
from actors.spec import WorkerSpec
from kvcluster.config import Backend, Settings
from kvcluster.driver.limits import descriptor_room, mapping_room
from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.dtypes import dtype_named
from kvcluster.engine.model import open_config, open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import Keeps, Shape
from kvcluster.index.identity import CacheIdentity
from kvcluster.services.memory_check import check_gpu, check_memory, usable_bytes_of
from kvcluster.services.opening import most_tokens_in, most_tokens_of_pages
from kvcluster.services.pages.port import PagePort
from kvcluster.services.port import DevicePort
from kvcluster.services.request import RequestService, open_request_service
from kvcluster.services.request.identity import cache_identity, shares_prefixes
from kvcluster.services.request.settings import Fallback, request_settings
from kvcluster.services.request.worst_step import run_worst_step
from kvcluster.tensors.memory import CPU, computing_device


@dataclass(frozen=True, slots=True)
class Replica:
    """`pages` are those of the node, where the settings have any. Close the service first, then the rest.

    `most_tokens` are those of prompt and answer that the model's context, `context_tokens`, and the memory leave one
    text, which has all of it: the device, or host pages, where they take what the device refuses. `token_bytes` one
    token takes in all layers that keep every token. `identity` is that of the prefixes that it shares, if it does.
    """

    service: RequestService
    port: DevicePort
    pages: PagePort | None = None
    most_tokens: int = 0
    context_tokens: int = 0
    identity: CacheIdentity | None = None
    token_bytes: int = 0

    def close(self) -> None:
        """What the service stood on."""
        with ExitStack() as ending:
            if self.pages is not None:
                ending.callback(self.pages.close)
            ending.callback(self.port.close)


def open_replica(spec: WorkerSpec, device: str) -> Replica:
    """Say hello to the device, and to host pages where there are any, which stay from then on; and load the model.

    On a GPU the device is told then to measure what is left for it.

    Raises:
        ModelNotFound, UnsupportedModel, ConfigError: the model, or memory of this size, cannot be used here.
        DeviceUnreachable: the device, or the host pages, do not answer.
        DeviceMissing, DriverError: the GPU cannot be used. Whatever is raised, no session stays open.
    """
    settings, dtype = spec.settings, dtype_named(spec.settings.dtype)
    geometry = geometry_of(open_config(spec.model_folder), dtype)
    with ExitStack() as undo:
        port = open_session(device, spec.node_id, settings)
        undo.callback(port.close)
        shape, capacity_bytes = _shape(geometry, settings, port), port.welcome.capacity_bytes
        if settings.backend is Backend.HOST:
            check_memory(settings, shape, descriptor_room(), mapping_room())
        else:
            port.computes_on = computing_device(port.driver, ordinal_of(device))
        pages = _open_pages(geometry, spec, undo)
        model = open_model(
            spec.model_folder,
            dtype=dtype,
            threads=spec.threads,
            device=port.computes_on or CPU,
            fused=settings.model_impl == "auto",
            invariant=settings.batch_invariant == "on",
        )
        tokenizer = open_tokenizer(spec.model_folder)
        if settings.backend is Backend.CUDA:
            run_worst_step(model, tokenizer, port, request_settings(settings))
            capacity_bytes = measured_bytes(device, spec.node_id)
            check_gpu(settings, shape, capacity_bytes)
        chosen = request_settings(settings)
        service = open_request_service(model, tokenizer, port, chosen, pages=pages)
        context = model.context_tokens
        most_tokens = most_tokens_in(shape, usable_bytes_of(settings, capacity_bytes), at_most=context)
        if pages is not None and chosen.fallback is Fallback.HOST:
            page_bytes = usable_bytes_of(settings, pages.welcome.capacity_bytes)
            most_tokens = max(most_tokens, min(context, most_tokens_of_pages(pages.welcome, page_bytes)))
        identity = cache_identity(model, chosen) if shares_prefixes(model, chosen) else None
        undo.pop_all()
    token_bytes = sum(group.fragments * group.stride_bytes for group in shape.groups if group.keeps is Keeps.EVERY)
    return Replica(service, port, pages, most_tokens, context, identity, token_bytes)


def _open_pages(geometry: KvGeometry, spec: WorkerSpec, undo: ExitStack) -> PagePort | None:
    """A session with the host pages of this node, where the settings have any. Raises as `open_page_session`."""
    if spec.settings.host_memory_bytes is None:
        return None
    pages = open_page_session(geometry, spec.node_id, spec.settings)
    undo.callback(pages.close)
    return pages


def _shape(geometry: KvGeometry, settings: Settings, port: DevicePort) -> Shape:
    """What a request's memory looks like at this device."""
    layout, granule_bytes = Layout(settings.layout), port.welcome.granule_bytes
    return Shape.of(geometry, layout, granule_bytes, chunk_tokens=settings.prefill_chunk_tokens)
