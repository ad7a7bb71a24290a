"""How a refusal travels: the name of its class in `kvcluster.errors`, and its fields.

A fault becomes the same error again, in class, fields and sentence, so that a caller's `except OutOfBudget` reads
the same with the device in this process and in another. Only classes of `kvcluster.errors` travel, and every
field is checked against the class's own constructor.

Not the place for bugs: those travel as exceptions of the transport, and end the process they come from.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, NoReturn, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from kvcluster import errors
from kvcluster.errors import BadFrame, InvariantBroken, KvClusterError, Residue
from kvcluster.wire.messages import Fault

_LEAST, _MOST = -(2**63), 2**63 - 1  # the integers that msgpack and every peer can hold

_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Piece(BaseModel):
    """A Residue on its way."""

    model_config = _STRICT
    what: str
    size_bytes: int


_TRAVELS_AS: dict[Any, Any] = {tuple[Residue, ...]: tuple[_Piece, ...]}

_CLASSES: dict[str, type[KvClusterError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, KvClusterError) and kind is not KvClusterError
}


def fault_of(error: KvClusterError) -> Fault:
    """`error` as it travels. An integer beyond 64 bits becomes the largest that fits: such a need never fits anyway.

    Raises:
        InvariantBroken: its class is not one of `kvcluster.errors`.
    """
    name = type(error).__name__
    if _CLASSES.get(name) is not type(error):
        raise InvariantBroken(sentence=f"{name} is raised towards a client and is no error of kvcluster.errors")
    return Fault(error=name, fields={key: _plain(value) for key, value in error.fields().items()})


def error_of(fault: Fault) -> KvClusterError:
    """The error that `fault_of` was given.

    Raises:
        BadFrame: a class that is not ours, or fields that are not its own.
    """
    kind = _CLASSES.get(fault.error)
    if kind is None:
        raise BadFrame(field="error", reason=f"{fault.error} is no error of kvcluster.errors")
    try:
        checked = _fields_of(fault.error).model_validate(fault.fields)
    except ValidationError as error:
        place = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(("fields", *map(str, place["loc"])))
        raise BadFrame(field=field[:200], reason=place["msg"]) from None
    return kind(**{name: _own(value) for name, value in checked})


def raise_fault(fault: Fault) -> NoReturn:
    """Raise what the peer raised."""
    raise error_of(fault)


@cache
def _fields_of(name: str) -> type[BaseModel]:
    """A strict model with the keywords of the class's constructor."""
    kind = _CLASSES[name]
    parameters = inspect.signature(kind).parameters.values()
    hints = get_type_hints(kind.__init__)
    fields: dict[str, Any] = {
        p.name: (_TRAVELS_AS.get(hints[p.name], hints[p.name]), ... if p.default is p.empty else p.default)
        for p in parameters
    }
    return create_model(name, __config__=_STRICT, **fields)


def _plain(value: Any) -> Any:
    if isinstance(value, Residue):
        return {"what": value.what, "size_bytes": _plain(value.size_bytes)}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, _LEAST), _MOST)
    return value


def _own(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_own(item) for item in value)
    return Residue(value.what, value.size_bytes) if isinstance(value, _Piece) else value
