"""The contract that every driver keeps, on this GPU: the project's own suite, run by pytest in this process.

The suite's children are processes of their own, so that a store that ends its process ends one of those.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu_check.setting import Broken, Found, Setting
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Driver
from kvcluster.testing.driver_contract import ChildDriver

SUITE = Path(__file__).with_name("contract_suite.py")


class OnGpu:
    """A plugin for one run: the fixtures that the suite wants, and what became of its tests."""

    def __init__(self, setting: Setting) -> None:
        self._device = setting.device
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []

    @pytest.fixture
    def open_driver(self) -> Callable[[], Driver]:
        return lambda: open_cuda_driver(self._device)

    @pytest.fixture
    def in_child(self) -> ChildDriver:
        return ChildDriver("kvcluster.driver.cuda:open_cuda_driver", {"device": self._device})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.failed:
            self.failures.append(f"{report.nodeid.rpartition('::')[2]}: {report.longreprtext.splitlines()[-1]}")


def check(setting: Setting) -> Found:
    """Raises Broken where a test failed."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and some would want options
    os.environ.pop("PYTEST_ADDOPTS", None)
    plugin = OnGpu(setting)
    options = ["-q", "--noconftest", "-c", os.devnull, "--rootdir", str(SUITE.parent), "-p", "no:cacheprovider"]
    status = pytest.ExitCode(pytest.main([*options, str(SUITE)], plugins=[plugin]))
    figures = {"outcomes": dict(plugin.outcomes), "failures": plugin.failures}
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(plugin.outcomes.items()))
    if status != pytest.ExitCode.OK:
        raise Broken(f"the contract does not hold ({told or status.name}): {'; '.join(plugin.failures)}", figures)
    return Found(f"{told}", figures)
