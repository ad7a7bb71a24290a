"""The core stands without Ray, CUDA and transformers: a machine that has none of them can import all of it."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import kvcluster

# Who runs a model or talks to a user; everything else is the core, also what is added later.
BESIDE_THE_CORE = (
    "kvcluster.cli",
    "kvcluster.engine",
    "kvcluster.testing",
    "kvcluster.services.batch",
    "kvcluster.services.request",
)
ON_TORCH = ("kvcluster.tensors", "kvcluster.paged", "kvcluster.services.pages")

IMPORT_ALL = """
import importlib, sys

blocked, names = (argument.split(",") for argument in sys.argv[1:])

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
for name in names:
    importlib.import_module(name)
    print(name)
"""


def _in(rooms: tuple[str, ...], name: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def _core() -> list[str]:
    found = pkgutil.walk_packages(kvcluster.__path__, "kvcluster.")
    return ["kvcluster", *(module.name for module in found if not _in(BESIDE_THE_CORE, module.name))]


def _import_without(blocked: str, names: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_ALL, blocked, ",".join(names)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_core_imports_where_ray_cuda_transformers_and_torch_are_blocked() -> None:
    names = [name for name in _core() if not _in(ON_TORCH, name)]
    done = _import_without("ray,cuda,transformers,torch,numpy,fastapi,starlette", names)
    assert (done.stdout.split(), done.stderr) == (names, "")


def test_tensors_need_torch_and_nothing_else_of_these() -> None:
    names = [name for name in _core() if _in(ON_TORCH, name)]
    done = _import_without("ray,cuda,transformers,fastapi,starlette", names)
    assert (done.stdout.split(), done.stderr) == (names, "")


def test_the_core_is_found_by_walking_the_package() -> None:
    assert {"kvcluster.driver.protocol", "kvcluster.geometry.ring", "kvcluster.transaction"} <= set(_core())
