"""What runs while something is killed: four kinds of work, which between them pass every failpoint of a job.

`grow` is short of memory, on two devices; `heirs` has room for what the dead leave, on one; `rings` has sliding windows
and prompts that begin alike; `pages` flees to host pages, and searches beams there.

Each is 16 greedy requests of which 8 run at a time, so that the later ones find what the earlier ones left. A salt
keeps a case's prompts from what the cases before it computed: every case begins cold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcluster.testing.deployment import Answers, Deployment, deployment_settings
from kvcluster.testing.models import make_model

Prompt = tuple[int, ...]
RUNNING = 8  # at a time, by all workers together


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts of one run, and what more each of them says."""

    prompts: tuple[Prompt, ...]
    max_tokens: int
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """A model, how many devices a node, any other setting, and the runs."""

    name: str
    family: str
    devices: int
    settings: dict[str, Any]
    works: tuple[Work, ...]

    @property
    def workers_per_device(self) -> int:
        count: int = self.settings.get("workers_per_device", 1)
        return count

    @property
    def longest(self) -> int:
        """Tokens of the longest text, its prompt included."""
        return max(len(prompt) + work.max_tokens for work in self.works for prompt in work.prompts)


def _ids(seed: int, count: int) -> Prompt:
    return tuple(random.Random(seed).randrange(2, 500) for _ in range(count))


def _twice(prompts: list[Prompt]) -> tuple[Prompt, ...]:
    return (*prompts, *prompts)


_SHORT = [_ids(n, 9 + 3 * n) for n in range(8)]
_ALIKE = [(*_ids(100, 96), *_ids(200 + n, 4 + n)) for n in range(8)]

LOADS = {
    load.name: load
    for load in (
        Load("grow", "llama", 2, {"device_memory": "128KiB"}, (Work(_twice(_SHORT), 48),)),
        Load("heirs", "llama", 1, {"device_memory": "1MiB", "workers_per_device": 2}, (Work(_twice(_SHORT), 48),)),
        Load(
            "rings",
            "gemma3",
            1,
            {"device_memory": "1MiB", "workers_per_device": 2, "prefill_chunk_tokens": 32},
            (Work(_twice(_ALIKE), 24),),
        ),
        Load(
            "pages",
            "llama",
            1,
            {
                "device_memory": "64KiB",
                "workers_per_device": 2,
                "fallback": "host",
                "host_memory": "256KiB",
                "block_size": 8,
            },
            (
                Work(_twice(_SHORT), 48),
                Work(tuple(_SHORT[:4]), 16, {"use_beam_search": True, "n": 2}),
                Work(tuple(_SHORT[4:7]), 90),  # too long for the device together: the last to end comes back to it
            ),
        ),
    )
}


class Loads:
    """Deployments for them: models made once, devices numbered anew each time."""

    def __init__(self, nodes: Any, scratch: Path, *, mark: str) -> None:
        self._nodes = nodes
        self._scratch = scratch
        self._mark = mark
        self._models: dict[str, Path] = {}
        self._opened = 0

    def opened(self, load: Load, *, newcomers: Sequence[str] = (), **changes: Any) -> Deployment:
        """A new deployment for this load; the caller closes it. Who is started in it is armed with `newcomers`."""
        if load.family not in self._models:
            self._models[load.family] = make_model(self._scratch / load.family, load.family)
        self._opened += 1
        folder = self._scratch / f"deployment-{self._opened}"
        folder.mkdir()
        more = {**load.settings, **changes}
        if len(self._nodes) > 1:
            more["nodes"] = len(self._nodes)
        if newcomers:
            (folder / "marks").mkdir()
            more["failpoints"] = "; ".join([*newcomers, f"marks={folder / 'marks'}"])
        settings = deployment_settings(self._models[load.family], load.devices, 10 * self._opened, **more)
        return Deployment(settings, self._nodes, folder, mark=self._mark)


def run(deployment: Deployment, load: Load, *, salt: str, on_result: Callable[[int], None] = lambda _: None) -> Answers:
    """All of its work, as one: texts in order, everything else summed."""
    parts = [
        deployment.run(
            *work.prompts,
            max_tokens=work.max_tokens,
            running=RUNNING,
            on_result=on_result,
            cache_salt=salt,
            **work.body,
        )
        for work in load.works
    ]
    return Answers(
        tuple(text for part in parts for text in part.texts),
        sum(part.seconds for part in parts),
        tuple(loss for part in parts for loss in part.losses),
        sum(part.replays for part in parts),
        sum(part.recomputed_tokens for part in parts),
    )
