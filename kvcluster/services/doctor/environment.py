"""What the environment sets for the processes to come: threads that spin, compiled operators, and a compiler."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from kvcluster.services.doctor.finding import Finding, note, ok

_LONG_SPIN = 100_000  # rounds; workers set 2,000 where nothing is set


def findings() -> Iterator[Finding]:
    yield threads(os.environ, len(os.sched_getaffinity(0)))
    yield operators(find_spec("kvcluster.engine.kernels._kernels") is not None)
    yield compiler(shutil.which(os.environ.get("CC", "cc")))


def threads(environment: Mapping[str, str], cores: int) -> Finding:
    """How OpenMP's threads wait for each other. OMP_NUM_THREADS changes nothing: workers set their threads."""
    policy, spin = environment.get("OMP_WAIT_POLICY", ""), environment.get("GOMP_SPINCOUNT", "")
    if policy.lower() == "active" or spin.lower() == "infinite" or (spin.isdecimal() and int(spin) > _LONG_SPIN):
        said = f"OMP_WAIT_POLICY is {policy}" if policy else f"GOMP_SPINCOUNT is {spin}"
        sentence = f"{said}: waiting threads spin, which makes steps several times slower beside other busy processes."
        return note("threads", sentence, remedy="unset it where workers share their cores with others")
    said = f"OMP_WAIT_POLICY is {policy}" if policy else f"threads spin for {spin or '2000'} rounds before they sleep"
    return ok("threads", f"{cores} cores for this process; {said}.")


def operators(are_built: bool) -> Finding:
    """Those of `engine/kernels`, built when the package is installed."""
    if not are_built:
        sentence = (
            "the engine's operators were not compiled: torch attends, a sequence at a time, and steps take longer."
        )
        return note("operators", sentence, remedy="apt install g++, and install kvcluster again")
    return ok("operators", "the engine's operators are compiled.")


def compiler(path: str | None) -> Finding:
    if path is None:
        sentence = "there is no C compiler (cc), with which the tests build a stand-in for a GPU's library."
        return note("C compiler", sentence, remedy="nothing, unless you run the tests: apt install gcc libc6-dev")
    return ok("C compiler", f"{path} (the tests build a stand-in for a GPU's library with it).")
