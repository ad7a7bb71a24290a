"""A process that computes: all sites of a stage on a device of its own, or one site of a stage of several processes.

Run as `python -m tests.exact.prefix_child`. A command is a line of JSON on standard input; a line "frame HEX" that
comes out is a frame for the device, whose reply is the next line that comes in; any other line answers the command.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import Any

import torch

from kvcluster.attach.client import open_attach_client
from kvcluster.driver.host import open_host_driver
from kvcluster.engine.model import Model, open_model
from kvcluster.ids import new_session
from kvcluster.services.imports import Imports
from kvcluster.services.local import open_device
from kvcluster.services.port import DevicePort
from tests.exact.prefix_play import Stage, play_all, play_wrong
from tests.exact.prefix_site import Setting, Site
from tests.services.child import PipeTransport

LOCAL_GRANULES = 16_384
MOST_S = 240  # whatever a test does, this process ends


@cache
def model(folder: str) -> Model:
    return open_model(folder, dtype=torch.float32, threads=1)


@contextmanager
def stage(folder: str, setting: Setting, longest: int) -> Iterator[Stage]:
    """Four sessions of a device in this process; whole again at the end."""
    with open_device(memory=LOCAL_GRANULES * setting.granule_bytes, granule=setting.granule_bytes) as device:
        owner, first, second, witness = (Site(model(folder), device.open_port(), setting) for _ in range(4))
        yield Stage(owner, first, second, witness, longest)
        seen = device.audit()
        assert dict(seen.accounts) == {"free": seen.capacity_bytes}


class Child:
    """What can be asked for, beside the verbs of the site that it is attached to."""

    def __init__(self) -> None:
        self.site: Site | None = None
        self._port: DevicePort | None = None

    def play(self, folder: str, case: dict[str, Any]) -> dict[str, Any]:
        with stage(folder, Setting(**case["setting"]), case["longest"]) as here:
            return asdict(play_all(here, case["lengths"], case["matches"]))

    def play_wrong(self, folder: str, case: dict[str, Any], token: int) -> list[int]:
        with stage(folder, Setting(**case["setting"]), case["longest"]) as here:
            return play_wrong(here.witness, here, token)

    def attach(self, address: str, capacity_bytes: int, folder: str, setting: dict[str, Any]) -> None:
        """From now on this is a site of the device at that address."""
        session = new_session()
        client = open_attach_client(address.replace("@", "\0"), session, timeout_s=20)
        granule_bytes = client.welcome.granule_bytes
        driver = open_host_driver(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes)
        self._port = DevicePort(session, client.welcome, driver, PipeTransport(client, Imports(client, driver)))
        self.site = Site(model(folder), self._port, Setting(**setting))

    def detach(self) -> None:
        assert self._port is not None
        self._port.close()
        self._port.driver.close()


def main() -> None:
    child = Child()
    while line := sys.stdin.readline():
        signal.alarm(MOST_S)
        verb, *arguments = json.loads(line)
        asked = child if hasattr(child, verb) else child.site
        print(json.dumps(getattr(asked, verb)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
