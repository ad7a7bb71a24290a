"""A libcuda for machines without a GPU: built from C by whoever needs it, and found by the unmodified bindings.

    with fresh_stand_in() as stand_in:                  # this process; nothing may be left at the end
        driver = open_cuda_driver("cuda:1")
        stand_in.fail("cuMemMap@2=2")                   # the second cuMemMap from now on: OUT_OF_MEMORY

    subprocess.run(..., env=os.environ | environment(DEVICES=2, MEMORY="1G"))

Its memory is memfd and its addresses are this process's own, so the CPU reads and writes them. Rules, settings and
faults: libcuda/control.c. Loaded for good: a process that has called a real libcuda cannot take this one, nor the
other way round. The library lies in a folder of the user's own under the temporary one, named after its source.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from kvcluster.built_once import built_once

SONAME = "libcuda.so.1"
DEFAULTS = {"MEMORY": "256M", "GRANULE": "64K", "VMM": "1", "POSIX": "1", "POISON": "-1", "MEMORY_TYPE": "1"}
UUIDS = tuple(f"GPU-7374616e-642d-696e-2047-50550000000{number}" for number in range(2))
"""What the two devices are called that it has unless DEVICES says otherwise."""

_SOURCE = Path(__file__).with_name("libcuda")
_COMPILE = ["cc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared"]


def built() -> Path:
    """The folder with the library in it; built when it is not there yet.

    Raises:
        OSError: there is no cc, or the folder cannot be written, or is another user's.
        subprocess.CalledProcessError: it does not compile.
    """
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in _sources()) + " ".join(_COMPILE).encode())
    return built_once(_place() / digest.hexdigest()[:16], _build)


def environment(**settings: str | int | Path) -> dict[str, str]:
    """What a child process needs in its environment to find the library, set up like this."""
    path = os.environ.get("LD_LIBRARY_PATH", "")
    ours = {f"STAND_IN_CUDA_{name}": str(value) for name, value in settings.items()}
    return {"LD_LIBRARY_PATH": f"{built()}:{path}".rstrip(":"), **ours}


@cache
def load() -> StandIn:
    """Build it and load it into this process, before anything has called CUDA.

    Raises:
        RuntimeError: another libcuda is loaded already.
        OSError, subprocess.CalledProcessError: as `built`.
    """
    library = built() / SONAME
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcuda.so" in line}
    if loaded - {str(library)}:
        raise RuntimeError(f"another libcuda is loaded in this process: {loaded}")
    return StandIn(ctypes.CDLL(str(library)))


@contextmanager
def fresh_stand_in(**settings: str | int) -> Iterator[StandIn]:
    """The library in this process, with these settings; afterwards nothing is on it, and the defaults hold again.

    Raises:
        AssertionError: something of the block is still alive, by the library's own count.
    """
    stand_in = load()
    stand_in.set(**settings)
    try:
        yield stand_in
        if left := stand_in.memory_alive():
            raise AssertionError(f"left on the stand-in's devices: {left}")
    finally:
        stand_in.fail("")
        stand_in.clear()
        stand_in.set(**DEFAULTS)


class StandIn:
    """The library's controls, for the process that loaded it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("calls", "alive", "begin_work"):
            getattr(library, f"stand_in_{name}").restype = ctypes.c_uint64
        library.stand_in_begin_work.argtypes = (ctypes.c_void_p,)
        library.stand_in_end_work.argtypes = (ctypes.c_uint64,)

    def set(self, **settings: str | int) -> None:
        """Change settings by their names; the granule only while nothing is alive.

        Raises:
            ValueError: no such setting.
        """
        for name, value in settings.items():
            if not self._library.stand_in_set(name.encode(), str(value).encode()):
                raise ValueError(f"the stand-in has no setting {name}")

    def fail(self, rules: str) -> None:
        """The rules from now on, in place of those before: "cuMemCreate@1=2;cuMemMap@3+=1;*@7=999"; "" for none."""
        self._library.stand_in_fail(rules.encode())

    def calls(self, function: str = "*") -> int:
        """How often a function was called so far, or all of them together."""
        return int(self._library.stand_in_calls(function.encode()))

    def alive(self, what: str) -> int:
        """How many "memories", "mappings", "reservations", "events", "streams" or "contexts" there are."""
        return int(self._library.stand_in_alive(what.encode()))

    def memory_alive(self) -> dict[str, int]:
        """What of memory is alive; empty for nothing."""
        counts = {what: self.alive(what) for what in ("memories", "mappings", "reservations")}
        return {what: count for what, count in counts.items() if count}

    def clear(self) -> None:
        """Everything mapped, created and reserved goes, for a test that leaves it so on purpose."""
        self._library.stand_in_clear()

    def begin_work(self, stream: int = 0) -> int:
        """A kernel that runs until it is ended; its number."""
        return int(self._library.stand_in_begin_work(stream))

    def end_work(self, number: int) -> None:
        self._library.stand_in_end_work(number)


def _sources() -> list[Path]:
    return sorted(file for file in _SOURCE.iterdir() if file.suffix in {".c", ".h"})


def _place() -> Path:
    """A folder that nobody else could have put a library into."""
    place = Path(tempfile.gettempdir()) / f"kvcluster-stand-in-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise PermissionError(f"{place} is another user's")
    return place


def _build(folder: Path) -> None:
    folder.mkdir()
    sources = [str(file) for file in _sources() if file.suffix == ".c"]
    command = [*_COMPILE, f"-Wl,-soname,{SONAME}", "-o", str(folder / SONAME), *sources, "-lpthread"]
    subprocess.run(command, check=True)
