"""The models and prompts that the benchmarks share, and our own arm: a request service on a device in this process."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kvcluster.config import settings_from
from kvcluster.engine.kernels.library import Kernels
from kvcluster.engine.model import open_model
from kvcluster.engine.pretrained import model_folder, models_cache
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.services.completion import Completion, CompletionRequest, Refused, answers_among
from kvcluster.services.local import LocalDevice, open_device
from kvcluster.services.pages.local import LocalPages, open_pages
from kvcluster.services.request import RequestService, RequestStatistics, open_request_service
from kvcluster.services.request.settings import request_settings
from kvcluster.testing.models import make_model

THREADS = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as it is measured."""

    name: str
    folder: Path
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


def llama_31m() -> Subject:
    """31 M parameters, random weights, float32; written into the cache folder once."""
    folder = models_cache() / "llama-31m"
    if not (folder / "tokenizer_config.json").exists():
        make_model(folder, "llama_31m")
    return Subject("llama-31m float32", folder, "float32")


def gemma3_270m() -> Subject:
    return Subject("gemma3-270m bfloat16", model_folder("gemma3-270m"), "bfloat16")


def prompts(count: int, *, shortest: int, longest: int, vocabulary: int) -> list[tuple[int, ...]]:
    """`count` prompts of token ids, with lengths spread evenly from `shortest` to `longest`; always the same ones."""
    draw = random.Random(1)
    steps = max(count - 1, 1)
    lengths = [shortest + (longest - shortest) * number // steps for number in range(count)]
    return [tuple(draw.randrange(3, vocabulary) for _ in range(length)) for length in lengths]


class OurArm:
    """A request service with its device and model, kept over all rounds."""

    def __init__(
        self, subject: Subject, device: LocalDevice, service: RequestService, pages: LocalPages | None = None
    ) -> None:
        self.subject = subject
        self.device = device
        self.pages = pages
        self._service = service

    @property
    def service(self) -> RequestService:
        """For who submits single requests and reads all that is said of them."""
        return self._service

    def answer(self, asked: Sequence[tuple[int, ...]], *, max_tokens: int) -> int:
        """Continue all prompts greedily, past any end token; returns the tokens generated."""
        self.submit(asked, max_tokens=max_tokens)
        outcomes: list[tuple[int, Completion | Refused]] = []
        while len(outcomes) < len(asked):
            outcomes += self.step()
        generated = sum(outcome.completion_tokens for _, outcome in outcomes if isinstance(outcome, Completion))
        assert generated == max_tokens * len(asked), outcomes
        return generated

    def submit(self, asked: Sequence[tuple[int, ...]], *, max_tokens: int) -> None:
        for key, prompt in enumerate(asked):
            request = CompletionRequest(prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
            self._service.submit(key, request)

    def step(self) -> list[tuple[int, Completion | Refused]]:
        """One step, or a wait where there is nothing to do; returns what finished."""
        if not self._service.step():
            self._service.wait(1.0)
        return answers_among(self._service.said())

    def rest(self) -> None:
        """What is on its way back, or being shared, arrives."""
        while self._service.step():
            pass

    def statistics(self) -> RequestStatistics:
        return self._service.statistics()

    def close(self) -> None:
        self._service.close()
        self.device.audit()
        self.device.close()
        if self.pages:
            self.pages.audit()
            self.pages.close()


def open_our_arm(
    subject: Subject, *, memory: str = "512MiB", kernels: Sequence[Kernels] | None = None, **settings: object
) -> OurArm:
    """`settings` are those of kvcluster.config; with `host_memory` there are host pages for what the device refuses.

    `kernels` as in `open_model`: none is torch's attention, a sequence at a time.
    """
    chosen = settings_from({"model": str(subject.folder), "dtype": subject.dtype, "device_memory": memory, **settings})
    device = open_device("host", memory=memory, granule=chosen.granule)
    fused = chosen.model_impl == "auto"
    model = open_model(subject.folder, dtype=subject.torch_dtype, threads=THREADS, fused=fused, kernels=kernels)
    tokenizer = open_tokenizer(subject.folder)
    pages = None
    if chosen.host_memory_bytes is not None:
        pages = open_pages(model.geometry, dtype=subject.torch_dtype, memory=chosen.host_memory_bytes)
    place = pages.port if pages else None
    service = open_request_service(model, tokenizer, device.port, request_settings(chosen), pages=place)
    return OurArm(subject, device, service, pages)
