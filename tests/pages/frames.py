"""A page service alone, whose clients are frames: they say what they like, twice, or nothing any more.

Nobody maps anything: whoever plays a client here says that it made its blocks read-only, and the host believes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kvcluster.budget.governor import Limits
from kvcluster.budget.quotas import Quotas
from kvcluster.errors import KvClusterError
from kvcluster.ids import new_session
from kvcluster.index.token_chain import packed
from kvcluster.paged.block_pool import BlockPool
from kvcluster.services.asks import MOST_RUNS
from kvcluster.services.device_settings import DeviceSettings, MemorySettings
from kvcluster.services.pages.service import PageService
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.testing.clock import ManualClock
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.faults import error_of
from kvcluster.wire.socket import Hello
from tests.pages.world import PITCH_BYTES, ROOT, SIZE

GROUPS = (wire.Group(fragments=1, stride_bytes=2 * 2 * 4 * 4),)
MOST_TOKENS = 16 * SIZE


class PageHost:
    """A pool of `blocks` blocks of 4 tokens, and its service, whose clock stands still."""

    def __init__(self, blocks: int, quotas: Quotas, most_runs: int = MOST_RUNS) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(blocks, SIZE, 2, 1, 4, dtype=torch.float32)
        memory = MemorySettings(blocks * PITCH_BYTES, PITCH_BYTES, 0, Limits(), quotas)
        self.service = PageService(self.pool, DeviceSettings("host-kv", memory, most_runs=most_runs), clock=self.clock)

    def client(self, tenant: str = "", *, session: str | None = None) -> Client:
        return Client(self.service, tenant, session or new_session())

    def seen(self) -> PageStatistics:
        """The figures, after an audit."""
        return self.service.audit()

    def blocks(self, kind: str) -> int:
        """What all accounts of a kind have: free, granted, request, prefix, retained or quarantine."""
        accounts = self.seen().accounts
        return sum(size for name, size in accounts.items() if name.split("/")[0].split("@")[0] == kind) // PITCH_BYTES

    def rows(self, number: int) -> list[float]:
        """What the tokens of a block hold."""
        return [float(row) for row in self.pool.tensor[number, 0, 0, 0, :, 0]]

    def write(self, number: int, values: Sequence[float]) -> None:
        """Into all rows of the block's first tokens."""
        self.pool.tensor[number, ..., : len(values), :] = torch.tensor(values)[:, None]

    def picture(self) -> tuple[object, ...]:
        """What a group that is refused must leave as it was."""
        seen = self.seen()
        return seen.accounts, seen.free_blocks, seen.open_requests, seen.listed_blocks, seen.running_requests


@contextmanager
def page_host(blocks: int = 32, quotas: Quotas | None = None, *, most_runs: int = MOST_RUNS) -> Iterator[PageHost]:
    host = PageHost(blocks, quotas or Quotas(), most_runs)
    with host.pool:
        yield host
        host.seen()


class Client:
    """A session that asks one group a frame. Its methods return the last answers, or raise what it was refused with."""

    def __init__(self, service: PageService, tenant: str, session: str) -> None:
        self.service = service
        self.tenant = tenant
        self.session = session
        service.hello(Hello(session=session), pid=1)
        self.seq = 0
        self._numbers = 0
        self._grants = 0

    def frame(self, *ops: wire.Operation, ack: int | None = None) -> bytes:
        """The next frame."""
        self.seq += 1
        ack = self.seq - 1 if ack is None else ack
        return encode(wire.Frame(session=self.session, seq=self.seq, ack=ack, epoch=1, ops=ops))

    def ask(self, *ops: wire.Operation) -> tuple[wire.Answer, ...]:
        """All answers of the last group of a frame of these operations."""
        return answers_of(self.service.frame(self.frame(*ops)))

    def open(self, *, max_tokens: int = MOST_TOKENS, root: bytes = ROOT) -> Asker:
        key = self.next_key()
        self.ask(self.open_op(key, max_tokens=max_tokens, root=root))
        return Asker(self, key)

    def open_op(self, key: wire.RequestKey, *, max_tokens: int = MOST_TOKENS, root: bytes = ROOT) -> wire.Open:
        return wire.Open(request=key, groups=GROUPS, max_tokens=max_tokens, tenant=self.tenant, cache_root=root)

    def next_key(self) -> wire.RequestKey:
        self._numbers += 1
        return wire.RequestKey(number=self._numbers)

    def next_grant(self) -> int:
        self._grants += 1
        return self._grants


