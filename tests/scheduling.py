"""Where tests run on several processes (`make test`): those of a file in one of them, and those with Ray in three.

Fixtures of a module and of a session are made once a process: a running job, a cluster, texts of `generate()`. Tests
that are dealt out one by one make each of them in every process; `tests/actors/test_host_workers.py` took 100 seconds
of CPU in that way, and 50 by itself. Marks of `xdist_group` would not do: pytest 9.2 with pytest-xdist 3.8 passes them
over in silence (pytest-xdist's issue 1386). Those with Ray come first: they wait a lot, and nobody waits for them then.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WITH_RAY = {  # from the longest test on
    "tests/chaos/test_slice.py": "chaos",
    "tests/testing/test_plugin.py": "chaos",
    "tests/actors/test_several_nodes.py": "jobs on Ray",
    "tests/actors/test_command.py": "jobs on Ray",
    "tests/actors/test_cuda_": "jobs on Ray",
    "tests/actors/test_host_workers.py": "jobs on Ray",
    "tests/actors/": "actors",
}


def unit(test: str) -> str:
    """What runs in one process with the test of this id: its file, or a group of files."""
    file = test.split("::")[0]
    return next((group for path, group in WITH_RAY.items() if file.startswith(path)), file)


def turn(test: str) -> int:
    """When it comes: smaller ones before others, of which the order is whatever it is."""
    return next((number for number, path in enumerate(WITH_RAY) if test.startswith(path)), len(WITH_RAY))


class ByFile(LoadScopeScheduling):
    """As pytest-xdist's own by scopes; a scope is a `unit`, and they begin in the order of their first tests."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
