"""After every test nothing of ours is left in this process that was not there before it.

Examples that hypothesis draws are as many as the suite has time for; `pytest --hypothesis-profile=thorough` draws more.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import settings

from tests.leftovers import held, left_since
from tests.scheduling import ByFile, turn

TESTS = Path(__file__).parent
WALKS = ("_at_any_call", "_at_any_point", "fails_for_ever")  # through what the rooms below show one by one

settings.register_profile("suite", max_examples=15, deadline=None)
settings.register_profile("thorough", max_examples=1_000, deadline=None)
settings.load_profile("suite")


@pytest.hookimpl(trylast=True)  # behind what shuffles them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is traced takes up to three times as long: the core is, by its own named tests.

    Not by walks, of a state machine or through all calls of a verb, nor by what runs a model on top of it.
    """
    items.sort(key=lambda item: turn(item.nodeid))
    for item in items:
        room = item.path.relative_to(TESTS).parts[0]
        is_walk = item.name == "runTest" or (room == "services" and any(words in item.name for words in WALKS))
        if is_walk or room in ("engine", "exact", "request"):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(tryfirst=True)  # before pytest-cov begins
def pytest_sessionstart(session: pytest.Session) -> None:
    """In each of several processes pytest-cov 7.1 begins twice, and `no_cover` pauses the later one alone.

    The earlier one is what the process would have as the first of them; it traced all that it was told not to, and
    nobody reads it.
    """
    if hasattr(session.config, "workerinput") and (unread := Coverage.current()):
        unread.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """With `--dist loadgroup` whole files are dealt out."""
    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # those with the most tests are not those that take long
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No descriptor, mapping, thread or child process outlives a test, but for those of a wider fixture."""
    before = held()
    yield
    assert left_since(before) == {}


@pytest.fixture(scope="session", autouse=True)
def nothing_left_of_the_session() -> Iterator[None]:
    """Nor do those of wider fixtures outlive the session."""
    resource_tracker.ensure_running()  # a process of Python's own, which it starts when it first needs it, and keeps
    before = held()
    yield
    left = left_since(before)
    assert {kind: left[kind] for kind in ("mappings", "children") if kind in left} == {}
