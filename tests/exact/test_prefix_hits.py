"""Whoever joins a prefix of any length says what it would have said without, and what generate() says, in float32.

Models whose token does not divide the granule, and one where it does; three layouts, two granules, and Gemma3 with
windows that go round their rings. In child processes, as a write below a sealed end would kill: four sessions of a
device in one process, and three processes attached to a device. Who shares what with whom is told in `prefix_play`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import torch

from kvcluster.engine.model import open_model
from kvcluster.geometry.layout import Layout
from kvcluster.services.local import LocalDevice
from kvcluster.testing.models import make_model
from kvcluster.units import KIB
from tests.exact.prefix_cases import ATTACHED, KINDS, LOCAL, Case
from tests.exact.prefix_play import BEHIND, SAID, Found, Stage, Told, parted, play_all, prompt
from tests.exact.prefix_processes import Computer, Far
from tests.exact.prefix_reference import Reference
from tests.exact.prefix_site import Site
from tests.services.processes import Host

Computers = Callable[[int], list[Computer]]
Folders = Callable[[str], Path]
References = Callable[[str], Reference]

ROUNDING = 1e-3  # K and V are of the size of 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    def made(kind: str) -> Path:
        shape = KINDS[kind]
        return make_model(tmp_path_factory.mktemp("hits") / kind, shape.family, **shape.changes)

    return cache(made)


@pytest.fixture(scope="module")
def reference(folder: Folders) -> References:
    return cache(lambda kind: Reference(folder(kind), SAID))


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Computer]]:
    """Those that the tests of this module share."""
    with ExitStack() as ending:
        started = [Computer() for _ in range(3)]
        for one in started:
            ending.callback(one.end)
        yield started


@pytest.fixture
def computers(processes: list[Computer], nothing_left: None) -> Iterator[Computers]:
    """So many processes; in the place of one that has died in a test before comes one of this test's own."""
    with ExitStack() as ending:

        def living(count: int) -> list[Computer]:
            found = [one for one in processes if one.lives][:count]
            for _ in range(count - len(found)):
                found.append(Computer())
                ending.callback(found[-1].end)
            return found

        yield living


@pytest.mark.parametrize("case", LOCAL, ids=str)
def test_a_hit_of_any_length_says_what_a_miss_says(
    case: Case, computers: Computers, folder: Folders, reference: References
) -> None:
    [computer] = computers(1)
    found = computer.ask("play", str(folder(case.kind)), case.told())
    told = [Told(**one) for one in found.pop("told")]
    judge(case, Found(told, **found), reference(case.kind))


@pytest.mark.parametrize("case", ATTACHED, ids=str)
def test_joiners_in_other_processes_say_what_a_miss_says(
    case: Case, computers: Computers, folder: Folders, reference: References
) -> None:
    at = folder(case.kind)
    with ExitStack() as ending:
        host = Host(granules=16_384)
        ending.callback(host.close)
        owner, first, second = (Far(computer, host, at, case.setting) for computer in computers(3))
        port = LocalDevice(host.driver, host.service).open_port()
        witness = Site(open_model(at, dtype=torch.float32, threads=1), port, case.setting)
        found = play_all(Stage(owner, first, second, witness, case.longest), case.lengths, case.matches)
        port.close()
        for site in (owner, first, second):
            site.detach()
        host.eventually(lambda: not host.audit().sessions, "all sessions have ended")
        assert dict(host.audit().accounts) == {"free": host.audit().capacity_bytes}
    judge(case, found, reference(case.kind))


@pytest.mark.parametrize("case", [case for case in LOCAL if case.kind in ("llama", "mistral", "gemma3")], ids=str)
def test_one_wrong_row_of_a_prefix_changes_what_its_joiner_says(
    case: Case, computers: Computers, folder: Folders, reference: References
) -> None:
    [computer] = computers(1)
    text = tuple(parted(prompt(case.longest), case.longest + BEHIND))
    wanted = reference(case.kind).said([text])[text]
    for token in (0, 1, case.begins(case.longest) - 1):
        said = computer.ask("play_wrong", str(folder(case.kind)), case.told(), token)
        assert said != wanted


def test_the_cases_cross_edges_at_every_offset_and_windows_go_round() -> None:
    sharing = [case for case in LOCAL if case.kind != "sliding"]
    for case in sharing:
        assert len({case.granules(tokens) for tokens in (*case.lengths, *case.matches)}) >= 3
        assert case.laps > 2 or not case.has_rings
    uneven = [case for case in sharing if case.granule_bytes % case.stride_bytes]
    assert {(case.layout, case.granule_bytes) for case in uneven} == {
        (layout, granule_bytes) for layout in Layout for granule_bytes in (4 * KIB, 64 * KIB)
    }


def judge(case: Case, found: Found, reference: Reference) -> None:
    """All said what generate() says and joined what arithmetic says; nobody's rows are wrong, no prefix changed."""
    wanted = reference.said(tuple(one.prompt) for one in found.told)
    assert [one for one in found.told if one.said != wanted[tuple(one.prompt)]] == []
    joined = [one for one in found.told if one.published]
    assert [one for one in joined if one.joined != case.joins(one.published, one.match)] == []
    assert [one for one in found.refused if one[2] != case.refusal(*one[:2])] == []
    roles = {one.role for one in joined if isinstance(one.joined, int)}
    assert roles == (set() if case.kind == "sliding" else {"whole", "twin", "part", "upon"})
    assert found.apart < ROUNDING
    assert found.changed == 0
