"""Text to token ids and back, a token at a time.

A token may end in the middle of a character, and a word's first space may depend on the token before it. So text is
decoded with the tokens around it, and a character is given out only when it is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from kvcluster.engine.reading import reading

_BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A model's tokenizer. Special tokens are added where the model expects them, and never decoded to text."""

    inner: Any

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.inner(text)["input_ids"]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.inner.decode(token_ids, skip_special_tokens=True)
        return text

    def decode_alone(self, token_id: int) -> str:
        """What one token says by itself, a special one too; marks, where it is only a part of a character."""
        text: str = self.inner.decode([token_id])
        return text

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one text."""
        return Detokenizer(self)


class Detokenizer:
    """One growing text: the pieces that `push` and `finish` give, joined, are the text of all tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # tokens whose text was given out, kept because the next one's depends on them
        self._pending: list[int] = []  # tokens since then
        self._given = 0  # characters of the pending tokens' text that were given out

    def push(self, token_id: int) -> str:
        """The text that this token completes: often a word, at times nothing."""
        self._pending.append(token_id)
        text = self._pending_text()
        whole = text.rstrip(_BROKEN)  # an unfinished character decodes to such marks (one, or one a byte), at the end
        new = whole[self._given :]
        self._given = max(self._given, len(whole))
        if whole == text:
            self._context, self._pending, self._given = self._pending, [], 0
        return new

    def finish(self) -> str:
        """What is left: the marks of a character that never became whole, or nothing."""
        left = self._pending_text()[self._given :]
        self._context, self._pending, self._given = [], [], 0
        return left

    def _pending_text(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._pending)[len(before) :]


def open_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in the model folder `path`.

    Raises:
        ModelNotFound: there is none, or it cannot be read.
    """
    with reading(path, "its tokenizer cannot be read: "):
        return Tokenizer(AutoTokenizer.from_pretrained(path, local_files_only=True))
