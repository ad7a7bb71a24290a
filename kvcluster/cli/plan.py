"""`kvcluster plan`: what a model's K and V take in each layout, and what sharing a prefix saves. Starts nothing.

Only the model's config.json is read. Exit codes: 0, or 2 with one sentence where an option or the model is wrong.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kvcluster.cli.sentences import one_sentence
from kvcluster.config import ConfigError
from kvcluster.units import parse_bytes

_MOST_TOKENS = 2**40


def plan(
    model: Annotated[str, typer.Option(help="A folder with a config.json, or gemma3-270m.")],
    context: Annotated[int, typer.Option(help="Tokens of a whole request, prompt and answer.")],
    prefix: Annotated[int, typer.Option(help="Tokens that all requests begin with.")],
    granule: Annotated[str, typer.Option(help="Memory grows by this much; 2MiB is CUDA's.")] = "2MiB",
    memory: Annotated[str, typer.Option(help="KV memory of the device.")] = "80GiB",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    chunk: Annotated[int, typer.Option(help="Most tokens of a sequence in one step; sizes rings.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what each layout costs, which prefixes can be shared, and how many requests fit. Arithmetic only."""
    with one_sentence():
        _check(context=context, prefix=prefix, chunk=chunk)
        if prefix > context:
            raise ConfigError(f"prefix is {prefix}, and must be at most context, which is {context}")
        sizes = {"granule_bytes": _size("granule", granule), "memory_bytes": _size("memory", memory)}
        from kvcluster.cli.plan_report import read_geometry, write_plan  # here, because --help must come at once
        from kvcluster.services.plan import PlanSpec

        found = read_geometry(model, dtype)
        spec = PlanSpec(context, prefix, chunk_tokens=chunk, **sizes)
    write_plan(found, spec, as_json=as_json)


def _check(**counts: int) -> None:
    """Each by its option's name."""
    for name, value in counts.items():
        if not 1 <= value <= _MOST_TOKENS:
            raise ConfigError(f"{name} is {value}, and must be a number of tokens from 1 to {_MOST_TOKENS}")


def _size(name: str, text: str) -> int:
    try:
        size_bytes = parse_bytes(text)
    except (ValueError, OverflowError):
        size_bytes = 0
    if not 0 < size_bytes < 2**63:
        raise ConfigError(f"{name} is {text!r}, and must be a size such as 2MiB, with KiB, MiB or GiB")
    return size_bytes
