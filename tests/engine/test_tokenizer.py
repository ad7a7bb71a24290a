from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from kvcluster.engine.refusals import ModelNotFound
from kvcluster.engine.tokenizer import Tokenizer, open_tokenizer
from kvcluster.testing.models import EOS

TEXT = "Return a naïve list, 5 € each - 日本語 \N{GRINNING FACE}\N{GRINNING FACE} end"
BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="session")
def tokenizer(model_of: Callable[[str], Path]) -> Tokenizer:
    return open_tokenizer(model_of("llama"))


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    """Words are letters with a mark for each space, and any other character is its bytes: as in Gemma and Llama 2."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {
        token: 256 + number for number, token in enumerate(["<unk>", "▁", *"abcdefghijklmnopqrstuvwxyzR,5-"])
    }
    inner = Inner(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>"))


def pushed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("name", ["tokenizer", "byte_fallback"])
def test_a_text_comes_back_in_whole_characters(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    pieces = pushed(tokenizer, tokenizer.encode(TEXT))
    assert "".join(pieces) == TEXT
    assert not any(BROKEN in piece for piece in pieces)
    assert "" in pieces  # some token ended within a character


@given(text=st.text(max_size=20))
def test_any_text_comes_back(text: str, tokenizer: Tokenizer) -> None:
    assert "".join(pushed(tokenizer, tokenizer.encode(text))) == text


@given(ids=st.lists(st.integers(2, 511), max_size=30))
def test_any_tokens_give_the_text_of_all_of_them(ids: list[int], tokenizer: Tokenizer) -> None:
    assert "".join(pushed(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_character_that_never_becomes_whole_is_given_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a€")[:-1]
    assert pushed(tokenizer, ids)[-1] == BROKEN


def test_special_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    eos = tokenizer.encode(EOS)
    assert eos == [0]
    assert tokenizer.decode([*tokenizer.encode("a"), *eos]) == "a"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="its tokenizer cannot be read"):
        open_tokenizer(tmp_path)
