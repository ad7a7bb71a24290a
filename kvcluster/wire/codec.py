"""Bytes to messages and back: msgpack maps, by field name.

Small frames: a field that holds its default is left out, but for `verb` and `v`, which are always there. A decoder
takes both forms. What a decoder refuses, it refuses as BadFrame with the field's dotted place: bytes beyond the
size limit (before any of them is decoded), anything but one msgpack map, a key given twice, an extension type, an
unknown version, verb or field, a value of another type or out of its bounds.

Not the place for what messages mean: only `groups`, which splits a frame into what is done whole or not at all.
Sizes: a run of windows is about 36 bytes, so that a frame holds some 100,000 of them.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import msgpack
from pydantic import TypeAdapter, ValidationError

from kvcluster.errors import BadFrame
from kvcluster.units import KIB, MIB
from kvcluster.wire.messages import MOST_TOKENS, VERSION, Frame, Message, Open, Operation, Reply
from kvcluster.wire.socket import SocketMessage

MAX_FRAME_BYTES = 4 * MIB
MAX_SOCKET_BYTES = 64 * KIB  # below what one packet of a unix socket holds by default (208 KiB)

Groups = tuple[tuple[Operation, ...], ...]

T = TypeVar("T")

_MAX_ITEMS = 1 << 17
_ALWAYS_SENT = frozenset({"verb", "v"})
_FRAMES = frozenset({Frame, Reply})
_SENT = object()
_SHOWN = 200  # characters of a peer's text that an error repeats

_REQUEST = attrgetter("request.number", "request.generation")  # of an operation

_FRAME: TypeAdapter[Frame] = TypeAdapter(Frame)
_REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
_SOCKET: TypeAdapter[SocketMessage] = TypeAdapter(SocketMessage)


def encode(message: Message) -> bytes:
    """The one form that `message` has on the wire.

    Raises:
        BadFrame: larger than a decoder takes; nothing was sent. Fewer operations in a frame are the remedy.
    """
    data: bytes = msgpack.packb(message, default=_fields, use_bin_type=True, unicode_errors="backslashreplace")
    _check_size(data, MAX_FRAME_BYTES if type(message) in _FRAMES else MAX_SOCKET_BYTES)
    return data


def decode_frame(data: bytes) -> Frame:
    """What a client sent.

    Raises:
        BadFrame: not a frame, or requests in a wrong order (see `groups`).
    """
    return decode_groups(data)[0]


def decode_groups(data: bytes) -> tuple[Frame, Groups]:
    """The same, and its `groups`. Raises as `decode_frame`."""
    frame = _decoded(data, MAX_FRAME_BYTES, _FRAME, versioned=True)
    return frame, groups(frame)


def decode_reply(data: bytes) -> Reply:
    """What a device answered.

    Raises:
        BadFrame: not a reply.
    """
    return _decoded(data, MAX_FRAME_BYTES, _REPLY, versioned=True)


def decode_socket(data: bytes) -> SocketMessage:
    """What was said on the attach socket.

    Raises:
        BadFrame: not such a message.
    """
    return _decoded(data, MAX_SOCKET_BYTES, _SOCKET, versioned=False)


def groups(frame: Frame) -> Groups:
    """The frame's operations, cut into what is done whole or not at all, in their order.

    Operations on one request stand next to each other and are one group, but for a leading `open`, which is a
    group by itself.

    Raises:
        BadFrame: a request comes back after another one, or is opened after another operation on it.
    """
    found: list[tuple[Operation, ...]] = []
    seen: set[tuple[int, int]] = set()
    position = 0
    for request, stretch in groupby(frame.ops, key=_REQUEST):
        ops = tuple(stretch)
        if request in seen:
            raise BadFrame(field=f"ops.{position}.request", reason="its operations must stand next to each other")
        seen.add(request)
        found += _split(ops, position)
        position += len(ops)
    return tuple(found)


def _split(ops: tuple[Operation, ...], position: int) -> list[tuple[Operation, ...]]:
    for index, op in enumerate(ops[1:], start=position + 1):
        if type(op) is Open:
            raise BadFrame(field=f"ops.{index}.verb", reason="open comes first of a request's operations, and once")
    leading = 1 if type(ops[0]) is Open else 0
    return [part for part in (ops[:leading], ops[leading:]) if part]


def _fields(message: Message) -> dict[str, Any]:
    """`message` as a map, without the fields that hold their default; msgpack asks for each message that it meets.

    6 us for a frame with one operation; walking the messages here took 15.
    """
    fields: dict[str, Any] = {}
    held = message.__dict__
    for name, default in _defaults(type(message)):
        value = held[name]
        if default is _SENT or value != default:
            fields[name] = value
    return fields


@cache
def _defaults(kind: type[Message]) -> tuple[tuple[str, Any], ...]:
    """Each field of `kind`, and what it holds where it is left out: `_SENT`, where it always stands."""
    return tuple(
        (name, _SENT if field.is_required() or name in _ALWAYS_SENT else field.default)
        for name, field in kind.model_fields.items()
    )


def _decoded(data: bytes, limit: int, kind: TypeAdapter[T], *, versioned: bool) -> T:
    _check_size(data, limit)
    raw = _unpacked(data)
    if (versioned or raw.get("verb") == "hello") and raw.get("v") != VERSION:
        raise BadFrame(field="v", reason=f"only version {VERSION} is spoken here")
    try:
        return kind.validate_python(raw)
    except ValidationError as error:
        raise _first(error) from None


def _check_size(data: bytes, limit: int) -> None:
    if len(data) > limit:
        raise BadFrame(field="size", reason=f"{len(data)} bytes, and at most {limit} are taken")


def _unpacked(data: bytes) -> dict[str, Any]:
    try:
        raw = msgpack.unpackb(
            data,
            raw=False,
            use_list=False,
            strict_map_key=True,
            object_pairs_hook=_unique,
            ext_hook=_no_extension,
            max_str_len=MAX_FRAME_BYTES,
            max_bin_len=4 * MOST_TOKENS,
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        reason = str(error)[:_SHOWN] or type(error).__name__
        raise BadFrame(field="bytes", reason=f"not msgpack as we write it ({reason})") from None
    if not isinstance(raw, dict):
        raise BadFrame(field="bytes", reason="a message is a map")
    return raw


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _first(error: ValidationError) -> BadFrame:
    detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in detail["loc"]) or "verb"
    return BadFrame(field=field[:_SHOWN], reason=detail["msg"][:_SHOWN])
