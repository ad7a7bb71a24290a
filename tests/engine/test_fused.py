"""Our own forward gives the greedy tokens of transformers' generate(), by every instruction set of this processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvcluster import LocalDevice
from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.fused import FusedDecoder, fused_decoder
from kvcluster.engine.kernels.library import INSTRUCTION_SETS, Kernels, all_kernels
from kvcluster.engine.model import Model, TransformersDecoder, open_model
from kvcluster.testing.models import make_model
from tests.engine.generated import drawn_prompts, greedy_ids
from tests.engine.on_device import Arrival, Loop

WIDE: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 32},
    "qwen2": {"heads": 2, "kv_heads": 1, "head_dim": 32},
    "qwen3": {"head_dim": 32},
    "mistral": {"head_dim": 32},
    "gemma3": {"head_dim": 32},
}
PROMPTS = drawn_prompts((1, 5, 12, 13, 40, 90), seed=9)
NEW_TOKENS = 48

Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of a small model of a family whose heads are wide enough to be rotated by registers."""
    return cache(lambda family: make_model(tmp_path_factory.mktemp("wide") / family, family, **WIDE[family]))


@pytest.fixture(scope="module")
def wanted(wide: Made) -> Callable[[str], list[list[int]]]:
    def texts(family: str) -> list[list[int]]:
        model = AutoModelForCausalLM.from_pretrained(wide(family), dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        return [greedy_ids(model, prompt, new_tokens=NEW_TOKENS) for prompt in PROMPTS]

    return cache(texts)


def opened(folder: Path, *kernels: Kernels) -> Model:
    return open_model(folder, dtype=torch.float32, threads=1, kernels=kernels)


def texts(model: Model, device: LocalDevice, *, chunk_tokens: int) -> list[list[int]]:
    return texts_of(model, device, PROMPTS, chunk_tokens=chunk_tokens)


def texts_of(model: Model, device: LocalDevice, asked: list[list[int]], *, chunk_tokens: int) -> list[list[int]]:
    arrivals = [Arrival(prompt, step=2 * number) for number, prompt in enumerate(asked)]
    loop = Loop(chunk_tokens=chunk_tokens, new_tokens=NEW_TOKENS)
    return [sequence.new_ids for sequence in loop.run(model, device, arrivals)]


def test_the_library_is_built_and_its_portable_set_runs_here() -> None:
    names = [kernels.name for kernels in all_kernels()]
    assert names[-1] == "portable"
    assert names == [name for name in INSTRUCTION_SETS if name in names]


@pytest.mark.parametrize("kernels", all_kernels(), ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("family", WIDE)
def test_the_forward_of_our_own_gives_the_tokens_of_generate(
    family: str, kernels: Kernels, wide: Made, wanted: Callable[[str], list[list[int]]], device: LocalDevice
) -> None:
    model = opened(wide(family), kernels)
    assert isinstance(model.decoder, FusedDecoder)
    assert texts(model, device, chunk_tokens=25) == wanted(family)
    assert min(len(set(text)) for text in wanted(family)[2:]) >= 15


@pytest.mark.parametrize("family", WIDE)
def test_the_models_own_forward_on_our_operators_gives_the_tokens_of_generate(
    family: str, wide: Made, wanted: Callable[[str], list[list[int]]], device: LocalDevice
) -> None:
    model = open_model(wide(family), dtype=torch.float32, threads=1, fused=False)
    assert isinstance(model.decoder, TransformersDecoder)
    assert model.kernels is not None
    assert texts(model, device, chunk_tokens=25) == wanted(family)


def test_without_operators_torch_computes_the_same_tokens(
    wide: Made, wanted: Callable[[str], list[list[int]]], device: LocalDevice
) -> None:
    model = opened(wide("gemma3"))
    assert model.kernels is None
    assert texts(model, device, chunk_tokens=25) == wanted("gemma3")


@pytest.mark.parametrize("changes", [{"head_dim": 16}, {"hidden": 72, "heads": 2}, {"feed_forward": 120}])
def test_a_model_of_other_widths_runs_by_its_own_code(changes: dict[str, int], tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama", **{"head_dim": 32, **changes})
    assert isinstance(opened(folder, *all_kernels()).decoder, TransformersDecoder)


def test_a_model_whose_heads_are_not_rotated_whole_runs_by_its_own_code(wide: Made) -> None:
    module = AutoModelForCausalLM.from_pretrained(wide("llama"), dtype=torch.float32).eval()
    geometry = geometry_of(module.config, torch.float32)
    whole = module.model.rotary_emb
    module.model.rotary_emb = HalfRotated(whole)
    assert fused_decoder(module, geometry, all_kernels()[0]) is None
    module.model.rotary_emb = whole
    assert fused_decoder(module, geometry, all_kernels()[0]) is not None


class HalfRotated(torch.nn.Module):
    """Angles for the first half of each head."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(angles[..., : angles.shape[-1] // 2] for angles in self.whole(like, positions))


@pytest.mark.parametrize(
    ("family", "dtype", "threads"),
    [("llama", torch.bfloat16, 2), ("llama", torch.float32, 1), ("gemma3", torch.bfloat16, 1)],
    ids=str,
)
def test_a_text_depends_neither_on_its_neighbours_nor_on_how_its_prompt_was_cut(
    family: str, dtype: torch.dtype, threads: int, wide: Made, device: LocalDevice
) -> None:
    model = open_model(wide(family), dtype=dtype, threads=threads, invariant=True)
    together = texts(model, device, chunk_tokens=25)
    assert [texts_of(model, device, [prompt], chunk_tokens=512)[0] for prompt in PROMPTS] == together
    assert texts_of(model, device, PROMPTS * 6, chunk_tokens=7) == together * 6
