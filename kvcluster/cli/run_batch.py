"""The options of `kvcluster run-batch`. Those that are settings win over the config file, where one is given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvcluster.cli.batch_call import BatchCall, answer_file
from kvcluster.cli.sentences import one_sentence
from kvcluster.config import settings_from
from kvcluster.config_file import settings_from_yaml


def _setting(text: str) -> Any:
    """An option whose default is that of the config file, or of `Settings`: [in brackets]."""
    return typer.Option(help=text, show_default=False)


def run_batch(
    context: typer.Context,
    input_path: Annotated[Path, typer.Option("--input-file", "-i", help="OpenAI Batch lines to answer.")],
    output_path: Annotated[Path, typer.Option("--output-file", "-o", help="Results; appended to if it exists.")],
    config: Annotated[Path | None, typer.Option(help="Settings, as in ray_config.yaml.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask failed lines again.")] = False,
    print_texts: Annotated[bool, typer.Option("--print-texts", help="Print every text at the end.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Join this running cluster, as RAY_ADDRESS does: HOST:PORT or auto.")
    ] = None,
    model: Annotated[str | None, _setting("A Hugging Face model's folder, or gemma3-270m.")] = None,
    devices: Annotated[str | None, _setting("host or cuda, or some of them: host:0,1 or cuda:0,1 [host]")] = None,
    device_memory: Annotated[
        str | None, _setting("KV memory of each device; of a GPU the most [512MiB; what is free]")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, _setting("Share of what is free on a GPU beside the model [0.9]")
    ] = None,
    workers_per_device: Annotated[int | None, _setting("Request actors on each device [1]")] = None,
    nodes: Annotated[
        str | None, _setting("Nodes of the joined cluster with these devices each: how many, or all [1, this one]")
    ] = None,
    dtype: Annotated[str | None, _setting("float32 or bfloat16 [bfloat16]")] = None,
    model_impl: Annotated[str | None, _setting("auto, or transformers: the model's own code [auto]")] = None,
    batch_invariant: Annotated[
        str | None, _setting("on or off: bfloat16 texts that depend on no other; prefill takes longer [off]")
    ] = None,
    layout: Annotated[str | None, _setting("token-major, seq-major or head-major [token-major]")] = None,
    granule: Annotated[str | None, _setting("Memory grows by this much [64KiB; what a GPU recommends]")] = None,
    max_num_seqs: Annotated[int | None, _setting("Sequences that a worker runs together [16]")] = None,
    max_num_batched_tokens: Annotated[int | None, _setting("Tokens that a worker computes in a step [512]")] = None,
    prefix_cache: Annotated[
        str | None, _setting("on or off: reuse what was computed for prompts that begin alike [on]")
    ] = None,
    fallback: Annotated[
        str | None, _setting("What the device refuses: wait, host (pages in this machine's memory), or refuse [wait]")
    ] = None,
    host_memory: Annotated[
        str | None,
        _setting("Host pages, shared by all workers, for --fallback host and beams [512MiB with --fallback host]"),
    ] = None,
    block_size: Annotated[int | None, _setting("Tokens of a host page [16]")] = None,
    threads: Annotated[int | None, _setting("Threads of each worker [the cores, divided]")] = None,
    max_restarts: Annotated[int | None, _setting("Restarts of each worker [3]")] = None,
) -> None:
    """Answer every line of a file, on workers that share elastic KV memory.

    Lines are those of OpenAI's Batch API for /v1/completions. Run again with the same output, it continues where
    it stopped. Exit codes: 0 all answered, 1 some lines failed, 2 wrong use, 130 stopped by Ctrl-C, SIGTERM or
    kvcluster stop.
    With --ray-address or RAY_ADDRESS it joins that cluster, else it starts its own and stops it.
    """
    own = {"input_path", "output_path", "config", "retry_failed", "print_texts", "ray_address"}
    overrides = {name: value for name, value in context.params.items() if name not in own and value is not None}
    call = BatchCall(input_path, output_path, retry_failed, print_texts, ray_address)
    with one_sentence():
        settings = settings_from_yaml(config, overrides) if config else settings_from(overrides)
        code = answer_file(call, settings)
    raise typer.Exit(code)
