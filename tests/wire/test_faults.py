"""An error that travelled is the same error."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.errors import BadFrame, DriverError, InvariantBroken, KvClusterError, NeverFits, Quarantined, Residue
from kvcluster.wire.codec import decode_socket, encode
from kvcluster.wire.faults import error_of, fault_of, raise_fault
from kvcluster.wire.messages import Fault
from tests.wire.wire_strategies import ERROR_CLASSES, any_error, errors_of, unhurried


@pytest.mark.parametrize("kind", ERROR_CLASSES)
def test_every_class_of_errors_travels_and_comes_back_equal(kind: type[KvClusterError]) -> None:
    @unhurried
    @given(errors_of(kind))
    def travels(sent: KvClusterError) -> None:
        received = error_of(decode_socket(encode(fault_of(sent))))  # type: ignore[arg-type]
        assert type(received) is type(sent)
        assert received.fields() == sent.fields()
        assert str(received) == str(sent)

    travels()


def test_residue_travels_inside_quarantined() -> None:
    sent = Quarantined(residue=(Residue("map 3 windows", 12288), Residue("release", 4096)))
    received = error_of(fault_of(sent))
    assert isinstance(received, Quarantined)
    assert received.residue == sent.residue


def test_raise_fault_raises_the_class_that_was_sent() -> None:
    with pytest.raises(NeverFits) as caught:
        raise_fault(fault_of(NeverFits(need=9, capacity=8)))
    assert (caught.value.need, caught.value.capacity) == (9, 8)


def test_a_need_beyond_64_bits_still_travels_as_more_than_any_capacity() -> None:
    received = error_of(decode_socket(encode(fault_of(NeverFits(need=2**90, capacity=8)))))  # type: ignore[arg-type]
    assert received.fields() == {"need": 2**63 - 1, "capacity": 8}


def test_a_sentence_with_undecodable_bytes_still_travels() -> None:
    sent = fault_of(DriverError(call="open \udcff", code=1, name="EPERM"))
    received = error_of(decode_socket(encode(sent)))  # type: ignore[arg-type]
    assert received.fields()["call"] == "open \\udcff"


class Stranger(KvClusterError):
    """Not one of kvcluster.errors."""


@pytest.mark.parametrize("name", ["Stranger", "KvClusterError", "ValueError", "Residue", "dataclass"])
def test_a_class_that_is_not_ours_is_refused(name: str) -> None:
    with pytest.raises(BadFrame) as caught:
        error_of(Fault(error=name, fields={}))
    assert caught.value.field == "error"


@pytest.mark.parametrize("name", ["Stranger", "NeverFits"])
def test_an_error_of_another_module_is_our_bug_even_under_a_known_name(name: str) -> None:
    kind = type(name, (KvClusterError,), {})
    with pytest.raises(InvariantBroken):
        fault_of(kind())


@pytest.mark.parametrize(
    ("error", "fields", "place"),
    [
        ("NeverFits", {"need": 1}, "fields.capacity"),
        ("NeverFits", {"need": "1", "capacity": 1}, "fields.need"),
        ("NeverFits", {"need": 1, "capacity": 1, "x": 1}, "fields.x"),
        ("Quarantined", {"residue": ({"what": "w"},)}, "fields.residue.0.size_bytes"),
        ("Quarantined", {"residue": "map"}, "fields.residue"),
    ],
)
def test_fields_that_are_not_the_classes_own_are_refused(error: str, fields: dict[str, Any], place: str) -> None:
    with pytest.raises(BadFrame) as caught:
        error_of(Fault(error=error, fields=fields))
    assert caught.value.field == place


@unhurried
@given(any_error, st.data())
def test_a_fault_without_a_field_is_refused_unless_the_class_has_a_default(
    sent: KvClusterError, data: st.DataObject
) -> None:
    fault = fault_of(sent)
    missing = data.draw(st.sampled_from(sorted(fault.fields)))
    default = inspect.signature(type(sent)).parameters[missing].default
    rest = {name: value for name, value in fault.fields.items() if name != missing}
    if default is inspect.Parameter.empty:
        with pytest.raises(BadFrame, match=missing):
            error_of(Fault(error=fault.error, fields=rest))
    else:
        assert error_of(Fault(error=fault.error, fields=rest)).fields() == sent.fields() | {missing: default}
