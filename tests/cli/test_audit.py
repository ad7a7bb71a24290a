"""`kvcluster audit`: what is printed and how it ends, of answers that a stand-in gives in the actors' place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

import kvcluster
from kvcluster.cli.main import app
from kvcluster.config import ConfigError
from kvcluster.errors import OutOfBudget
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.statistics import AuditedDevice, DeviceStatistics, PrefixStatistics

NODE = "0123456789abcdef"
GEOMETRY = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=512, element_bytes=4)  # a granule a token

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def figures() -> Iterator[DeviceStatistics]:
    """Those of a device with two requests; a third was refused something, and has ended."""
    with kvcluster.open_device("host", memory=16 * 4096, granule=4096) as device:
        for tokens in (3, 5):
            memory = device.open(GEOMETRY, max_tokens=8)
            memory.commit(tokens, memory.grant(tokens))
        with device.open(GEOMETRY, max_tokens=16) as third, pytest.raises(OutOfBudget):
            third.grant(16)
        yield device.audit()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, where the cluster answers `found`, or raises it."""

    def call(found: tuple[AuditedDevice, ...] | Exception, *options: str) -> Result:
        def audit_cluster(address: str | None = None) -> tuple[AuditedDevice, ...]:
            if isinstance(found, Exception):
                raise found
            return found

        module = ModuleType("actors.audits")
        module.__dict__["audit_cluster"] = audit_cluster
        monkeypatch.setitem(sys.modules, "actors.audits", module)
        return CliRunner().invoke(app, ["audit", *options])

    return call


def test_what_waits_for_which_process_is_named(run: Run, figures: DeviceStatistics) -> None:
    """The process of a hung client can be found, and so can its newer session, where it went on under another name."""
    sessions = {"old": "orphaned", "new": "live", "other": "live"}
    pids = {"old": 11, "new": 11, "other": 12}
    hung = replace(figures, sessions=sessions, pids=pids, quarantined={"old": 8192})
    listed = run((AuditedDevice("host", NODE, hung),)).stdout
    assert "sessions  process 11 orphaned (8.0 KiB wait) and live, process 12 live" in listed


def test_a_cluster_without_devices_says_so_and_ends_with_0(run: Run) -> None:
    result = run(())
    assert (result.exit_code, result.stdout) == (0, "no device is open on this cluster\n")
    assert json.loads(run((), "--json").stdout) == {"devices": []}


def test_requests_are_counted_together_and_refusals_by_kind(run: Run, figures: DeviceStatistics) -> None:
    assert figures.refusals == {"OutOfBudget": 1}
    result = run((AuditedDevice("host:0", NODE, figures),))
    assert (result.exit_code, result.stderr) == (0, "")
    head, accounts, handles, sessions, prefixes, tenants, refusals, lookups = result.stdout.splitlines()
    assert head == "host:0 on node 01234567: 64.0 KiB, and all sums"
    assert "free 32.0 KiB" in accounts
    assert "2 request 32.0 KiB" in accounts
    assert "out 32.0 KiB" in handles
    assert sessions.endswith(" live")
    assert prefixes.split() == ["prefixes", "none"]
    assert tenants.split() == ["tenants", "unnamed", "32.0", "KiB"]
    assert refusals.split() == ["refusals", "OutOfBudget", "1"]
    assert lookups == "  lookups   0, found 0 of 0 tokens"


def test_prefixes_are_counted_by_state_and_accounts_of_all_tenants_by_kind(run: Run, figures: DeviceStatistics) -> None:
    prefixes = {
        number: PrefixStatistics(64, 4096 * number, state, users=1, pins=0)
        for number, state in enumerate(("sealed", "sealed", "writing"), start=1)
    }
    accounts = {"free": 8192, "granted@a": 4096, "granted@b": 4096, "prefix/1@a": 4096, "prefix/2": 8192}
    shown = replace(figures, accounts=accounts, prefixes=prefixes, sharing_refusals={"no-boundary": 3})
    lines = run((AuditedDevice("host:0", NODE, shown),)).stdout.splitlines()
    assert "free 8.0 KiB, granted 8.0 KiB, 2 prefix 12.0 KiB" in lines[1]
    assert "2 sealed 12.0 KiB, 1 writing 12.0 KiB" in lines[4]
    assert "OutOfBudget 1, no-boundary 3" in lines[6]


def test_a_device_that_complains_is_a_sentence_beside_the_others_and_exit_code_1(
    run: Run, figures: DeviceStatistics
) -> None:
    found = (AuditedDevice("host:0", NODE, figures), AuditedDevice("host:1", NODE, None, "pooled: counted 1"))
    for options in ((), ("--json",)):
        result = run(found, *options)
        assert result.exit_code == 1
        assert result.stderr == "kvcluster: device host:1 on node 01234567: pooled: counted 1\n"
        assert "host:0" in result.stdout
    printed = json.loads(result.stdout)["devices"]
    assert [each["complaint"] for each in printed] == [None, "pooled: counted 1"]
    assert printed[0]["figures"]["capacity_bytes"] == 64 * 1024


def test_no_cluster_is_one_sentence_and_exit_code_2(run: Run) -> None:
    result = run(ConfigError("no Ray cluster\nruns here"))
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "kvcluster: no Ray cluster runs here\n")
