"""What goes onto the wire comes off it, and nothing else does."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.errors import BadFrame
from kvcluster.wire import codec
from kvcluster.wire.codec import decode_frame, decode_reply, decode_socket, encode
from kvcluster.wire.messages import (
    MOST_TOKENS,
    Close,
    Commit,
    Committed,
    Frame,
    Grant,
    Group,
    GroupResult,
    Open,
    Release,
    Reply,
    RequestKey,
    Run,
)
from tests.wire.wire_strategies import frames, replies, socket_messages, unhurried

KEY = RequestKey(number=7)
OPEN = Open(request=KEY, groups=(Group(fragments=1, stride_bytes=64),), max_tokens=8)
GRANT = Grant(request=KEY, grant=1, size_bytes=4096)
COMMIT = Commit(request=KEY, grant=1, tokens=8)


def frame(*ops: Any) -> Frame:
    return Frame(session="s", seq=1, ack=0, epoch=1, ops=ops)


def plain(**changed: Any) -> dict[str, Any]:
    """A good frame as a map, with some keys changed or, as None, taken out."""
    fields = {"v": 1, "session": "s", "seq": 1, "ack": 0, "epoch": 1, "ops": [op_fields()]} | changed
    return {key: value for key, value in fields.items() if value is not None}


def op_fields(**changed: Any) -> dict[str, Any]:
    return {"verb": "grant", "request": {"number": 7}, "grant": 1, "size_bytes": 4096} | changed


def find_fields(token_ids: bytes | str) -> dict[str, Any]:
    return {"verb": "find", "request": {"number": 7}, "token_ids": token_ids}


def refusal(data: bytes) -> BadFrame:
    with pytest.raises(BadFrame) as caught:
        decode_frame(data)
    return caught.value


@unhurried
@given(frames)
def test_every_frame_comes_back_equal(sent: Frame) -> None:
    assert decode_frame(encode(sent)) == sent


@unhurried
@given(replies)
def test_every_reply_comes_back_equal(sent: Reply) -> None:
    assert decode_reply(encode(sent)) == sent


@unhurried
@given(socket_messages)
def test_every_socket_message_comes_back_equal_and_of_its_class(sent: Any) -> None:
    received = decode_socket(encode(sent))
    assert received == sent
    assert type(received) is type(sent)


@unhurried
@given(frames)
def test_a_frame_that_spells_its_defaults_out_is_the_same_frame(sent: Frame) -> None:
    assert decode_frame(msgpack.packb(sent.model_dump())) == sent


def test_fields_at_their_default_are_not_sent() -> None:
    sent = msgpack.unpackb(encode(Reply(session="s", seq=1, epoch=1, results=(GroupResult(request=KEY),))))
    assert sent == {"v": 1, "session": "s", "seq": 1, "epoch": 1, "results": [{"request": {"number": 7}}]}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (plain(v=2), "v"),
        (plain(v=None), "v"),
        (plain(v="1"), "v"),
        (plain(colour="red"), "colour"),
        (plain(seq=0), "seq"),
        (plain(seq=2**63), "seq"),
        (plain(seq=1.0), "seq"),
        (plain(seq="1"), "seq"),
        (plain(seq=None), "seq"),
        (plain(ack=-1), "ack"),
        (plain(session=""), "session"),
        (plain(session="s" * 65), "session"),
        (plain(session=b""), "session"),
        (plain(ops=[]), "ops"),
        (plain(ops=[op_fields(verb="steal")]), "ops.0"),
        (plain(ops=[op_fields(), op_fields(size_bytes=0)]), "ops.1.grant.size_bytes"),
        (plain(ops=[op_fields(size_bytes=True)]), "ops.0.grant.size_bytes"),
        (plain(ops=[op_fields(extra=1)]), "ops.0.grant.extra"),
        (plain(ops=[op_fields(request={"number": 7, "x": 1})]), "ops.0.grant.request.x"),
        (plain(v=b"\x01"), "v"),
        (plain(ops=[find_fields(b"")]), "ops.0.find.token_ids"),
        (plain(ops=[find_fields("abcd")]), "ops.0.find.token_ids"),
        (plain(ops=[find_fields(bytes(4 * MOST_TOKENS + 4))]), "bytes"),
    ],
)
def test_a_frame_with_a_wrong_field_is_refused_by_that_fields_name(fields: dict[str, Any], place: str) -> None:
    assert refusal(msgpack.packb(fields)).field == place


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x01",
        b"\x80\x80",
        b"\x91" * 5000,
        b"\xa1\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc7\x00\x05",
        b"\x82\xa1v\x01\xa1v\x01",
        b"\x81\x01\x02",
    ],
)
def test_bytes_that_are_not_one_map_of_plain_values_are_refused_as_bytes(data: bytes) -> None:
    assert refusal(data).field == "bytes"


def test_a_frame_of_another_version_is_refused_before_its_unknown_fields_are_looked_at() -> None:
    assert refusal(msgpack.packb(plain(v=2, new_field=1))).field == "v"


def test_an_oversized_frame_is_refused_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.msgpack, "unpackb", lambda *_, **__: pytest.fail("it was decoded"))
    assert refusal(bytes(codec.MAX_FRAME_BYTES + 1)).field == "size"
    with pytest.raises(BadFrame):
        decode_socket(bytes(codec.MAX_SOCKET_BYTES + 1))


def test_a_message_too_large_to_be_decoded_is_not_encoded() -> None:
    run = Run(group=0, fragment=0, start=2**62, count=1)
    with pytest.raises(BadFrame, match="at most"):
        encode(frame(Release(request=KEY, runs=(run,) * 120_000, outcome="clean")))


def test_a_hundred_thousand_runs_fit_in_one_reply() -> None:
    runs = tuple(Run(group=0, fragment=number % 1280, start=number, count=1) for number in range(100_000))
    sent = Reply(session="s", seq=1, epoch=1, results=(GroupResult(request=KEY, answers=(Committed(runs=runs),)),))
    assert decode_reply(encode(sent)) == sent


def test_a_refusal_does_not_repeat_a_peers_endless_text() -> None:
    error = refusal(msgpack.packb(plain(**{"x" * 100_000: 1})))
    assert len(str(error)) < 1000


@unhurried
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for decode in (decode_frame, decode_reply, decode_socket):
        with pytest.raises(BadFrame):
            decode(data)


@unhurried
@given(frames, st.data())
def test_a_frame_cut_short_is_refused(sent: Frame, data: st.DataObject) -> None:
    whole = encode(sent)
    with pytest.raises(BadFrame):
        decode_frame(whole[: data.draw(st.integers(0, len(whole) - 1))])


@unhurried
@given(st.one_of(frames, replies, socket_messages), st.data())
def test_a_message_with_a_changed_byte_is_refused_or_is_another_message(sent: Any, data: st.DataObject) -> None:
    damaged = bytearray(encode(sent))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    for decode in (decode_frame, decode_reply, decode_socket):
        try:
            received = decode(bytes(damaged))
        except BadFrame:
            continue
        assert decode(encode(received)) == received


def test_open_is_a_group_by_itself_and_the_rest_of_its_request_is_another() -> None:
    other = Close(request=RequestKey(number=8))
    assert codec.groups(frame(OPEN, GRANT, COMMIT, other)) == ((OPEN,), (GRANT, COMMIT), (other,))


def test_the_next_life_of_a_request_number_is_another_group() -> None:
    close = Close(request=KEY)
    again = OPEN.model_copy(update={"request": RequestKey(number=7, generation=1)})
    assert codec.groups(frame(close, again)) == ((close,), (again,))


@pytest.mark.parametrize(
    ("ops", "place"),
    [
        ((GRANT, Close(request=RequestKey(number=8)), COMMIT), "ops.2.request"),
        ((OPEN, Close(request=RequestKey(number=8)), GRANT), "ops.2.request"),
        ((OPEN, OPEN), "ops.1.verb"),
        ((GRANT, OPEN), "ops.1.verb"),
    ],
)
def test_a_request_that_comes_back_or_opens_late_is_refused_at_its_place(ops: tuple[Any, ...], place: str) -> None:
    assert refusal(encode(frame(*ops))).field == place


@unhurried
@given(frames)
def test_groups_together_are_the_frame_and_each_is_of_one_request(sent: Frame) -> None:
    split = codec.groups(sent)
    assert tuple(op for group in split for op in group) == sent.ops
    for group in split:
        assert len({op.request for op in group}) == 1
        assert len(group) == 1 or not any(isinstance(op, Open) for op in group)
