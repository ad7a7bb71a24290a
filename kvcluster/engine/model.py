"""A Hugging Face model whose K and V live in memory that somebody else owns.

All new tokens of all sequences are packed in one row. The model's own code runs on it as it is, but for the attention
function (`attention.py`) and repacked linear layers (`linears.py`); for the families that `fused.py` knows there is a
forward of our own on the CPU. There is no cache object: what a sequence has computed lies in its views. In float32 the
tokens equal those of `generate()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvcluster.engine.architecture import check_figures, geometry_of
from kvcluster.engine.attention import ATTENTION_NAME, register_attention
from kvcluster.engine.batch import PackedBatch, Slice
from kvcluster.engine.fingerprint import fingerprint_of
from kvcluster.engine.fused import fused_decoder
from kvcluster.engine.kernels.library import LANES, MOST_HEAD_DIM, TYPES, Kernels, all_kernels
from kvcluster.engine.linears import pack_linears
from kvcluster.engine.quiet import quietly
from kvcluster.engine.reading import reading
from kvcluster.engine.refusals import ModelNotFound
from kvcluster.geometry.model import KvGeometry
from kvcluster.tensors.memory import CPU


class Decoder(Protocol):
    """A model's forward, which writes K and V on the way."""

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """The logits [sampled rows, vocabulary], in slice order."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model and what its memory looks like. `eos_ids` may be empty; K and V lie on `device`, as it does.

    `fingerprint` is a digest of its weights and configuration (`engine.fingerprint`).
    """

    decoder: Decoder
    dtype: torch.dtype
    geometry: KvGeometry
    context_tokens: int
    vocabulary: int
    eos_ids: frozenset[int]
    device: torch.device = CPU
    fingerprint: str = ""
    kernels: Kernels | None = None

    @property
    def may_run_ahead(self) -> bool:
        """Whether `forward` may return before its device has written anything; who reads its result waits for that."""
        return self.device.type != "cpu"

    @torch.inference_mode()
    def forward(self, slices: Sequence[Slice]) -> torch.Tensor:
        """Compute the slices' tokens, and write their K and V.

        The result is float32, [slices with `sample`, vocabulary], in slice order; row r does not depend on which
        other slices share the step, but for rounding.
        """
        return self.decoder(PackedBatch(slices, self.dtype, self.device, kernels=self.kernels)).float()


class TransformersDecoder:
    """A model's own forward."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        logits: torch.Tensor = self.module(
            input_ids=batch.token_ids,
            position_ids=batch.positions,
            logits_to_keep=batch.sampled_rows(),
            use_cache=False,
            kv_batch=batch,
        ).logits
        return logits[0]


def open_config(path: str | Path) -> Any:
    """The transformers configuration in the folder `path`, without the weights.

    Raises:
        ModelNotFound: there is none, it cannot be read, or a figure in it is impossible.
    """
    with reading(path):
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        check_figures(config, str(path))
        return config


def open_model(
    path: str | Path,
    *,
    dtype: torch.dtype,
    threads: int,
    device: torch.device = CPU,
    fused: bool = True,
    invariant: bool = False,
    kernels: Sequence[Kernels] | None = None,
) -> Model:
    """Load the model in the folder `path` for computing on `device`; `threads` is for the whole process, on the CPU.

    On the CPU linear layers are packed, the first of `kernels` (None: those that the processor has) computes, and with
    `fused` our own forward runs where it can. Without kernels torch computes. With `invariant` a row of the logits does
    not depend on what shares its step, to the last bit (`linears`, `kernels`); without it that holds in float32.

    Raises:
        ModelNotFound: no folder, or a file in it is missing, damaged or incomplete.
        UnsupportedModel: it needs something that this engine does not compute.
    """
    torch.set_num_threads(threads)  # before loading, and always: Ray sets OMP_NUM_THREADS to 1
    config = open_config(path)
    geometry = geometry_of(config, dtype)
    register_attention()
    module = _load(path, dtype).to(device)
    eos_ids = _eos_ids(module, path)
    context_tokens, fingerprint = config.max_position_embeddings, fingerprint_of(path)
    used = _fitting(all_kernels() if kernels is None else kernels, geometry, dtype, device)
    decoder: Decoder | None = fused_decoder(module, geometry, used, invariant=invariant) if used and fused else None
    if decoder is None:
        if device.type == "cpu":
            pack_linears(module, invariant=invariant)
        decoder = TransformersDecoder(module)
    return Model(decoder, dtype, geometry, context_tokens, config.vocab_size, eos_ids, device, fingerprint, used)


def _fitting(
    kernels: Sequence[Kernels], geometry: KvGeometry, dtype: torch.dtype, device: torch.device
) -> Kernels | None:
    """The first of them, where they compute such K and V on that device."""
    fits = all(group.head_dim % LANES == 0 and group.head_dim <= MOST_HEAD_DIM for group in geometry.groups)
    return next(iter(kernels), None) if fits and device.type == "cpu" and dtype in TYPES else None


def _load(path: str | Path, dtype: torch.dtype) -> Any:
    with reading(path), quietly():
        module, found = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    for keys, what in (
        (found["missing_keys"], "are missing"),  # transformers would go on with random numbers in their place
        ({key for key, *_ in found["mismatched_keys"]}, "have another shape than its config.json says"),
        (found["unexpected_keys"], "have no place in it"),  # and would go on without these
    ):
        if keys:
            raise ModelNotFound(model=str(path), reason=f"{len(keys)} weights {what}, {min(keys)} among them")
    return module.eval()


def _eos_ids(module: Any, path: str | Path) -> frozenset[int]:
    named = module.generation_config.eos_token_id if module.generation_config else module.config.eos_token_id
    ids = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(one) is int for one in ids):
        raise ModelNotFound(model=str(path), reason=f"its eos_token_id is {named!r}, and must be token ids")
    return frozenset(ids)
