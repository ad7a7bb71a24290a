"""What a container may still use, read from control group trees made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvcluster.driver.control_groups import group_room
from kvcluster.units import GIB, MIB


class Tree:
    """A root folder; `of` says which groups the process is in."""

    def __init__(self, root: Path, of: str) -> None:
        self.root = root
        self._write("proc/self/cgroup", of)

    def v2(self, path: str, most: str | int, used: int, *, idle: int = 0) -> None:
        self._write(f"sys/fs/cgroup/{path}/memory.max", most)
        self._write(f"sys/fs/cgroup/{path}/memory.current", used)
        self._write(f"sys/fs/cgroup/{path}/memory.stat", f"anon 5\nfile {idle + 7}\ninactive_file {idle}\nslab 9")

    def v1(self, path: str, most: int, used: int, *, idle: int = 0) -> None:
        self._write(f"sys/fs/cgroup/memory/{path}/memory.limit_in_bytes", most)
        self._write(f"sys/fs/cgroup/memory/{path}/memory.usage_in_bytes", used)
        self._write(f"sys/fs/cgroup/memory/{path}/memory.stat", f"inactive_file 3\ntotal_inactive_file {idle}")

    def _write(self, path: str, content: str | int) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{content}\n")


def test_idle_page_cache_is_room(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/job")
    tree.v2("job", GIB, 900 * MIB, idle=600 * MIB)
    assert group_room(tmp_path) == 724 * MIB


def test_a_containers_own_group_is_the_mount_itself(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/")
    tree.v2(".", GIB, 24 * MIB)
    assert group_room(tmp_path) == 1_000 * MIB


@pytest.mark.parametrize("tightest", ["", "pod", "pod/box", "pod/box/job"])
def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path, tightest: str) -> None:
    tree = Tree(tmp_path, "0::/pod/box/job")
    for path in ("", "pod", "pod/box", "pod/box/job"):
        tree.v2(path, 100 * MIB if path == tightest else GIB, 10 * MIB)
    assert group_room(tmp_path) == 90 * MIB


def test_a_neighbours_group_does_not_count(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/job")
    tree.v2("job", GIB, 24 * MIB)
    tree.v2("neighbour", MIB, MIB)
    assert group_room(tmp_path) == 1_000 * MIB


def test_a_group_without_a_limit_sets_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/pod/job")
    tree.v2("pod/job", "max", 10 * MIB)
    assert group_room(tmp_path) == sys.maxsize
    tree.v2("pod", 100 * MIB, 10 * MIB)
    assert group_room(tmp_path) == 90 * MIB


def test_the_limit_of_version_1_counts_with_what_lies_within_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/pod/job\n1:name=systemd:/\n0::/")
    tree.v1("pod/job", 2**63 - 4096, 10 * MIB)
    tree.v1("pod", GIB, 900 * MIB, idle=600 * MIB)
    assert group_room(tmp_path) == 724 * MIB


def test_a_container_of_version_1_finds_its_limit_at_the_mount_though_its_path_is_the_hosts(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "4:memory:/docker/0123")
    tree.v1(".", GIB, 24 * MIB)
    assert group_room(tmp_path) == 1_000 * MIB


def test_a_group_seen_from_outside_its_namespace_is_no_way_out_of_the_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/../../job")
    tree.v2("job", GIB, 24 * MIB)
    assert group_room(tmp_path) == 1_000 * MIB


def test_more_in_use_than_the_limit_is_no_room_and_not_less(tmp_path: Path) -> None:
    Tree(tmp_path, "0::/job").v2("job", MIB, 2 * MIB)
    assert group_room(tmp_path) == 0


@pytest.mark.parametrize("of", ["", "0::/gone", "garbage", "4:memory:/gone"])
def test_where_nothing_can_be_read_nothing_limits(tmp_path: Path, of: str) -> None:
    Tree(tmp_path, of)
    assert group_room(tmp_path) == sys.maxsize


def test_a_machine_without_control_groups_sets_no_limit(tmp_path: Path) -> None:
    assert group_room(tmp_path) == sys.maxsize


def test_this_machines_groups_leave_room() -> None:
    assert group_room() > 0
