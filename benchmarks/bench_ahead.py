"""What a commit of 64 granules ahead of need adds to the step beside it.

Eight requests decode. In each round one step is taken alone and one beside a commit of 64 granules of 64 KiB for one
request more: asked for before the step, mapped at the boundary after it, as a batch tops itself up. Then the first
page of each granule is written, off the clock, and all 64 go back. Which of the two steps comes first changes with the
round, and rounds in which the batch itself grew are left out.

The device is an actor of its own on Ray, as it is deployed; `--local` has it in this process, where its half of the
commit is taken from the step too. Ratios are those of one round: wall seconds, CPU seconds of this process (threads
that wait for each other by spinning included), and of the thread that steps. "commit / step" is what asking and
mapping take of that thread's CPU seconds, beside those of the step alone: the same figure, without the noise of steps.
"touch" is how many page faults the writing meets: 1,024 where nobody entered the pages before (`driver.population`).
"""

from __future__ import annotations

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray is imported

import argparse
import ctypes
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import Ratio, Timing, ratio, report
from benchmarks.workload import THREADS, Subject, gemma3_270m, llama_31m, prompts
from kvcluster.config import Settings, settings_from
from kvcluster.engine.model import open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.asks import Grow, Shed
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.local import open_device
from kvcluster.services.port import DevicePort
from kvcluster.services.request import RequestService, open_request_service
from kvcluster.services.request.settings import request_settings
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.units import KIB

GRANULES, GRANULE_BYTES, TOKEN_BYTES = 64, 64 * KIB, 4 * KIB
TOKENS = GRANULES * GRANULE_BYTES // TOKEN_BYTES
BATCH, MOST_TOKENS, WARM_UP_STEPS = 8, 3_000, 20
PAGE_BYTES = 4 * KIB
REST_S = 0.005  # the device creates ahead again
NAME = "host:0"
TARGETS = {"step beside a commit / step alone": 1.02}
SUBJECTS: dict[str, Callable[[], Subject]] = {"llama-31m": llama_31m, "gemma3-270m": gemma3_270m}


@dataclass(frozen=True, slots=True)
class Step:
    """One: all of it, what the stepping thread took of it, and of that the commit."""

    whole: Timing
    thread_s: float
    commit_s: float


class Bench:
    """A batch that decodes on a device, and a request beside it."""

    def __init__(self, service: RequestService, port: DevicePort, vocabulary: int) -> None:
        self._service = service
        self._port = port
        geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=TOKEN_BYTES // 8, element_bytes=4)
        self._memory: SequenceMemory = port.memory(SequenceSpec(geometry, Layout.TOKEN_MAJOR, TOKENS))
        self.faults: list[int] = []
        for key, prompt in enumerate(prompts(BATCH, shortest=8, longest=15, vocabulary=vocabulary)):
            request = CompletionRequest(prompt, max_tokens=MOST_TOKENS, temperature=0.0, ignore_eos=True)
            service.submit(key, request)

    def alone(self) -> Step:
        return self._step(lambda: None, lambda _: None)

    def beside(self) -> Step:
        step = self._step(lambda: self._port.submit([Grow(self._memory, TOKENS)]), _settled)
        time.sleep(REST_S)  # a step is in between
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for place in range(0, GRANULES * GRANULE_BYTES, PAGE_BYTES):
            ctypes.c_uint8.from_address(self._memory.address + place).value = 1
        self.faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
        _settled(self._port.submit([Shed(self._memory)]))
        time.sleep(REST_S)
        return step

    def messages(self) -> int:
        return self._port.traffic.control_messages

    def close(self) -> None:
        self._memory.close()
        self._service.close()

    def _step(self, begin: Callable[[], Any], end: Callable[[Any], None]) -> Step:
        wall, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
        pending = begin()
        asked = time.thread_time()
        self._service.step()
        stepped = time.thread_time()
        end(pending)
        ended = time.thread_time()
        whole = Timing(time.perf_counter() - wall, time.process_time() - cpu)
        return Step(whole, ended - thread, asked - thread + ended - stepped)


