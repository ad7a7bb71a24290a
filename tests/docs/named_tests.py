"""Tests that a document names as `path::name`, and whether there are such."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_NAMED = re.compile(r"`((?:tests|kvcluster/testing)/[\w/]+\.py)::(\w+)`")


def text_of(document: str) -> str:
    return (DOCS / document).read_text(encoding="utf-8")


def named_tests(text: str) -> list[tuple[str, str]]:
    """Each once: file and name."""
    return sorted(set(_NAMED.findall(text)))


def exists(file: str, name: str) -> bool:
    """A function of the file, or of a class in it; or a state machine's test case."""
    path = ROOT / file
    pattern = rf"^(?: {{4}})?def {name}\(|^{name} = \w+\.TestCase$"
    return path.is_file() and re.search(pattern, path.read_text(encoding="utf-8"), flags=re.MULTILINE) is not None
