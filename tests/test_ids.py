"""Names: values, ordered, hashable, and telling one life from the next."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import pytest

from kvcluster.ids import GrantId, HandleId, RequestId, WindowRun, new_session


def test_a_session_is_32_hex_digits_and_never_the_same_twice() -> None:
    sessions = {new_session() for _ in range(100)}
    assert len(sessions) == 100
    assert all(re.fullmatch(r"[0-9a-f]{32}", session) for session in sessions)


def test_a_number_used_again_is_another_request() -> None:
    first, second = RequestId("s", 1, 0), RequestId("s", 1, 1)
    assert first != second
    assert len({first, second, RequestId("s", 1)}) == 2


def test_a_recycled_handle_number_is_another_handle() -> None:
    assert HandleId(7, 0) != HandleId(7, 1)


def test_a_request_reads_as_session_number_and_generation() -> None:
    assert str(RequestId("0123456789abcdef", 12, 3)) == "01234567/12.3"


def test_ids_sort_by_their_parts_in_order() -> None:
    requests = [RequestId("b", 0), RequestId("a", 2), RequestId("a", 1, 1), RequestId("a", 1, 0)]
    assert sorted(requests) == requests[::-1]
    grants = [GrantId(requests[0], 0), GrantId(requests[1], 5), GrantId(requests[1], 4)]
    assert sorted(grants) == grants[::-1]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (RequestId("s", 1), "number"),
        (GrantId(RequestId("s", 1), 2), "number"),
        (HandleId(1, 2), "generation"),
        (WindowRun(0, 0, 0, 1), "start"),
    ],
)
def test_an_id_cannot_be_changed(value: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, 9)
