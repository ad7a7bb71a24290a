"""A Hugging Face model whose K and V live in memory that somebody else owns.

The model's own code runs as it is, on all new tokens of all sequences packed in one row; ours are the attention
function (`attention.py`) and repacked linear layers (`linears.py`). There is no cache object: what a sequence has
computed lies in its views. In float32 the tokens equal those of `generate()`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.attention import ATTENTION_NAME, register_attention
from kvcluster.engine.batch import PackedBatch, Slice
from kvcluster.engine.linears import pack_linears
from kvcluster.engine.refusals import ModelNotFound
from kvcluster.geometry.model import KvGeometry

_UNREADABLE = (OSError, ValueError, KeyError, json.JSONDecodeError, SafetensorError)  # what transformers raises


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model and what its memory looks like. `eos_ids` may be empty."""

    module: Any
    dtype: torch.dtype
    geometry: KvGeometry
    context_tokens: int
    vocabulary: int
    eos_ids: frozenset[int]

    @torch.inference_mode()
    def forward(self, slices: Sequence[Slice]) -> torch.Tensor:
        """Compute the slices' tokens, and write their K and V.

        The result is float32, [slices with `sample`, vocabulary], in slice order; row r does not depend on which
        other slices share the step, but for rounding.
        """
        batch = PackedBatch(slices, self.dtype)
        logits: torch.Tensor = self.module(
            input_ids=batch.token_ids,
            position_ids=batch.positions,
            logits_to_keep=batch.sampled_rows(),
            use_cache=False,
            kv_batch=batch,
        ).logits
        return logits[0].float()


def open_config(path: str | Path) -> Any:
    """The transformers configuration in the folder `path`, without the weights.

    Raises:
        ModelNotFound: there is none, or it cannot be read.
    """
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except _UNREADABLE as error:
        raise _not_found(path, error) from None


def open_model(path: str | Path, *, dtype: torch.dtype, threads: int) -> Model:
    """Load the model in the folder `path` for computing on the CPU with `threads` threads (of the whole process).

    Raises:
        ModelNotFound: no folder, or a file in it is missing, damaged or incomplete.
        UnsupportedModel: it needs something that this engine does not compute.
    """
    torch.set_num_threads(threads)  # before loading, and always: Ray sets OMP_NUM_THREADS to 1
    config = open_config(path)
    geometry = geometry_of(config, dtype)
    register_attention()
    module = _load(path, dtype)
    pack_linears(module)
    return Model(module, dtype, geometry, config.max_position_embeddings, config.vocab_size, _eos_ids(module))


def _load(path: str | Path, dtype: torch.dtype) -> Any:
    try:
        with _no_progress_bar():
            module, found = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation=ATTENTION_NAME, local_files_only=True, output_loading_info=True
            )
    except _UNREADABLE as error:
        raise _not_found(path, error) from None
    if missing := sorted(found["missing_keys"]):  # transformers would go on with random numbers in their place
        raise ModelNotFound(model=str(path), reason=f"{len(missing)} weights are missing, {missing[0]} among them")
    return module.eval()


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _eos_ids(module: Any) -> frozenset[int]:
    named = module.generation_config.eos_token_id if module.generation_config else module.config.eos_token_id
    return frozenset() if named is None else frozenset([named] if isinstance(named, int) else named)


def _not_found(path: str | Path, error: Exception) -> ModelNotFound:
    if not Path(path).is_dir():
        return ModelNotFound(model=str(path), reason="there is no such folder")
    first_line = str(error).strip().split("\n")[0] or type(error).__name__
    return ModelNotFound(model=str(path), reason=first_line)
