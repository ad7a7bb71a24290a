"""kvcluster as a worker: a request service on a host device in this process, as the other benchmarks open it.

`engine` is the setting `model_impl`: "auto" (our forward) or "transformers" (the model's own code).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.loads import Arrival, Progress, Served, run_load
from benchmarks.peers.talk import Order, Texts, work
from benchmarks.workload import OurArm, Subject, open_our_arm
from kvcluster.services.completion import Begun, Completion, CompletionRequest, Delta, Refused, Said, Telling
from kvcluster.services.request import RequestService


class OurEngine:
    """A request service with what every arm is given alike, and the defaults of kvcluster.config for the rest."""

    def __init__(self, order: Order) -> None:
        self._arm: OurArm = open_our_arm(
            Subject(order.engine, Path(order.folder), order.dtype),
            memory=str(order.kv_memory_bytes),
            max_num_seqs=order.most_sequences,
            model_impl=order.engine,
        )
        self.versions = {name: version(name) for name in ("kvcluster", "torch", "transformers")}
        self.notes = {"model_impl": order.engine}

    def generate(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> Texts:
        steps = _Steps(self._arm.service)
        for key, prompt in enumerate(prompts):
            steps.begin(key, Arrival(0.0, prompt, max_tokens), streams=False)
        while len(steps.texts) + len(steps.refused) < len(prompts):
            list(steps.step())
        if steps.refused:
            raise RuntimeError(next(iter(steps.refused.values())))
        return [steps.texts[key] for key in range(len(prompts))]

    def serve(self, arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
        return run_load(_Steps(self._arm.service), arrivals, limit_s)

    def rest(self) -> None:
        self._arm.rest()


class _Steps:
    """The service by steps, and the texts of what it finished."""

    def __init__(self, service: RequestService) -> None:
        self._service = service
        self.texts: dict[int, str] = {}
        self.refused: dict[int, str] = {}

    def begin(self, key: int, arrival: Arrival, *, streams: bool = True) -> None:
        request = CompletionRequest(
            arrival.prompt,
            max_tokens=arrival.max_tokens,
            temperature=0.0,
            ignore_eos=True,
            tells=Telling.PARTS if streams else Telling.WHOLE,
        )
        self._service.submit(key, request)

    def step(self) -> Iterator[Progress]:
        if not self._service.step():
            self._service.wait(0.001)
        for key, said in self._service.said():
            yield from self._heard(key, said)

    def _heard(self, key: int, said: Said) -> Iterator[Progress]:
        match said:
            case Delta():
                yield Progress(key, said.tokens)
            case Completion():
                self.texts[key] = said.text
                yield Progress(key, 0, is_done=True)
            case Refused():
                self.refused[key] = said.message
                yield Progress(key, 0, is_done=True, error=said.message)
            case Begun():
                pass


if __name__ == "__main__":
    work(OurEngine)
