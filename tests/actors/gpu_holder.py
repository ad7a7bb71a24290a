"""An actor that has a GPU from Ray, or memory on one that is none of ours."""

from __future__ import annotations

from actors.gpus import given_gpu
from kvcluster.driver.cuda import open_cuda_driver


class GpuHolder:
    def gpu(self) -> str:
        return given_gpu()

    def take(self, gpu: str, size_bytes: int) -> None:
        """Keep so much of a GPU, until this process ends."""
        self._driver = open_cuda_driver(gpu)
        self._memory = self._driver.create(size_bytes)
