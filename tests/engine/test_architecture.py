from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from kvcluster.engine.architecture import check_figures, geometry_of
from kvcluster.engine.refusals import ModelNotFound, UnsupportedModel
from kvcluster.geometry.model import KvGeometry

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 32}


def config_of(model_type: str, **changes: Any) -> Any:
    return AutoConfig.for_model(model_type, **{**SMALL, **changes})


def test_the_geometry_is_read_from_the_configuration() -> None:
    config = config_of("qwen3", num_key_value_heads=2, head_dim=24)
    wanted = KvGeometry.uniform(layers=2, kv_heads=2, head_dim=24, element_bytes=2)
    assert geometry_of(config, torch.bfloat16) == wanted


def test_heads_not_named_are_derived() -> None:
    config = config_of("qwen2", num_key_value_heads=None)
    wanted = KvGeometry.uniform(layers=2, kv_heads=4, head_dim=16, element_bytes=4)
    assert geometry_of(config, torch.float32) == wanted


def by_window(config: Any) -> dict[int | None, tuple[int, ...]]:
    return {group.window_tokens: group.layers for group in geometry_of(config, torch.float32).groups}


@pytest.mark.parametrize("family", ["gemma3_text", "qwen2", "qwen3"])
def test_layers_that_slide_are_a_group_with_their_window_after_those_that_see_everything(family: str) -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    config = config_of(family, num_hidden_layers=4, layer_types=kinds, sliding_window=8, use_sliding_window=True)
    assert list(by_window(config).items()) == [(None, (1, 3)), (8, (0, 2))]


def test_gemma3_270m_slides_in_all_layers_but_every_sixth() -> None:
    config = config_of("gemma3_text", num_hidden_layers=18, sliding_window=512)
    assert by_window(config)[None] == (5, 11, 17)
    assert len(by_window(config)[512]) == 15


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (config_of("mistral", sliding_window=8), {8: (0, 1)}),
        (config_of("mistral", sliding_window=None), {None: (0, 1)}),
        (config_of("mistral", sliding_window=8, layer_types=["full_attention"] * 2), {8: (0, 1)}),
        (config_of("llama", sliding_window=8), {None: (0, 1)}),
        (config_of("qwen2", sliding_window=8, use_sliding_window=False), {None: (0, 1)}),
    ],
)
def test_a_window_counts_as_the_familys_own_code_reads_it(config: Any, windows: dict[int | None, object]) -> None:
    assert by_window(config) == windows


@pytest.mark.parametrize("window", [0, -1])
def test_an_impossible_window_is_refused(window: int) -> None:
    config = config_of("mistral")
    config.sliding_window = window
    with pytest.raises(ModelNotFound, match="sliding_window"):
        check_figures(config, "m")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (AutoConfig.for_model("t5"), "encoder-decoder"),
        (AutoConfig.for_model("gemma3"), "more than text"),
        (config_of("gemma2"), "family gemma2 is not one of gemma3_text, llama"),
        (config_of("gpt_oss"), "family gpt_oss"),
        (config_of("gemma3_text", attn_logit_softcapping=50.0), "scores are capped"),
        (config_of("gemma3_text", use_bidirectional_attention=True), "attend to later ones"),
        (config_of("llama", quantization_config={"quant_method": "fp8"}), "weights are quantized"),
        (config_of("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0}), r"rotary embedding \(dynamic\)"),
        (config_of("qwen3", layer_types=["full_attention", "chunked_attention"]), "layers of type chunked_attention"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(config: Any, sentence: str) -> None:
    with pytest.raises(UnsupportedModel, match=sentence):
        geometry_of(config, torch.float32)


def test_a_rotary_table_that_is_stretched_once_for_all_is_accepted() -> None:
    config = config_of("llama", rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert geometry_of(config, torch.float32).token_bytes == 2 * 2 * 64 * 4


def test_a_refusal_is_a_value_error_that_survives_pickling() -> None:
    refusal = UnsupportedModel(model="m", reason="it cannot")
    assert isinstance(refusal, ValueError)
    assert str(pickle.loads(pickle.dumps(refusal))) == "model m is not supported: it cannot"
