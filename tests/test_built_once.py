from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from threading import Event, Thread

import pytest

from kvcluster.built_once import built_once


def build_and_tell(folder: Path) -> None:
    folder.mkdir()
    (folder / "file").write_text("whole")
    with (folder.parent.parent / "builds").open("a") as builds:
        builds.write("x")


def die_half_way(folder: Path) -> None:
    folder.mkdir()
    os.kill(os.getpid(), signal.SIGKILL)


def run_process(folder: Path, build: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=built_once, args=(folder, build))
    process.start()
    return process


def test_two_processes_build_a_folder_once(tmp_path: Path) -> None:
    for process in [run_process(tmp_path / "model", build_and_tell) for _ in range(2)]:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "builds").read_text() == "x"
    assert (tmp_path / "model" / "file").read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["builds", "model"]


def test_a_second_caller_waits_until_the_folder_is_whole(tmp_path: Path) -> None:
    started, may_finish = Event(), Event()

    def build(folder: Path) -> None:
        started.set()
        may_finish.wait()
        build_and_tell(folder)

    callers = [Thread(target=built_once, args=(tmp_path / "model", build)) for _ in range(2)]
    for caller in callers:
        caller.start()
    started.wait()
    assert not (tmp_path / "model").exists()
    may_finish.set()
    for caller in callers:
        caller.join()
    assert (tmp_path / "builds").read_text() == "x"


def test_a_build_that_fails_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        folder.mkdir()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        built_once(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []
    assert (built_once(tmp_path / "model", build_and_tell) / "file").exists()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process = run_process(tmp_path / "model", die_half_way)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.glob("model.part-*"))) == 1
    built_once(tmp_path / "model", build_and_tell)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["builds", "model"]


def test_sixteen_callers_at_once_build_a_folder_once(tmp_path: Path) -> None:
    for round_ in range(20):
        folder = tmp_path / str(round_) / "models" / "model"
        callers = [Thread(target=built_once, args=(folder, build_and_tell)) for _ in range(16)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert (tmp_path / str(round_) / "models" / "builds").read_text() == "x"
        assert sorted(path.name for path in folder.parent.iterdir()) == ["builds", "model"]
