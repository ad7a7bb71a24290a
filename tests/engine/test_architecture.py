from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.refusals import UnsupportedModel
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


def test_sliding_layers_keep_every_token() -> None:
    geometry = geometry_of(config_of("gemma3_text", sliding_window=8), torch.float32)
    assert [group.window_tokens for group in geometry.groups] == [None]


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
