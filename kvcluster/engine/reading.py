"""A model's folder is read by other people's code: whatever that raises becomes one sentence that names the folder.

transformers, tokenizers and safetensors answer a damaged file with almost any exception (a TypeError, a
ZeroDivisionError, an error of their own), and pass over others in silence: a settings file that is no JSON, or a
folder in its place, counts as missing there. So the small files are looked at here first, and the rest of the
reading happens inside `reading`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvcluster.engine.refusals import ModelNotFound
from kvcluster.errors import KvClusterError

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_FILES = (*_SETTINGS, "tokenizer.json", "model.safetensors", "model.safetensors.index.json")
_SHOWN_CHARACTERS = 200


@contextmanager
def reading(path: str | Path, what: str = "") -> Iterator[None]:
    """Turns whatever goes wrong in the block into a ModelNotFound; `what` begins its reason.

    Raises:
        ModelNotFound: there is no such folder, a file in it is damaged, or the block failed.
    """
    try:
        _check_files(Path(path))
        yield
    except KvClusterError:
        raise
    except Exception as error:  # a third party's boundary: a damaged file leads it to raise anything
        raise ModelNotFound(model=str(path), reason=what + shown_error(error)) from error


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelNotFound(model=str(folder), reason="there is no such folder")
    for name in _FILES:
        file = folder / name
        if file.exists() and not file.is_file():
            raise ModelNotFound(model=str(folder), reason=f"{name} in it is no file")
        if name in _SETTINGS and file.exists() and not _holds_an_object(file):
            raise ModelNotFound(model=str(folder), reason=f"{name} in it is not a JSON object")


def _holds_an_object(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except (ValueError, RecursionError):
        return False


def shown_error(error: Exception) -> str:
    """The beginning of what `error` says, in one line; with its kind, where it is not one that speaks for itself."""
    text = " ".join(str(error).split())
    told = text if text and isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {text}"
    return told if len(told) <= _SHOWN_CHARACTERS else f"{told[: _SHOWN_CHARACTERS - 3]}..."
