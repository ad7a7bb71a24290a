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
    Forget,
    Frame,
    GiveBack,
    Grant,
    Granted,
    Group,
    GroupResult,
    Handed,
    Heartbeat,
    Hello,
    Join,
    Joined,
    Leave,
    Left,
    NotHanded,
    Open,
    Opened,
    Publish,
    Published,
    Reclaim,
    Redeem,
    Release,
    Released,
    Reply,
    RequestKey,
    Returned,
    Run,
    Seal,
    Sealed,
    Welcome,
)

KEY = RequestKey(number=7, generation=2)
FIRST = RequestKey(number=7)
RUN = Run(group=0, fragment=1, start=2, count=300)
FAULT = fault_of(OutOfBudget(need=4096, free=0, oldest_arrival=None, retry_after_s=0.5, quarantined=7, capacity=99))


def frame(op: Any) -> Frame:
    return Frame(session="s", seq=1, ack=0, epoch=3, ops=(op,))


def reply(answer: Any) -> Reply:
    return Reply(session="s", seq=1, epoch=3, results=(GroupResult(request=FIRST, answers=(answer,)),))


FRAMES = {
    "open": frame(Open(request=KEY, groups=(Group(fragments=2, stride_bytes=128),), max_tokens=1000)),
    "open after": frame(
        Open(request=KEY, groups=(Group(fragments=2, stride_bytes=128),), max_tokens=1000, after=FIRST)
    ),
    "open shareable": frame(
        Open(
            request=KEY,
            groups=(Group(fragments=2, stride_bytes=128, keeps="ring", windows=9),),
            max_tokens=1000,
            tenant="t",
            shareable_tokens=64,
        )
    ),
    "grant": frame(Grant(request=FIRST, grant=1, size_bytes=65536)),
    "grant beside a join": frame(Grant(request=FIRST, grant=1, size_bytes=65536, tokens=300)),
    "give_back": frame(GiveBack(request=FIRST, grant=1)),
    "commit": frame(Commit(request=FIRST, grant=1, tokens=16)),
    "release": frame(Release(request=FIRST, runs=(RUN,), outcome="clean")),
    "commit snapshot": frame(Commit(request=FIRST, grant=1, tokens=16, snapshot=True)),
    "publish": frame(Publish(request=FIRST, tokens=300)),
    "seal": frame(Seal(request=FIRST, prefix=4)),
    "join": frame(Join(request=FIRST, prefix=4, tokens=300)),
    "leave": frame(Leave(request=FIRST, prefix=4, outcome="quarantined")),
    "close": frame(Close(request=FIRST)),
    "close retain": frame(Close(request=FIRST, retain_tokens=300)),
}
REPLIES = {
    "opened": reply(Opened(arrival=5)),
    "granted": reply(Granted(expires_s=5.0)),
    "returned": reply(Returned()),
    "committed": reply(Committed(runs=(RUN,))),
    "released": reply(Released(size_bytes=65536)),
    "published": reply(Published(prefix=4, tokens=300, runs=(RUN,))),
    "sealed": reply(Sealed(prefix=4, runs=(RUN,))),
    "sealed not": reply(Sealed(prefix=4, runs=(RUN,), refusal="busy")),
    "joined": reply(Joined(prefix=4, tokens=299, runs=(RUN,))),
    "left": reply(Left()),
    "closed": reply(Closed()),
    "closed retained": reply(Closed(prefix=4, tokens=300)),
    "group fault": Reply(session="s", seq=1, epoch=3, results=(GroupResult(request=FIRST, fault=FAULT),)),
    "frame fault": Reply(session="s", seq=1, epoch=3, fault=FAULT),
}
SOCKET = {
    "hello": Hello(session="s"),
    "welcome": Welcome(
        device="host:0", epoch=3, granule_bytes=65536, capacity_bytes=2**29, lease_s=30.0, heartbeat_s=5.0
    ),
    "redeem": Redeem(ask=1, seq=2),
    "redeem known": Redeem(ask=1, seq=2, known=((7, 1, True),)),
    "heartbeat": Heartbeat(),
    "handed": Handed(ask=1, seq=2, total=254, handles=((7, 1, False, 65536, True), (8, 3, True, 65536, False))),
    "reclaim": Reclaim(size_bytes=65536, younger_than=3),
    "forget": Forget(handles=((7, 1), (8, 3))),
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
    "grant beside a join": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739185a476657262a56772616e74a7726571"
        "7565737481a66e756d62657207a56772616e7401aa73697a655f6279746573ce00010000a6746f6b656e73cd012c"
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
        "07a56661756c7483a476657262a56661756c74a56572726f72ab4f75744f66427564676574a66669656c647386a46e656564cd10"
        "00a46672656500ae6f6c646573745f6172726976616cc0ad72657472795f61667465725f73cb3fe0000000000000ab7175617261"
        "6e74696e656407a8636170616369747963"
    ),
    "frame fault": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a56661756c7483a476657262a56661756c74a56572726f72ab4f"
        "75744f66427564676574a66669656c647386a46e656564cd1000a46672656500ae6f6c646573745f6172726976616cc0ad726574"
        "72795f61667465725f73cb3fe0000000000000ab71756172616e74696e656407a8636170616369747963"
    ),
    "hello": ("83a476657262a568656c6c6fa17601a773657373696f6ea173"),
    "welcome": (
        "87a476657262a777656c636f6d65a6646576696365a6686f73743a30a565706f636803ad6772616e756c655f6279746573ce0001"
        "0000ae63617061636974795f6279746573ce20000000a76c656173655f73cb403e000000000000ab6865617274626561745f73cb"
        "4014000000000000"
    ),
    "redeem": ("83a476657262a672656465656da361736b01a373657102"),
    "redeem known": ("84a476657262a672656465656da361736b01a373657102a56b6e6f776e91930701c3"),
    "heartbeat": ("81a476657262a9686561727462656174"),
    "handed": (
        "85a476657262a668616e646564a361736b01a373657102a5746f74616cccfea768616e646c657392950701c2ce00010000c39508"
        "03c3ce00010000c2"
    ),
    "reclaim": ("83a476657262a77265636c61696daa73697a655f6279746573ce00010000ac796f756e6765725f7468616e03"),
    "forget": ("82a476657262a6666f72676574a768616e646c657392920701920803"),
    "not_handed": (
        "83a476657262aa6e6f745f68616e646564a361736b01a56661756c7483a476657262a56661756c74a56572726f72ab4f75744f66"
        "427564676574a66669656c647386a46e656564cd1000a46672656500ae6f6c646573745f6172726976616cc0ad72657472795f61"
        "667465725f73cb3fe0000000000000ab71756172616e74696e656407a8636170616369747963"
    ),
    "fault": (
        "83a476657262a56661756c74a56572726f72ab51756172616e74696e6564a66669656c647381a7726573696475659182a4776861"
        "74a36d6170aa73697a655f6279746573cd1000"
    ),
    "open shareable": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739186a476657262a46f70656ea772657175"
        "65737482a66e756d62657207aa67656e65726174696f6e02a667726f7570739184a9667261676d656e747302ac7374726964655f"
        "6279746573cc80a56b65657073a472696e67a777696e646f777309aa6d61785f746f6b656e73cd03e8a674656e616e74a174b073"
        "6861726561626c655f746f6b656e7340"
    ),
    "commit snapshot": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739185a476657262a6636f6d6d6974a77265"
        "717565737481a66e756d62657207a56772616e7401a6746f6b656e7310a8736e617073686f74c3"
    ),
    "publish": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739183a476657262a77075626c697368a772"
        "65717565737481a66e756d62657207a6746f6b656e73cd012c"
    ),
    "seal": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739183a476657262a47365616ca772657175"
        "65737481a66e756d62657207a670726566697804"
    ),
    "join": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739184a476657262a46a6f696ea772657175"
        "65737481a66e756d62657207a670726566697804a6746f6b656e73cd012c"
    ),
    "leave": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739184a476657262a56c65617665a7726571"
        "7565737481a66e756d62657207a670726566697804a76f7574636f6d65ab71756172616e74696e6564"
    ),
    "close retain": (
        "86a17601a773657373696f6ea173a373657101a361636b00a565706f636803a36f70739183a476657262a5636c6f7365a7726571"
        "7565737481a66e756d62657207ad72657461696e5f746f6b656e73cd012c"
    ),
    "published": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739184a476657262a97075626c6973686564a670726566697804a6746f6b656e73cd012ca472756e739184a5"
        "67726f757000a8667261676d656e7401a5737461727402a5636f756e74cd012c"
    ),
    "sealed": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739183a476657262a67365616c6564a670726566697804a472756e739184a567726f757000a8667261676d65"
        "6e7401a5737461727402a5636f756e74cd012c"
    ),
    "sealed not": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739184a476657262a67365616c6564a670726566697804a472756e739184a567726f757000a8667261676d65"
        "6e7401a5737461727402a5636f756e74cd012ca77265667573616ca462757379"
    ),
    "joined": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739184a476657262a66a6f696e6564a670726566697804a6746f6b656e73cd012ba472756e739184a567726f"
        "757000a8667261676d656e7401a5737461727402a5636f756e74cd012c"
    ),
    "left": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739181a476657262a46c656674"
    ),
    "closed retained": (
        "85a17601a773657373696f6ea173a373657101a565706f636803a7726573756c74739182a77265717565737481a66e756d626572"
        "07a7616e73776572739183a476657262a6636c6f736564a670726566697804a6746f6b656e73cd012c"
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
