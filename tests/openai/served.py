"""A model that computes, in this process: a request service whose loop runs on a thread, seen as `Models`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from actors.answers import Answers, computed
from actors.loop import serve
from actors.openai.prompts import ModelPrompts
from actors.openai.seams import ModelCard, Prompts
from kvcluster.services.completion import CompletionRequest, Said
from kvcluster.services.request import RequestService
from tests.request.world import World


@dataclass(frozen=True, slots=True)
class Served:
    """One model, named tiny, on the one device of `world`."""

    world: World
    service: RequestService
    answers: Answers

    def cards(self) -> Sequence[ModelCard]:
        return (ModelCard("tiny", created=1_700_000_000, max_model_len=self.world.model.context_tokens),)

    def check_known(self, name: str) -> None:
        return

    def prompts(self, model: str) -> Prompts:
        return ModelPrompts(self.world.tokenizer)

    async def generate(self, model: str, request: CompletionRequest) -> AsyncGenerator[Said, None]:
        async with aclosing(computed(request, self.service, self.answers)) as words:
            async for said in words:
                for each in said:
                    yield each

    async def kv(self) -> Mapping[str, Any]:
        return {"free_bytes": self.world.free_bytes}

    async def ready(self) -> None:
        return

    async def idle(self) -> None:
        """Until nobody is computed for, and all memory is free again."""
        async with asyncio.timeout(60):
            while self.service.statistics().running or self.world.free_bytes < self.world.device.audit().capacity_bytes:
                await asyncio.sleep(0.001)


@contextmanager
def serving(world: World, **settings: Any) -> Iterator[Served]:
    """`world` with a service whose loop runs; stopped, and whole again, when the block is left."""
    service, answers, stopping = world.open(**settings), Answers(), threading.Event()
    options = {"stopping": stopping, "publish": answers.hand_over}
    loop = threading.Thread(target=serve, args=(service,), kwargs=options)
    loop.start()
    try:
        yield Served(world, service, answers)
    finally:
        stopping.set()
        loop.join()
        world.close()