def _settled(pending: Any) -> None:
    [outcome] = pending.settle()
    if outcome.error:
        raise outcome.error


def measure(bench: Bench, *, rounds: int) -> list[tuple[Step, Step]]:
    """Alone and beside, a pair a round."""
    for _ in range(WARM_UP_STEPS):
        bench.alone()
        bench.beside()
    bench.faults.clear()
    pairs: list[tuple[Step, Step]] = []
    for number in range(rounds):
        before = bench.messages()
        if number % 2:
            alone, beside = bench.alone(), bench.beside()
        else:
            beside, alone = bench.beside(), bench.alone()
        if bench.messages() - before == 4:  # the commit and the release alone
            pairs.append((alone, beside))
    return pairs


def ratios_of(pairs: list[tuple[Step, Step]]) -> dict[str, Ratio]:
    alone, beside = zip(*pairs, strict=True)
    what = "step beside a commit / step alone"
    return {
        what: ratio([step.whole.wall_s for step in beside], [step.whole.wall_s for step in alone]),
        f"{what}, CPU": ratio([step.whole.cpu_s for step in beside], [step.whole.cpu_s for step in alone]),
        f"{what}, CPU of the thread": ratio([step.thread_s for step in beside], [step.thread_s for step in alone]),
        "commit / step": ratio([step.commit_s for step in beside], [step.thread_s for step in alone]),
    }


@contextmanager
def local_port(settings: Settings) -> Iterator[DevicePort]:
    """To a device in this process."""
    with open_device("host", memory=settings.device_memory_bytes or "1GiB") as device:
        yield device.port


@contextmanager
def ray_port(settings: Settings) -> Iterator[DevicePort]:
    """To a device actor, which ends with the block."""
    import ray  # the other way needs none

    from actors.devices import living_device
    from actors.owners import NAMESPACE
    from actors.proxies import open_session

    ray.init(address="local", namespace=NAMESPACE, num_cpus=4, include_dashboard=False, log_to_driver=False)
    node_id = ray.get_runtime_context().get_node_id()
    port = open_session(NAME, node_id, settings)
    try:
        yield port
    finally:
        port.close()
        ray.kill(living_device(NAME, node_id))
        ray.shutdown()


def measured(subject: Subject, *, rounds: int, is_local: bool) -> tuple[dict[str, Ratio], dict[str, Any]]:
    settings = settings_from(
        {"model": str(subject.folder), "dtype": subject.dtype, "device_memory": "1GiB", "devices": NAME}
    )
    with ExitStack() as ending:
        port = ending.enter_context(local_port(settings) if is_local else ray_port(settings))
        torch.set_num_threads(THREADS)
        model = open_model(subject.folder, dtype=subject.torch_dtype, threads=THREADS)
        service = open_request_service(model, open_tokenizer(subject.folder), port, request_settings(settings))
        bench = Bench(service, port, 8192)
        ending.callback(bench.close)
        pairs = measure(bench, rounds=rounds)
        faults = statistics.median(bench.faults)
    alone, beside = zip(*pairs, strict=True)
    more = {
        "pairs": len(pairs),
        "step_s": statistics.median(step.whole.wall_s for step in alone),
        "step_thread_s": statistics.median(step.thread_s for step in alone),
        "commit_thread_s": statistics.median(step.commit_s for step in beside),
        "touch, page faults": faults,
    }
    return {f"{subject.name}: {what}": one for what, one in ratios_of(pairs).items()}, {subject.name: more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--local", action="store_true", help="the device in this process")
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    asked = parser.parse_args()
    ratios: dict[str, Ratio] = {}
    medians: dict[str, Any] = {}
    for name in asked.models:
        found, more = measured(SUBJECTS[name](), rounds=asked.rounds, is_local=asked.local)
        ratios |= found
        medians |= more
    report("ahead", ratios, targets=TARGETS, medians=medians, rounds=asked.rounds, threads=THREADS)


if __name__ == "__main__":
    main()
