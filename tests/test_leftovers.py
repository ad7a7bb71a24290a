"""What a test leaves behind is found, of whatever kind it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

import kvcluster
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Access
from kvcluster.transaction import Progress
from tests.leftovers import held, left_since

PAGE = 4096


def leave_a_descriptor(ending: ExitStack) -> None:
    ending.callback(os.close, os.memfd_create("kvcluster"))


def leave_a_mapping(ending: ExitStack) -> None:
    driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=PAGE)
    ending.callback(driver.close)
    address, handle = driver.reserve(PAGE), driver.create(PAGE)
    ending.callback(driver.free_address, address, PAGE)
    ending.callback(driver.release, handle)
    driver.map(address, [handle], Progress())
    ending.callback(driver.unmap, address, PAGE)
    driver.set_access(address, PAGE, Access.READ_WRITE)


def leave_a_thread(ending: ExitStack) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    ending.callback(thread.join)
    ending.callback(end.set)


def leave_a_process(ending: ExitStack) -> None:
    child = ending.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    ending.callback(child.kill)


@pytest.mark.parametrize(
    ("leave", "kind"),
    [
        (leave_a_descriptor, "descriptors"),
        (leave_a_mapping, "mappings"),
        (leave_a_thread, "threads"),
        (leave_a_process, "children"),
    ],
)
def test_what_is_left_is_found_and_gone_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, leave: Callable[[ExitStack], None], kind: str
) -> None:
    monkeypatch.setattr("tests.leftovers.SETTLE_S", 0.1)
    before = held()
    with ExitStack() as ending:
        leave(ending)
        assert kind in left_since(before)
    assert left_since(before) == {}


def test_a_device_that_was_used_and_closed_leaves_nothing() -> None:
    before = held()
    with kvcluster.open_device("host", memory="1MiB") as device:
        device.open_port()
    assert held().more_than(before) == {}
