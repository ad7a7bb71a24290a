"""A batch job as a Ray job: it runs on the cluster, and its prompts, its answers and its Ctrl-C are Ray's.

    ray start --head                                   # or any running cluster, with its dashboard
    ray job submit --address http://127.0.0.1:8265 --working-dir examples -- \\
        python 05_batch_job.py prompts.jsonl

Needs `pip install "ray[default]"` where it is submitted, and kvcluster on the cluster's nodes. Without an argument for
the model it makes a tiny one with random weights. `ray job logs` and `ray job stop` work as with any other job; what
was answered before a stop is not asked again, if the same output is named again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from kvcluster.testing.models import make_model


def main(prompts: str = "prompts.jsonl", model: str = "", output: str = "") -> int:
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(output or f"{folder}/answers.jsonl")
        model = model or str(make_model(Path(folder) / "model", "llama"))
        # In a job the cluster's address is in RAY_ADDRESS, which run-batch joins.
        kvcluster = str(Path(sys.executable).with_name("kvcluster"))
        command = [kvcluster, "run-batch", "-i", prompts, "-o", str(answers), "--model", model]
        sizes = ["--devices", "host:5", "--device-memory", "4MiB", "--granule", "4KiB", "--dtype", "float32"]
        code = subprocess.run([*command, *sizes], check=False).returncode
        if answers.exists():
            print(f"{len(answers.read_text(encoding='utf-8').splitlines())} prompts answered", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
