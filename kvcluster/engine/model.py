"""A Hugging Face model whose K and V live in memory that somebody else owns.

The model's own code runs as it is, on all new tokens of all sequences packed in one row; ours are the attention
function (`attention.py`) and repacked linear layers (`linears.py`). There is no cache object: what a sequence has
computed lies in its views. In float32 the tokens equal those of `generate()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvcluster.engine.architecture import check_figures, geometry_of
from kvcluster.engine.attention import ATTENTION_NAME, register_attention
from kvcluster.engine.batch import PackedBatch, Slice
from kvcluster.engine.fingerprint import fingerprint_of
from kvcluster.engine.linears import pack_linears
from kvcluster.engine.quiet import quietly
from kvcluster.engine.reading import reading
from kvcluster.engine.refusals import ModelNotFound
from kvcluster.geometry.model import KvGeometry
from kvcluster.tensors.memory import CPU


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model and what its memory looks like. `eos_ids` may be empty; K and V lie on `device`, as it does.

    `fingerprint` is a digest of its weights and configuration (`engine.fingerprint`).
    """

    module: Any
    dtype: torch.dtype
    geometry: KvGeometry
    context_tokens: int
    vocabulary: int
    eos_ids: frozenset[int]
    device: torch.device = CPU
    fingerprint: str = ""

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
        batch = PackedBatch(slices, self.dtype, self.device)
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
        ModelNotFound: there is none, it cannot be read, or a figure in it is impossible.
    """
    with reading(path):
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        check_figures(config, str(path))
        return config


def open_model(path: str | Path, *, dtype: torch.dtype, threads: int, device: torch.device = CPU) -> Model:
    """Load the model in the folder `path` for computing on `device`; `threads` is for the whole process, on the CPU.

    Linear layers are packed on the CPU only.

    Raises:
        ModelNotFound: no folder, or a file in it is missing, damaged or incomplete.
        UnsupportedModel: it needs something that this engine does not compute.
    """
    torch.set_num_threads(threads)  # before loading, and always: Ray sets OMP_NUM_THREADS to 1
    config = open_config(path)
    geometry = geometry_of(config, dtype)
    register_attention()
    module = _load(path, dtype).to(device)
    if device.type == "cpu":
        pack_linears(module)
    eos_ids = _eos_ids(module, path)
    context_tokens, fingerprint = config.max_position_embeddings, fingerprint_of(path)
    return Model(module, dtype, geometry, context_tokens, config.vocab_size, eos_ids, device, fingerprint)


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
