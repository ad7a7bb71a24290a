"""GPUs as the doctor sees them: on a stand-in library, in processes of their own, and with no library at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kvcluster.testing.stand_in_cuda import UUIDS, environment

LOOK = """
from kvcluster.services.doctor.gpu import gpus
for found in gpus():
    print(found.status, found.sentence, found.remedy, sep="|")
"""
NO_LIBRARY = "none can be used: libcuda.so.1 cannot be loaded."


def look(before: str = "", **variables: str) -> list[list[str]]:
    """Status, sentence and remedy of each finding in a new process."""
    ran = subprocess.run(
        [sys.executable, "-c", before + LOOK],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [line.split("|") for line in ran.stdout.splitlines()]


def test_each_gpu_is_said_with_its_memory_and_its_granules() -> None:
    first, second = look(**environment(MEMORY="1G", GRANULE="2M"))
    for number, (status, sentence, remedy) in enumerate((first, second)):
        assert (status, remedy) == ("ok", "None")
        assert f"cuda:{number} (" in sentence
        assert UUIDS[number] in sentence
        assert "of 1.0 GiB are free; granules of 2.0 MiB (best 2.0 MiB)" in sentence


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"VMM": 0}, "cannot be used: the device has no virtual memory management."),
        ({"POSIX": 0}, "cannot be used: the device's memory cannot be shared by POSIX descriptors."),
        ({"FAIL": "cuMemCreate@1=2"}, "cannot be opened: "),
        ({"FAIL": "cuMemExportToShareableHandle@1=801"}, "cannot be used: "),
    ],
)
def test_a_gpu_that_cannot_be_used_is_a_problem_that_names_what_is_missing(
    setting: dict[str, str | int], words: str
) -> None:
    [(status, sentence, remedy)] = look(**environment(DEVICES=1, **setting))
    assert status == "problem"
    assert words in sentence
    assert remedy != "None"


def test_a_cuda_that_does_not_start_is_a_problem() -> None:
    [(status, sentence, _)] = look(**environment(FAIL="cuInit@1=999"))
    assert status == "problem"
    assert sentence.startswith("CUDA is there and does not work: ")


def test_gpus_that_this_process_may_not_see_are_noted() -> None:
    [(status, sentence, remedy)] = look(**environment(), CUDA_VISIBLE_DEVICES="")
    assert (status, sentence) == ("note", "CUDA is there and this process sees no GPU.")
    assert "CUDA_VISIBLE_DEVICES" in remedy


def test_bindings_that_are_not_installed_are_noted_with_how_to_install_them() -> None:
    [(status, sentence, remedy)] = look("import sys\nsys.modules['cuda.bindings'] = None\n")
    assert (status, sentence) == ("note", "none can be used: cuda.bindings cannot be imported.")
    assert "kvcluster[gpu]" in remedy


def test_a_machine_without_the_library_is_a_note_and_no_problem() -> None:
    """Where there is a real one, a GPU is found in its place."""
    for status, sentence, remedy in look(LD_LIBRARY_PATH=""):
        assert (status == "note") == (sentence == NO_LIBRARY)
        assert (status == "ok") == (remedy == "None")
