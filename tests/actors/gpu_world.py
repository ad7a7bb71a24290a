"""Two GPUs of a stand-in, in the session's cluster: every process of a test finds the library, and their memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from actors.devices import Device, find_device, living_device
from kvcluster.config import Settings, settings_from
from kvcluster.testing.stand_in_cuda import UUIDS, environment, fresh_stand_in
from kvcluster.units import MIB
from tests.actors.world import eventually, is_whole

GRANULE = "64KiB"
GPU_BYTES = 64 * MIB  # of each GPU


@contextmanager
def two_gpus(node_id: str, folder: Path) -> Iterator[GpuWorld]:
    """Two GPUs that this process sees too. Afterwards no device is left on them."""
    with fresh_stand_in(MEMORY=GPU_BYTES):
        world = GpuWorld(node_id, folder)
        yield world
        world.close()


class GpuWorld:
    """What one test made on the two GPUs. All GPUs of a cluster are every test's, so that none may be left."""

    def __init__(self, node_id: str, folder: Path) -> None:
        self.node_id = node_id
        self.env = environment(DEVICES=2, MEMORY=GPU_BYTES, SHARED=str(folder / "gpu-memory"))

    def settings(self, **changes: Any) -> Settings:
        values = {"model": "none", "devices": "cuda:0,1", "granule": GRANULE, "dtype": "float32"}
        return settings_from({**values, "max_num_batched_tokens": 64, **changes})

    def device(self, uuid: str, settings: Settings, **env: str) -> Device:
        return find_device(uuid, self.node_id, settings, env={**self.env, **env})

    def living(self) -> list[Any]:
        """The devices' actors, where there are some."""
        return [actor for uuid in UUIDS if (actor := living_device(uuid, self.node_id)) is not None]

    def close(self) -> None:
        """The books of each device must sum, with nothing charged to anybody; then it is ended."""
        actors = self.living()
        try:
            for actor in actors:
                eventually(lambda actor=actor: is_whole(actor), "a GPU's device has all its bytes back, and no session")
        finally:
            for actor in actors:
                ray.kill(actor)
        eventually(lambda: not self.living(), "the GPUs' names are free again")
