"""From SIGKILL of a device actor to the next growth of a request, beside what Ray takes to restart a bare actor.

The device has a client in this process, with a request that holds memory. Its actor is killed; the client finds the
next incarnation, registers what it has, and commits one more granule at the same address. The other arm is an actor of
the same imports and options whose only method answers its process id: killed, and asked until it answers. Rounds of
both take turns; the figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray is imported

import argparse
import signal
import statistics
import time
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.devices import living_device
from actors.owners import NAMESPACE
from actors.proxies import open_session
from benchmarks.harness import Ratio, report
from kvcluster.config import Settings, settings_from
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.port import DevicePort
from kvcluster.services.sequence import SequenceMemory, SequenceSpec

LOOK_S = 0.002  # what a step boundary of a small model takes, and the pause before a bare actor is asked again
TOKEN_BYTES = 4096
NAME = "host:0"


class Bare:
    """As much of a device actor as Ray has to start again."""

    def __init__(self) -> None:
        import actors.device  # noqa: F401 - what a device actor imports

    def pid(self) -> int:
        return os.getpid()


def open_bare() -> Any:
    return ray.remote(Bare).options(num_cpus=0, max_restarts=-1).remote()


def bare_restart_s(bare: Any) -> float:
    before = ray.get(bare.pid.remote())
    began = time.perf_counter()
    os.kill(before, signal.SIGKILL)
    while True:
        try:
            if ray.get(bare.pid.remote()) != before:
                return time.perf_counter() - began
        except RayActorError:
            time.sleep(LOOK_S)


def growth_s(port: DevicePort, memory: SequenceMemory, tokens: int, node_id: str) -> float:
    pid = ray.get(living_device(NAME, node_id).address.remote()).pid
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    epoch = port.welcome.epoch
    while not port.in_touch() or port.welcome.epoch == epoch:
        time.sleep(LOOK_S)
    memory.commit(tokens, memory.grant(tokens))
    return time.perf_counter() - began


def measure(settings: Settings, rounds: int) -> dict[str, Ratio]:
    node_id = ray.get_runtime_context().get_node_id()
    port, bare = open_session(NAME, node_id, settings), open_bare()
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=TOKEN_BYTES // 8, element_bytes=4)
    tokens_a_granule = port.welcome.granule_bytes // TOKEN_BYTES
    memory = port.memory(SequenceSpec(geometry, Layout.TOKEN_MAJOR, 64 * tokens_a_granule))
    memory.commit(4 * tokens_a_granule, memory.grant(4 * tokens_a_granule))
    ours, bares = [], []
    for number in range(rounds + 1):
        bares.append(bare_restart_s(bare))
        ours.append(growth_s(port, memory, (5 + number) * tokens_a_granule, node_id))
    ratios = [our / its for our, its in zip(ours[1:], bares[1:], strict=True)]
    print(f"seconds: device to next growth {statistics.median(ours[1:]):.2f}, bare {statistics.median(bares[1:]):.2f}")
    memory.close()
    port.close()
    ray.kill(living_device(NAME, node_id))
    return {"device to next growth / bare actor": Ratio(statistics.median(ratios), min(ratios), max(ratios))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    quick = {"timeout_ms_task_wait_for_death_info": 50}  # or the bare arm would wait a second before each error
    ray.init(
        address="local",
        namespace=NAMESPACE,
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        _system_config=quick,
    )
    report("restart", measure(settings_from({"model": "none", "devices": NAME}), chosen.rounds))
    ray.shutdown()


if __name__ == "__main__":
    main()
