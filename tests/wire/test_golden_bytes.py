"""The wire form, byte for byte: it cannot change unnoticed.

A change here is a new VERSION, because clients and devices of two releases may meet. Lengths are those of short
names; a real session's name has 32 characters.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcluster.errors import OutOfBudget, Quarantined, Residue
from kvcluster.wire import messages
from kvcluster.wire.codec import decode_frame, decode_reply, decode_socket, encode
from kvcluster.wire.faults import fault_of
from kvcluster.wire.messages import (
    Close,
    Closed,
    Commit,
    Committed,
    Frame,
    GiveBack,
    Grant,
    Granted,
    Group,
    GroupResult,
    Handed,
    Heartbeat,
    Hello,
    NotHanded,
    Open,
    Opened,
    Redeem,
    Release,
    Released,
    Reply,
    RequestKey,
    Returned,
    Run,
    Welcome,
)

KEY = RequestKey(number=7, generation=2)
FIRST = RequestKey(number=7)
RUN = Run(group=0, fragment=1, start=2, count=300)
FAULT = fault_of(OutOfBudget(need=4096, free=0, oldest_arrival=None, retry_after_s=0.5, quarantined=7))


def frame(op: Any) -> Frame:
    return Frame(session="s", seq=1, ack=0, epoch=3, ops=(op,))


def reply(answer: Any) -> Reply:
    return Reply(session="s", seq=1, epoch=3, results=(GroupResult(request=FIRST, answers=(answer,)),))


FRAMES = {
    "open": frame(Open(request=KEY, groups=(Group(fragments=2, stride_bytes=128),), max_tokens=1000)),
    "open after": frame(
        Open(request=KEY, groups=(Group(fragments=2, stride_bytes=128),), max_tokens=1000, after=FIRST)
    ),
    "grant": frame(Grant(request=FIRST, grant=1, size_bytes=65536)),
    "give_back": frame(GiveBack(request=FIRST, grant=1)),
    "commit": frame(Commit(request=FIRST, grant=1, tokens=16)),
    "release": frame(Release(request=FIRST, runs=(RUN,), outcome="clean")),
    "close": frame(Close(request=FIRST)),
}
REPLIES = {
    "opened": reply(Opened(arrival=5)),
    "granted": reply(Granted(expires_s=5.0)),
    "returned": reply(Returned()),
    "committed": reply(Committed(runs=(RUN,))),
    "released": reply(Released(size_bytes=65536)),
    "closed": reply(Closed()),
    "group fault": Reply(session="s", seq=1, epoch=3, results=(GroupResult(request=FIRST, fault=FAULT),)),
    "frame fault": Reply(session="s", seq=1, epoch=3, fault=FAULT),
}
SOCKET = {
    "hello": Hello(session="s"),
    "welcome": Welcome(
        device="host:0", epoch=3, granule_bytes=65536, capacity_bytes=2**29, lease_s=30.0, heartbeat_s=5.0
    ),
    "redeem": Redeem(ask=1, seq=2),
    "heartbeat": Heartbeat(),
    "handed": Handed(ask=1, seq=2, count=1, total=254, handle_bytes=(65536,)),
    "not_handed": NotHanded(ask=1, fault=FAULT),
    "fault": fault_of(Quarantined(residue=(Residue("map", 4096),))),
}
GOLDEN = {
    "open": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739184a476657262a46f70656ea772657175"
        "65737482a66e756d62657207aa67656e65726174696f6e02a667726f7570739182a9667261676d656e747302ac7374726964655f"
        "6279746573cc80aa6d61785f746f6b656e73cd03e8"
    ),
    "open after": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739185a476657262a46f70656ea772657175"
        "65737482a66e756d62657207aa67656e65726174696f6e02a667726f7570739182a9667261676d656e747302ac7374726964655f"
        "6279746573cc80aa6d61785f746f6b656e73cd03e8a5616674657281a66e756d62657207"
    ),
    "grant": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739184a476657262a56772616e74a7726571"
        "7565737481a66e756d62657207a56772616e7401aa73697a655f6279746573ce00010000"
    ),
    "give_back": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739183a476657262a9676976655f6261636b"
        "a77265717565737481a66e756d62657207a56772616e7401"
    ),
    "commit": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739184a476657262a6636f6d6d6974a77265"
        "717565737481a66e756d62657207a56772616e7401a6746f6b656e7310"
    ),
    "release": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739184a476657262a772656c65617365a772"
        "65717565737481a66e756d62657207a472756e739184a567726f757000a8667261676d656e7401a5737461727402a5636f756e74"
        "cd012ca76f7574636f6d65a5636c65616e"
    ),
    "close": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739182a476657262a5636c6f7365a7726571"
        "7565737481a66e756d62657207"
    ),
    "opened": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739182a476657262a66f70656e6564a76172726976616c05"
    ),
    "granted": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739182a476657262a76772616e746564a9657870697265735f73cb4014000000000000"
    ),
    "returned": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739181a476657262a872657475726e6564"
    ),
    "committed": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739182a476657262a9636f6d6d6974746564a472756e739184a567726f757000a8667261676d656e7401a573"
        "7461727402a5636f756e74cd012c"
    ),
    "released": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739182a476657262a872656c6561736564aa73697a655f6279746573ce00010000"
    ),
    "closed": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739181a476657262a6636c6f736564"
    ),
    "group fault": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a56661756c7483a476657262a56661756c74a56572726f72ab4f75744f66427564676574a66669656c647385a46e656564cd10"
        "00a46672656500ae6f6c646573745f6172726976616cc0ad72657472795f61667465725f73cb3fe0000000000000ab7175617261"
        "6e74696e656407"
    ),
    "frame fault": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a56661756c7483a476657262a56661756c74a56572726f72ab4f"
        "75744f66427564676574a66669656c647385a46e656564cd1000a46672656500ae6f6c646573745f6172726976616cc0ad726574"
        "72795f61667465725f73cb3fe0000000000000ab71756172616e74696e656407"
    ),
    "hello": ("83a476657262a568656c6c6fa17601a773657373696f6ea173"),
    "welcome": (
        "87a476657262a777656c636f6d65a6646576696365a6686f73743a30a565706f636803ad6772616e756c655f6279746573ce0001"
        "0000ae63617061636974795f6279746573ce20000000a76c656173655f73cb403e000000000000ab6865617274626561745f73cb"
        "4014000000000000"
    ),
    "redeem": ("83a476657262a672656465656da361736b01a373657102"),
    "heartbeat": ("81a476657262a9686561727462656174"),
    "handed": (
        "86a476657262a668616e646564a361736b01a373657102a5636f756e7401a5746f74616cccfeac68616e646c655f627974657391"
        "ce00010000"
    ),
    "not_handed": (
        "83a476657262aa6e6f745f68616e646564a361736b01a56661756c7483a476657262a56661756c74a56572726f72ab4f75744f66"
        "427564676574a66669656c647385a46e656564cd1000a46672656500ae6f6c646573745f6172726976616cc0ad72657472795f61"
        "667465725f73cb3fe0000000000000ab71756172616e74696e656407"
    ),
    "fault": (
        "83a476657262a56661756c74a56572726f72ab51756172616e74696e6564a66669656c647381a7726573696475659182a4776861"
        "74a36d6170aa73697a655f6279746573cd1000"
    ),
}


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_a_frame_is_these_bytes(name: str) -> None:
    assert encode(FRAMES[name]).hex() == GOLDEN[name]
    assert decode_frame(bytes.fromhex(GOLDEN[name])) == FRAMES[name]


@pytest.mark.parametrize("name", sorted(REPLIES))
def test_a_reply_is_these_bytes(name: str) -> None:
    assert encode(REPLIES[name]).hex() == GOLDEN[name]
    assert decode_reply(bytes.fromhex(GOLDEN[name])) == REPLIES[name]


@pytest.mark.parametrize("name", sorted(SOCKET))
def test_a_socket_message_is_these_bytes(name: str) -> None:
    assert encode(SOCKET[name]).hex() == GOLDEN[name]
    assert decode_socket(bytes.fromhex(GOLDEN[name])) == SOCKET[name]


def test_every_verb_has_its_golden_bytes() -> None:
    verbs = {
        kind.model_fields["verb"].default
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and "verb" in kind.model_fields
    }
    assert verbs <= set(GOLDEN)
