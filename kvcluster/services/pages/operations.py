"""Groups of operations, as messages, done on host pages: what `services.operations` is for a device."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from kvcluster.errors import KvClusterError, NotAllowed, OutOfBudget
from kvcluster.ids import GrantId, RequestId
from kvcluster.index.identity import root_for
from kvcluster.paged.counts import generation_of, number_of
from kvcluster.services.pages.memory import PageMemory
from kvcluster.services.pages.open_sequences import PageOpening
from kvcluster.services.work import Work
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import fault_of

ALONE = (wire.GiveBack, wire.Fork, wire.Permute, wire.Share)
BACK = (wire.Drop, wire.Close)


class PageOperations:
    """Performs groups on `memory`, and counts: `requests` opened, `refusals` by the error's name."""

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory
        self.requests = 0
        self.refusals: Counter[str] = Counter()

    def perform(self, request: RequestId, ops: Sequence[wire.Operation], work: Work) -> tuple[wire.GroupResult, Work]:
        """One group, whole or not at all: the result, and the work that is kept of it."""
        key = ops[0].request
        try:
            _check(ops)
            answers, work = self._done(request, ops, work)
        except KvClusterError as refusal:
            self.refusals[type(refusal).__name__] += 1
            return wire.GroupResult(request=key, fault=fault_of(refusal)), Work()
        work.follow()
        return wire.GroupResult(request=key, answers=answers), work

    def _done(
        self, request: RequestId, ops: Sequence[wire.Operation], work: Work
    ) -> tuple[tuple[wire.Answer, ...], Work]:
        """What the group answers, and its work; if need be without a block that was to be copied from.

        While it is copied from it cannot go, so that with it a group may take one block more than there is.
        """
        answers: list[wire.Answer] = []
        try:
            return self._whole(request, ops, work, answers), work
        except OutOfBudget:
            whole_tokens = self._found_whole(answers)
            if whole_tokens is None:
                raise
        again = Work(work.most_runs, work.known)
        return self._whole(request, ops, again, [], most_tokens=whole_tokens), again

    def _found_whole(self, answers: Sequence[wire.Answer]) -> int | None:
        """The tokens of the whole blocks that were found, where tokens of another one were found too."""
        size = self._memory.pool.shape.block_size
        match answers:
            case [wire.Paged(tokens=tokens), *_] if tokens % size:
                return tokens // size * size
        return None

    def _whole(
        self,
        request: RequestId,
        ops: Sequence[wire.Operation],
        work: Work,
        answers: list[wire.Answer],
        *,
        most_tokens: int = sys.maxsize,
    ) -> tuple[wire.Answer, ...]:
        with work.txn:
            for op in ops:
                if isinstance(op, wire.Find):
                    answers.append(self._find(request, op, work, most_tokens))
                else:
                    answers.append(self._perform(request, op, work))
            work.txn.keep()
        return tuple(answers)

    def _find(self, request: RequestId, op: wire.Find, work: Work, most_tokens: int) -> wire.Answer:
        found = self._memory.find(request, op.token_ids, work, most_tokens=most_tokens)
        work.naming(found.blocks)
        return wire.Paged(start=0, blocks=_keys(found.blocks), known=found.tokens, tokens=found.tokens)

    def _perform(self, request: RequestId, op: wire.Operation, work: Work) -> wire.Answer:
        match op:
            case wire.Open() | wire.Drop() | wire.Close():
                return self._begin_or_end(request, op, work)
            case wire.Grant() | wire.GiveBack() | wire.Commit():
                return self._spend(request, op, work)
            case wire.Fork() | wire.Permute() | wire.Share():
                return self._branch(request, op)
            case _:
                raise NotAllowed(reason=f"{op.verb} is for a device, and these are host pages")

    def _begin_or_end(self, request: RequestId, op: wire.Open | wire.Drop | wire.Close, work: Work) -> wire.Answer:
        memory = self._memory
        match op:
            case wire.Open():
                arrival = memory.open(request, self._opening(request, op))
                self.requests += 1
                return wire.Opened(arrival=arrival)
            case wire.Drop():
                memory.drop(request, work, clean=op.outcome == "clean")
                return wire.Released(size_bytes=0)
            case wire.Close():
                retain_tokens, token_ids, told_tokens = op.retain_tokens, op.token_ids, op.told_tokens
                memory.close(request, work, retain_tokens=retain_tokens, token_ids=token_ids, told_tokens=told_tokens)
                return wire.Closed()

    def _spend(self, request: RequestId, op: wire.Grant | wire.GiveBack | wire.Commit, work: Work) -> wire.Answer:
        spending = self._memory.spending
        match op:
            case wire.Grant():
                spending.grant(GrantId(request, op.grant), op.tokens, work)
                return wire.Granted(expires_s=self._memory.books.governor.grant_s)
            case wire.GiveBack():
                spending.give_back(GrantId(request, op.grant))
                return wire.Returned()
            case wire.Commit():
                growth = spending.commit(GrantId(request, op.grant), op.tokens, work)
                work.naming(growth.blocks)
                return wire.Paged(start=growth.start, blocks=_keys(growth.blocks))

    def _branch(self, request: RequestId, op: wire.Fork | wire.Permute | wire.Share) -> wire.Answer:
        branching = self._memory.branching
        match op:
            case wire.Fork():
                children = [RequestId(request.session, key.number, key.generation) for key in op.children]
                return wire.Forked(arrivals=branching.fork(request, children, op.tokens))
            case wire.Permute():
                if op.request not in op.members:
                    raise NotAllowed(reason="the request that is permuted is one of the members")
                members = [RequestId(request.session, key.number, key.generation) for key in op.members]
                branching.permute(members, op.parents, op.tokens)
                return wire.Permuted()
            case wire.Share():
                tokens = branching.share(request, op.tokens, op.token_ids, told_tokens=op.told_tokens)
                return wire.Shared(tokens=tokens)

    def _opening(self, request: RequestId, op: wire.Open) -> PageOpening:
        token_bytes = self._memory.pool.shape.token_bytes
        if [(group.fragments, group.stride_bytes) for group in op.groups] != [(1, token_bytes)]:
            raise NotAllowed(reason=f"these pages keep {token_bytes} bytes a token: they are another model's")
        after = RequestId(request.session, op.after.number, op.after.generation) if op.after else None
        return PageOpening(op.max_tokens, op.tenant, after, root_for(op.tenant, op.cache_root))


def _keys(blocks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple([(number_of(block), generation_of(block)) for block in blocks])


def _check(ops: Sequence[wire.Operation]) -> None:
    """What may stand beside what. Raises NotAllowed."""
    for place, op in enumerate(ops):
        if isinstance(op, ALONE) and len(ops) > 1:
            raise NotAllowed(reason=f"{op.verb} stands alone in its group")
        if isinstance(op, wire.Find) and place:
            raise NotAllowed(reason="find is the first operation of its group")
        if isinstance(op, wire.Close) and place < len(ops) - 1:
            raise NotAllowed(reason="close is the last operation of its group")
    takes = any(isinstance(op, wire.Commit | wire.Find | wire.Grant) for op in ops)
    if takes and any(isinstance(op, BACK) for op in ops):
        raise NotAllowed(reason="a group takes blocks or gives blocks back, not both")
