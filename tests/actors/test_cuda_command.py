"""`kvcluster run-batch --devices cuda` as a process with a Ray of its own, on a machine whose GPUs are a stand-in's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcluster.testing.stand_in_cuda import UUIDS, environment
from tests.actors.answers import LENGTHS, PROMPTS
from tests.batch.stand_in import line, results, write_input

COMMAND_TIMEOUT_S = 200.0


def run_batch(folder: Path, model: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command with every prompt as a line, on two GPUs of 64 MiB."""
    asked = [
        line(str(place), list(prompt), max_tokens=length, temperature=0, ignore_eos=True)
        for place, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    files = ["-i", str(write_input(folder / "in.jsonl", *asked)), "-o", str(folder / "out.jsonl")]
    program = [str(Path(sys.executable).with_name("kvcluster")), "run-batch", "--model", str(model)]
    gpus = environment(DEVICES=2, MEMORY="64M", GRANULE="64K", SHARED=str(folder / "gpu-memory"))
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [*program, *files, "--dtype", "float32", *options],
        env=inherited | gpus | env,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def test_the_gpus_that_are_named_answer_every_line_as_the_host_does(
    folder: Path, tmp_path: Path, wanted: list[str]
) -> None:
    """The second of those that are seen the other way round; all of them are in `test_cuda_devices`."""
    run = run_batch(tmp_path, folder, "--devices", "cuda:1", CUDA_VISIBLE_DEVICES="1,0")
    assert run.returncode == 0, run.stderr
    kept = results(tmp_path / "out.jsonl")
    assert [kept[number]["response"]["body"]["choices"][0]["text"] for number in sorted(kept)] == wanted
    table = sorted(" ".join(shown.split()[:2]) for shown in run.stdout.splitlines() if "GPU-" in shown)
    assert table == [f"cuda:1 {UUIDS[0]}"]


@pytest.mark.parametrize(
    ("options", "env", "sentence"),
    [
        (["--devices", "cuda:0,2"], {}, "devices is cuda:0,2, and there are 2 here, cuda:0 to cuda:1: name those"),
        (["--devices", "cuda"], {"CUDA_VISIBLE_DEVICES": ""}, "devices is cuda, and this process sees no GPU: see"),
        (["--devices", "cuda", "--granule", "4KiB"], {}, "granule is 4KiB, and must be a multiple of 64.0 KiB on"),
        (["--devices", "cuda", "--device-memory", "4KiB"], {}, "device_memory is 4KiB, and must be at least a granule"),
        (["--devices", "cuda"], {"STAND_IN_CUDA_VMM": "0"}, "the device has no virtual memory management"),
    ],
    ids=["no such GPU", "none seen", "a granule that is none", "less than a granule", "no virtual memory"],
)
def test_a_gpu_that_cannot_be_used_is_one_sentence_and_exit_code_2(
    options: list[str], env: dict[str, str], sentence: str, folder: Path, tmp_path: Path
) -> None:
    run = run_batch(tmp_path, folder, *options, **env)
    assert (run.returncode, run.stdout) == (2, "")
    assert sentence in run.stderr.splitlines()[-1]
    assert not (tmp_path / "out.jsonl").exists()
