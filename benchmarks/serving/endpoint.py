"""The endpoint under test: one of its own, started with `kvcluster serve`, or one that runs already.

Its own serves a small model with random weights, made in seconds, on loopback; it is told to end by SIGINT as a user
would, and killed with all its descendants if that takes longer than STOP_S. Of one that is given by `--url` nothing is
known but the address, and, with `--pid`, the process above all of its processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.serving.client import BROKEN, Target, read_json
from benchmarks.serving.processes import Census, busy_s, census, descendants

START_S = 180.0
STOP_S = 30.0
LOG_LINES = 40
SMALL = {"dtype": "float32", "device_memory": "64MiB", "layout": "token-major"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to serve: `models` are names and families of `kvcluster.testing.models`; `settings` are args of the file."""

    models: Mapping[str, str] = field(default_factory=lambda: {"small": "llama"})
    devices: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`root` is the process above all that serve; None: not known."""

    url: str
    models: tuple[str, ...]
    root: int | None

    def target(self, model: str | None = None) -> Target:
        return Target.of(self.url, model or self.models[0])

    def census(self) -> Census | None:
        return census(self.root) if self.root else None


class Beside:
    """What else ran on the machine: CPU seconds of others a second, and the load average at both ends."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._began = time.perf_counter(), busy_s(), self._ours_s()
        self._load = os.getloadavg()[0]

    def said(self) -> dict[str, float]:
        wall_s = time.perf_counter() - self._began[0]
        others_s = busy_s() - self._began[1] - (self._ours_s() - self._began[2])
        return {
            "other_cores": round(max(0.0, others_s) / wall_s, 2),
            "load_average_before": round(self._load, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
            "wall_s": round(wall_s, 1),
        }

    def _ours_s(self) -> float:
        """Of this process and of those that serve; one that died in between counts as another's."""
        seen = [one.census() for one in self._endpoints]
        served_s = sum(one.cpu_s for now in seen if now for one in now.processes.values())
        return served_s + time.process_time()


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What all of these benchmarks take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of an endpoint that runs; without it one is started")
    parser.add_argument("--pid", type=int, help="with --url: the process above all that serve there")
    parser.add_argument("--model", help="with --url: the model to ask for; without it the first of /v1/models")
    parser.add_argument("--quick", action="store_true", help="about 20 s of load, to see that it works")
    return parser


@contextmanager
def endpoint(chosen: argparse.Namespace, wanted: Wanted) -> Iterator[Endpoint]:
    """The one that was given, else one of its own."""
    if not chosen.url:
        with started(wanted) as own:
            yield own
        return
    models = served_models(chosen.url)
    yield Endpoint(chosen.url, (chosen.model,) if chosen.model else models, chosen.pid)


@contextmanager
def started(wanted: Wanted) -> Iterator[Endpoint]:
    """An endpoint that answers; it and all its processes are gone at the end. Raises RuntimeError if it never does."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serving-")))
        port = free_port()
        config = folder / "ray_config.yaml"
        config.write_text(json.dumps(_document(wanted, _made(wanted, folder), port)), encoding="utf-8")
        log = stack.enter_context((folder / "log").open("w+b"))
        command = [
            str(Path(sys.executable).with_name("kvcluster")),
            "serve",
            "--config",
            str(config),
            "--port",
            str(port),
        ]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        stack.callback(_end, process)
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, process, folder / "log")
        yield Endpoint(url, tuple(wanted.models), process.pid)


def served_models(url: str) -> tuple[str, ...]:
    """As /v1/models lists them. Raises one of `client.BROKEN`."""
    listed = asyncio.run(read_json(Target.of(url, ""), "/v1/models"))
    return tuple(card["id"] for card in listed["data"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _made(wanted: Wanted, folder: Path) -> dict[str, str]:
    """The models' folders by their served names."""
    from kvcluster.testing.models import make_model  # here, because it takes seconds

    return {name: str(make_model(folder / name, family)) for name, family in wanted.models.items()}


def _document(wanted: Wanted, folders: Mapping[str, str], port: int) -> dict[str, Any]:
    """A config file; JSON is YAML. Devices are numbered from the port on: a machine has each number once."""
    devices = "host:" + ",".join(str(port + number) for number in range(wanted.devices))
    settings = {**SMALL, "devices": devices, "models": folders, **wanted.settings}
    application = {"name": "kvcluster", "route_prefix": "/", "import_path": "actors.serve_app:build", "args": settings}
    return {"applications": [application]}


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        with suppress(*BROKEN):
            if served_models(url):
                return
        time.sleep(0.2)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    raise RuntimeError("the endpoint did not start:\n" + "\n".join(lines))


def _end(process: subprocess.Popen[bytes]) -> None:
    """By SIGINT; what is left of it after STOP_S by SIGKILL."""
    tree = list(descendants(process.pid))
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
        return
    print(f"the endpoint did not end within {STOP_S:.0f} s of SIGINT", file=sys.stderr)
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
