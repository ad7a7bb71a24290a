"""A plan, printed: a column a layout, the refusals as sentences below; or all of it as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import typer

from kvcluster.cli.tables import write_table
from kvcluster.config import ConfigError
from kvcluster.geometry.model import KvGeometry
from kvcluster.paged.shape import PageShape
from kvcluster.services.plan import LayoutPlan, Plan, PlanSpec, plan
from kvcluster.units import format_bytes

Cell = Callable[[LayoutPlan], str]


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is planned for. `context_tokens` is the longest that it was made for."""

    model: str
    dtype: str
    geometry: KvGeometry
    context_tokens: int


def read_geometry(model: str, dtype: str) -> Subject:
    """What the model's config.json says, in elements of `dtype`.

    Raises:
        ConfigError: `dtype` is none that is computed in.
        ModelNotFound, UnsupportedModel: as the engine would refuse the model.
    """
    from kvcluster.engine.architecture import geometry_of  # here, because it takes seconds
    from kvcluster.engine.dtypes import dtype_named
    from kvcluster.engine.model import open_config
    from kvcluster.engine.pretrained import model_folder

    try:
        element = dtype_named(dtype)
    except ValueError:
        raise ConfigError(f"dtype is {dtype!r}, and must be float32 or bfloat16") from None
    config = open_config(model_folder(model))
    return Subject(model, dtype, geometry_of(config, element), config.max_position_embeddings)


def write_plan(subject: Subject, spec: PlanSpec, *, as_json: bool) -> None:
    """On standard output."""
    found = plan(subject.geometry, spec)
    if as_json:
        typer.echo(json.dumps(_as_object(subject, found), indent=2))
        return
    typer.echo("\n".join(_head(subject, found)))
    headings = ("", *(each.layout.value for each in found.layouts))
    write_table(headings, [(name, *map(cell, found.layouts)) for name, cell in _rows(found)])
    for sentence in _foot(subject, found):
        typer.echo(sentence)


def _head(subject: Subject, found: Plan) -> Iterator[str]:
    groups = subject.geometry.groups
    layers = sum(len(group.layers) for group in groups)
    a_token = f"{format_bytes(found.token_bytes)} a token{_kept(found)}"
    yield f"{subject.model} in {subject.dtype}: {layers} layers, {a_token}"
    spec = found.spec
    yield f"granule {format_bytes(spec.granule_bytes)}, memory {format_bytes(spec.memory_bytes)}"


def _kept(found: Plan) -> str:
    if found.kept_bytes == found.token_bytes:
        return ""
    return f" ({format_bytes(found.kept_bytes)} in layers that keep every token, the rest in sliding windows)"


def _rows(found: Plan) -> Iterator[tuple[str, Cell]]:
    """Each line of the table: what it is, and its text for a layout."""
    context, prefix = found.spec.context_tokens, found.spec.prefix_tokens
    yield "bytes a token", lambda _: f"{found.token_bytes:,}"
    yield "fragments", lambda each: f"{each.fragments:,}"
    if any(each.ring_fragments for each in found.layouts):
        yield "  of them rings", lambda each: f"{each.ring_fragments:,}"
        yield "  all rings, full", lambda each: format_bytes(each.ring_bytes)
    yield f"windows at {context:,} tokens", lambda each: f"{each.residency[-1].windows:,}"
    yield f"address for {context:,} tokens", lambda each: format_bytes(each.address_bytes)
    for index, tokens in enumerate(found.spec.lengths):
        yield f"committed / live at {tokens:,}", partial(_committed, index)
    yield from _sharing_rows(prefix)
    yield f"requests of {context:,} that fit", lambda each: f"{each.fit.alone:,}"
    yield "  sharing the prefix", _fit_sharing


def _sharing_rows(prefix_tokens: int) -> Iterator[tuple[str, Cell]]:
    """The four figures by name, of the prefix, and what a joiner saves."""
    yield f"fragment_bytes of {prefix_tokens:,} tokens", lambda each: f"{each.sharing.fragment_bytes:,}"
    yield "shareable", lambda each: "yes" if each.sharing.shareable else f"no: {each.sharing.refusal}"
    yield "shareable_granules_per_fragment", lambda each: f"{each.sharing.shareable_granules_per_fragment:,}"
    yield "multi_map_ops", lambda each: f"{each.sharing.multi_map_ops:,}"
    yield "reusable tokens", lambda each: f"{each.sharing.reusable_tokens:,}"


def _committed(index: int, each: LayoutPlan) -> str:
    at = each.residency[index]
    return f"{format_bytes(at.committed_bytes)} / {format_bytes(at.live_bytes)}"


def _fit_sharing(each: LayoutPlan) -> str:
    if not each.fit.can_share:
        return "-"
    return "any number" if each.fit.sharing is None else f"{each.fit.sharing:,}"


def _foot(subject: Subject, found: Plan) -> Iterator[str]:
    for each in found.layouts:
        if each.sharing.refusal_reason:
            yield f"{each.layout}: {each.sharing.refusal_reason}"
    if any(each.snapshot_bytes for each in found.layouts):
        sizes = ", ".join(f"{each.layout} {format_bytes(each.snapshot_bytes)}" for each in found.layouts)
        yield f"A shared boundary keeps a snapshot of each sliding window, once: {sizes}."
    yield from _host_pages(subject.geometry, found.spec.context_tokens)
    if found.spec.context_tokens > subject.context_tokens:
        yield f"The model was made for at most {subject.context_tokens:,} tokens."


def _host_pages(geometry: KvGeometry, tokens: int) -> Iterator[str]:
    """One sentence, or none where pages cannot keep the model: what a sequence takes there, windows in full."""
    try:
        shape = PageShape.of(geometry)
    except ValueError:
        return
    size = format_bytes(shape.blocks_of(tokens) * shape.pitch_bytes)
    yield f"In host pages {tokens:,} tokens take {size}, in blocks of {shape.block_size} tokens: no window saves there."


def _as_object(subject: Subject, found: Plan) -> dict[str, Any]:
    layouts = [
        {**asdict(each), "sharing": {"shareable": each.sharing.shareable, **asdict(each.sharing)}}
        for each in found.layouts
    ]
    return {
        "model": subject.model,
        "dtype": subject.dtype,
        "model_context_tokens": subject.context_tokens,
        **asdict(found),
        "layouts": layouts,
    }
