"""The input file, read as a stream: what each line asks for, or why it cannot be answered.

Nothing in a line stops the others: bytes that are not UTF-8, a byte order mark, no JSON, a line without end. Lines
are numbered from 1 as an editor numbers them; blank ones are passed over and counted. Only the custom ids stay in
memory, because of two lines with the same one the first is served.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from kvcluster.errors import KvClusterError
from kvcluster.services.batch.fields import WrongField, asked_of, custom_id_of, request_of
from kvcluster.services.completion import BAD_REQUEST, CompletionRequest, Refused
from kvcluster.services.given import NotJson, no_number, object_of_pairs
from kvcluster.units import MIB, format_bytes

LONGEST_LINE_BYTES = 8 * MIB
DIGEST_BYTES = 6  # two lines that one custom_id had have the same one by chance once in 2**48 times
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BatchFileError(KvClusterError):
    """The input or the output file cannot be used. One sentence; results that were written are kept."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Line:
    """`custom_id` is None where the line has none that can be read; then `asked` is Refused.

    `digest` tells whether a line of this number still asks for the same (`fields.asked_of`); where it cannot be
    answered, whether it is the same text. Empty: nobody can tell.
    """

    number: int
    custom_id: str | None
    asked: CompletionRequest | Refused
    digest: str = ""


def check_input(path: Path) -> None:
    """Nothing, where `path` can be read as often as the job needs (twice).

    Raises:
        BatchFileError: it is missing, unreadable or no plain file.
    """
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(path.stat().st_mode):
                raise BatchFileError(path=str(path), reason="the input must be a plain file, because it is read twice")
            file.read(1)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> BatchFileError:
    return BatchFileError(path=str(path), reason=f"the input cannot be read: {error.strerror}")


def read_lines(path: Path) -> Iterator[Line]:
    """Every line that is not blank, in order.

    Raises:
        BatchFileError: the file is gone or cannot be read any further.
    """
    first_with: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(_raw_lines(file), start=1):
                if raw.strip():
                    yield _unique(_line(number, raw), first_with)
    except OSError as error:
        raise _unreadable(path, error) from None


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line; of one that is too long, one byte more than is allowed."""
    while raw := file.readline(LONGEST_LINE_BYTES + 1):
        yield raw
        while len(raw) > LONGEST_LINE_BYTES and not raw.endswith(b"\n"):
            raw = file.readline(LONGEST_LINE_BYTES + 1)


def _unique(line: Line, first_with: dict[str, int]) -> Line:
    if line.custom_id is None:
        return line
    first = first_with.setdefault(line.custom_id, line.number)
    if first == line.number:
        return line
    sentence = f"custom_id is that of line {first}, and must be the line's own"
    return replace(line, asked=_refusal(WrongField("duplicate_custom_id", sentence)))


def _line(number: int, raw: bytes) -> Line:
    custom_id = None
    try:
        document = document_of(raw)
        custom_id = custom_id_of(document)
        return Line(number, custom_id, request_of(document), _digest(asked_of(document)))
    except WrongField as wrong:
        return Line(number, custom_id, _refusal(wrong), _digest(raw.strip()))


def _refusal(wrong: WrongField) -> Refused:
    return Refused(BAD_REQUEST, wrong.code, str(wrong))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def document_of(raw: bytes) -> dict[str, Any]:
    """The object that a line is.

    Raises:
        WrongField: it is none.
    """
    if len(raw) > LONGEST_LINE_BYTES:
        raise WrongField("line_too_long", f"the line is longer than {format_bytes(LONGEST_LINE_BYTES)}")
    if raw.startswith(_BYTE_ORDER_MARK):
        raise WrongField("invalid_json", "the line begins with a byte order mark: save the file as UTF-8 without one")
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=object_of_pairs, parse_constant=no_number)
    except UnicodeDecodeError as error:
        raise WrongField("not_utf8", f"the line is not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise WrongField("invalid_json", f"the line is not JSON at character {error.pos + 1}: {error.msg}") from None
    except NotJson as error:
        raise WrongField("invalid_json", f"the line is not JSON that is taken: {error}") from None
    except ValueError:
        raise WrongField("invalid_json", "the line is not JSON that can be read: a number in it is too long") from None
    except RecursionError:
        raise WrongField("invalid_json", "the line is nested too deeply") from None
    if not isinstance(document, dict):
        raise WrongField("invalid_json", "the line is not a JSON object")
    return document
