"""`kvcluster serve`: models behind OpenAI's HTTP API, until Ctrl-C. Those options that are settings win over the file.

Exit codes: 0 the file is as it is to be (`--check`), 2 wrong use, 130 ended by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from kvcluster.cli import interrupts
from kvcluster.cli.listeners import reader_may_leave
from kvcluster.cli.sentences import one_sentence, say, tell
from kvcluster.config import ConfigError
from kvcluster.config_file import Endpoint, Listening, endpoint_from, endpoint_from_yaml
from kvcluster.serving_config import key_from_environment

if TYPE_CHECKING:
    from types import ModuleType

_OWN = frozenset({"config", "check", "host", "port", "ray_address"})


def _setting(text: str) -> Any:
    """An option whose default is that of the config file, or of `ServingSettings`: [in brackets]."""
    return typer.Option(help=text, show_default=False)


def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="A Ray Serve config file, as ray_config.yaml.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong with file and options.")] = False,
    host: Annotated[str | None, _setting("Address to listen at; 0.0.0.0 lets other machines in [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="[8000]", show_default=False, min=1, max=65_535)] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Join this running cluster, as RAY_ADDRESS does: HOST:PORT or auto.")
    ] = None,
    model: Annotated[str | None, _setting("A Hugging Face model's folder, or gemma3-270m.")] = None,
    devices: Annotated[str | None, _setting("host or cuda, or some of them: host:0,1 or cuda:0,1 [host]")] = None,
    device_memory: Annotated[
        str | None, _setting("KV memory of each device; of a GPU the most [512MiB; what is free]")
    ] = None,
    workers_per_device: Annotated[int | None, _setting("Replicas of the model on each device [1]")] = None,
    dtype: Annotated[str | None, _setting("float32 or bfloat16 [bfloat16]")] = None,
    model_impl: Annotated[str | None, _setting("auto, or transformers: the model's own code [auto]")] = None,
    batch_invariant: Annotated[
        str | None, _setting("on or off: bfloat16 texts that depend on no other; prefill takes longer [off]")
    ] = None,
    granule: Annotated[str | None, _setting("Memory grows by this much [64KiB; what a GPU recommends]")] = None,
    max_num_seqs: Annotated[int | None, _setting("Sequences that a replica runs together [16]")] = None,
    max_num_waiting: Annotated[int | None, _setting("How many may wait beside them [as many]")] = None,
    fallback: Annotated[
        str | None, _setting("What the device refuses: host (pages), wait, or refuse (429) [host; refuse on a GPU]")
    ] = None,
    host_memory: Annotated[str | None, _setting("Host pages, shared by all [512MiB with host]")] = None,
    threads: Annotated[int | None, _setting("Threads of each replica [the cores, divided]")] = None,
) -> None:
    """Serve models behind OpenAI's HTTP API, with KV memory that replicas and models share. Ctrl-C ends it in order.

    It listens on this machine alone unless --host says otherwise; KVCLUSTER_API_KEY, where it is set, is the key that
    clients must give. With --ray-address or RAY_ADDRESS it joins that cluster, else it starts its own and stops it.
    """
    given = {name: value for name, value in context.params.items() if name not in _OWN and value is not None}
    with one_sentence():
        endpoint = _endpoint(config, given, Listening(host, port))
        endpoint_room = _endpoint_room()
        if check:
            endpoint_room.checked_by_serve(endpoint)
            endpoint_room.check_models(endpoint)
            tell(f"{config or 'the options'}: nothing is wrong")
            return
        code = _serve(endpoint_room, endpoint, ray_address)
    raise typer.Exit(code)


def _endpoint(config: Path | None, given: dict[str, Any], listening: Listening) -> Endpoint:
    """What file and options say; with the environment's key, where they name none."""

    def read(args: dict[str, Any]) -> Endpoint:
        return endpoint_from_yaml(config, args, listening) if config else endpoint_from(args, listening)

    endpoint = read(given)
    return endpoint if endpoint.settings.api_key else read({**key_from_environment(), **given})


def _endpoint_room() -> ModuleType:
    """`actors.endpoint`, imported here because Ray takes seconds to import."""
    try:
        return import_module("actors.endpoint")
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f'serving needs parts of Ray that are not installed ({missing.name}): pip install "kvcluster[serve]"'
        ) from None


def _serve(room: ModuleType, endpoint: Endpoint, ray_address: str | None) -> int:
    out = sys.stdout  # while Ray is there, what it prints takes another way
    try:
        with interrupts.stopped_once():
            tell(f"making {', '.join(endpoint.settings.served)} ready")
            with room.open_endpoint(endpoint, address=ray_address, tell=tell) as opened:
                interrupts.heed()  # Ray has set a handler of its own
                _show(endpoint, opened.url, opened.ray_address, out)
                try:
                    while True:
                        signal.pause()
                finally:
                    interrupts.ignore()  # it closes undisturbed
                    tell("ending: what is under way is finished first")
    except (KeyboardInterrupt, SystemExit):  # SystemExit: Ray's own handler of SIGTERM while it starts
        say("stopped")
        return interrupts.INTERRUPTED
    return interrupts.INTERRUPTED


def _show(endpoint: Endpoint, url: str, ray_address: str, out: TextIO) -> None:
    """Where it is, a request to try it with, and how to look into it."""
    name = next(iter(endpoint.settings.served))
    body = json.dumps({"model": name, "prompt": "The sun is", "max_tokens": 32, "stream": True})
    key = " -H 'Authorization: Bearer KEY'" if endpoint.settings.api_key else ""
    with reader_may_leave(out):
        typer.echo(f"{', '.join(endpoint.settings.served)} at {url}/v1 (Ctrl-C ends it)", file=out)
        typer.echo(f"curl -N {url}/v1/completions{key} -H 'Content-Type: application/json' -d '{body}'", file=out)
        auth = os.environ.get("RAY_AUTH_MODE", "token")  # as Ray itself takes it where nothing is said
        typer.echo(f"RAY_AUTH_MODE={auth} kvcluster top --ray-address {ray_address}", file=out)
