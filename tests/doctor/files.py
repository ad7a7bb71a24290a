"""A machine's files, made up."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