class Asker:
    """One sequence of a client; its `blocks` are numbers, as the host told them."""

    def __init__(self, client: Client, key: wire.RequestKey) -> None:
        self.client = client
        self.key = key
        self.blocks: list[int] = []
        self.told = 0  # ids that the host has

    def grow(self, tokens: int) -> None:
        self._paged(self.client.ask(*self.grow_ops(tokens)))

    def find(self, token_ids: Sequence[int], *, room: int = 0) -> int:
        """Find, grant and commit; how many tokens are there."""
        answers = self.client.ask(self.find_op(token_ids), *self.grow_ops(len(token_ids) + room))
        self._paged(answers)
        self.told = len(token_ids)
        assert isinstance(answers[0], wire.Paged)
        return answers[0].tokens

    def share(self, tokens: int, token_ids: Sequence[int] = ()) -> int:
        [answer] = self.client.ask(self.share_op(tokens, token_ids))
        assert isinstance(answer, wire.Shared)
        self.told += len(token_ids)
        return answer.tokens

    def fork(self, tokens: int, count: int = 1) -> list[Asker]:
        children = [Asker(self.client, self.client.next_key()) for _ in range(count)]
        self.client.ask(self.fork_op(tokens, *[child.key for child in children]))
        self.blocks, self.told = self.blocks[: -(-tokens // SIZE)], min(self.told, tokens)
        for child in children:
            child.blocks, child.told = list(self.blocks), self.told
        return children

    def drop(self, outcome: str = "clean") -> None:
        self.client.ask(wire.Drop.model_validate({"request": self.key, "outcome": outcome}))
        self.blocks = []

    def close(self, retain_tokens: int = 0, token_ids: Sequence[int] = ()) -> None:
        self.client.ask(self.close_op(retain_tokens, token_ids))

    # --- operations -------------------------------------------------------------------------------------------------

    def grant_op(self, tokens: int, number: int | None = None) -> wire.Grant:
        number = self.client.next_grant() if number is None else number
        return wire.Grant(request=self.key, grant=number, size_bytes=PITCH_BYTES, tokens=tokens)

    def commit_op(self, tokens: int, number: int) -> wire.Commit:
        return wire.Commit(request=self.key, grant=number, tokens=tokens)

    def grow_ops(self, tokens: int) -> tuple[wire.Operation, ...]:
        number = self.client.next_grant()
        return self.grant_op(tokens, number), self.commit_op(tokens, number)

    def find_op(self, token_ids: Sequence[int]) -> wire.Find:
        return wire.Find(request=self.key, token_ids=packed(token_ids))

    def share_op(self, tokens: int, token_ids: Sequence[int] = ()) -> wire.Share:
        return wire.Share(request=self.key, tokens=tokens, token_ids=packed(token_ids), told_tokens=self.told)

    def fork_op(self, tokens: int, *children: wire.RequestKey) -> wire.Fork:
        return wire.Fork(request=self.key, children=children, tokens=tokens)

    def permute_op(self, members: Sequence[Asker], parents: Sequence[int], tokens: int) -> wire.Permute:
        keys = tuple(member.key for member in members)
        return wire.Permute(request=self.key, members=keys, parents=tuple(parents), tokens=tokens)

    def close_op(self, retain_tokens: int = 0, token_ids: Sequence[int] = ()) -> wire.Close:
        return wire.Close(
            request=self.key, retain_tokens=retain_tokens, token_ids=packed(token_ids), told_tokens=self.told
        )

    def _paged(self, answers: Sequence[wire.Answer]) -> None:
        for answer in answers:
            if isinstance(answer, wire.Paged):
                self.blocks = [*self.blocks[: answer.start], *[number for number, _ in answer.blocks]]


def answers_of(reply: bytes) -> tuple[wire.Answer, ...]:
    """Of the last group. Raises what the frame, or any group of it, was refused with."""
    decoded = decode_reply(reply)
    for fault in [decoded.fault, *(result.fault for result in decoded.results)]:
        if fault:
            raise error_of(fault)
    return decoded.results[-1].answers


def refusal_of(reply: bytes) -> KvClusterError | None:
    """The same as a value."""
    try:
        answers_of(reply)
    except KvClusterError as refusal:
        return refusal
    return None
