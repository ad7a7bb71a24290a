"""`kvcluster plan`: from a folder with nothing but a config.json to figures, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvcluster.cli.main import app

LARGE = {
    "model_type": "qwen3",
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
}


@pytest.fixture
def large(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    return tmp_path


def run(folder: Path, *options: str, context: int = 32_768, prefix: int = 1_024) -> Result:
    words = ["plan", "--model", str(folder), "--context", str(context), "--prefix", str(prefix), *options]
    return CliRunner().invoke(app, words)


def layouts_of(folder: Path, *, prefix: int) -> dict[str, dict[str, Any]]:
    result = run(folder, "--json", prefix=prefix)
    assert (result.exit_code, result.stderr) == (0, "")
    return {each["layout"]: each for each in json.loads(result.stdout)["layouts"]}


@pytest.mark.parametrize(
    ("layout", "fragments", "refused_tokens", "reusable_tokens"),
    [("head-major", 768, 8_191, 8_191), ("seq-major", 96, 1_023, 1_023), ("token-major", 1, 10, 10)],
)
def test_each_layout_shares_from_one_token_more_than_its_last_refused_length(
    large: Path, layout: str, fragments: int, refused_tokens: int, reusable_tokens: int
) -> None:
    refused = layouts_of(large, prefix=refused_tokens)[layout]
    shared = layouts_of(large, prefix=refused_tokens + 1)[layout]
    assert refused["fragments"] == shared["fragments"] == fragments
    assert (refused["sharing"]["shareable"], shared["sharing"]["shareable"]) == (False, True)
    assert refused["sharing"]["refusal"] == "smaller-than-a-granule"
    assert "(fragment_bytes < granule)" in refused["sharing"]["refusal_reason"]
    assert shared["sharing"]["refusal_reason"] is None
    assert shared["sharing"]["shareable_granules_per_fragment"] == 1
    assert shared["sharing"]["multi_map_ops"] == fragments
    assert shared["sharing"]["reusable_tokens"] == reusable_tokens


def test_the_table_has_a_column_a_layout_and_a_sentence_for_each_refusal(large: Path) -> None:
    result = run(large, prefix=1_023)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{large} in bfloat16: 48 layers, 192.0 KiB a token"
    assert lines[2].split() == ["token-major", "seq-major", "head-major"]
    rows = {line[:34].strip(): line for line in lines[3:]}
    assert rows["fragments"].split()[-3:] == ["1", "96", "768"]
    assert rows["multi_map_ops"].split()[-3:] == ["95", "0", "0"]
    assert rows["sharing the prefix"].split()[-3:] == ["13", "-", "-"]
    assert [line.partition(":")[0] for line in lines if "cannot be shared" in line] == ["seq-major", "head-major"]


def test_the_json_tells_what_cannot_be_shared_from_what_any_number_may_share(large: Path) -> None:
    refused, whole = layouts_of(large, prefix=10), layouts_of(large, prefix=32_768)
    assert refused["token-major"]["fit"] == {"alone": 13, "can_share": False, "sharing": 13}
    assert whole["token-major"]["fit"] == {"alone": 13, "can_share": True, "sharing": None}


def test_what_a_request_takes_in_host_pages_is_said_in_whole_blocks(large: Path) -> None:
    said = "In host pages 100 tokens take 21.0 MiB, in blocks of 16 tokens: no window saves there."  # 7 x 16 x 192 KiB
    assert said in run(large, context=100, prefix=10).stdout.splitlines()


def test_a_context_beyond_the_models_own_is_planned_and_said(large: Path) -> None:
    assert run(large, context=32_769).stdout.splitlines()[-1] == "The model was made for at most 32,768 tokens."
    assert "was made for" not in run(large).stdout


def test_float32_takes_twice_as_much_as_bfloat16(large: Path) -> None:
    found = [json.loads(run(large, "--json", "--dtype", name).stdout) for name in ("bfloat16", "float32")]
    assert [each["token_bytes"] for each in found] == [196_608, 393_216]


def test_more_memory_and_a_smaller_granule_are_heard(large: Path) -> None:
    found = json.loads(run(large, "--json", "--memory", "160GiB", "--granule", "64KiB", "--chunk", "64").stdout)
    assert found["spec"] == {
        "context_tokens": 32_768,
        "prefix_tokens": 1_024,
        "granule_bytes": 65_536,
        "memory_bytes": 160 * 2**30,
        "chunk_tokens": 64,
    }
    assert found["layouts"][0]["fit"] == {"alone": 26, "can_share": True, "sharing": 27}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--granule", "much"], "granule is 'much', and must be a size such as 2MiB"),
        (["--granule", "0"], "granule is '0', and must be a size"),
        (["--memory", "9" * 40 + "GiB"], "and must be a size"),
        (["--dtype", "int4"], "dtype is 'int4', and must be float32 or bfloat16"),
        (["--context", "0"], "context is 0, and must be a number of tokens from 1"),
        (["--prefix", "0"], "prefix is 0, and must be a number of tokens from 1"),
        (["--prefix", "32769"], "prefix is 32769, and must be at most context, which is 32768"),
        (["--chunk", "-1"], "chunk is -1, and must be"),
        (["--model", "/none"], "model /none cannot be opened"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(large: Path, options: list[str], sentence: str) -> None:
    result = run(large, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("kvcluster: ")
    assert sentence in line


def test_a_model_that_the_engine_does_not_run_is_refused_by_name(large: Path) -> None:
    (large / "config.json").write_text(json.dumps({**LARGE, "model_type": "gpt2", "n_head": 4}))
    result = run(large)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not supported: " in result.stderr


def test_sliding_layers_are_counted_as_rings(tmp_path: Path) -> None:
    config = {
        **LARGE,
        "model_type": "gemma3_text",
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "layer_types": ["full_attention" if n in (5, 11, 17) else "sliding_attention" for n in range(18)],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = run(tmp_path).stdout.splitlines()[0]
    assert head.endswith(" 18.0 KiB a token (3.0 KiB in layers that keep every token, the rest in sliding windows)")
    result = run(tmp_path, "--json", "--granule", "64KiB", context=4_096)
    found = json.loads(result.stdout)
    assert (found["token_bytes"], found["kept_bytes"]) == (18 * 1024, 3 * 1024)
    [flat, *_] = found["layouts"]
    assert (flat["fragments"], flat["ring_fragments"], flat["ring_bytes"]) == (2, 1, 180 * 65_536)
    assert flat["residency"][-1]["committed_bytes"] == 180 * 65_536 + 4_096 * 3 * 1024
    assert flat["residency"][-1]["committed_bytes"] < 0.35 * 4_096 * 18 * 1024
