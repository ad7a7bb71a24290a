"""Groups of operations, as messages, done on one device's memory.

Decodes what a group asks, calls the verbs of `services.device_memory`, `services.spending` and `services.sharing` in
one transaction, and encodes what came of it: an answer an operation, or one fault and nothing done. What may stand
beside what is checked first. Knows nothing of sessions, replies or tickets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvcluster.errors import KvClusterError, NotAllowed, NotShareable
from kvcluster.geometry.residency import GroupShape, Keeps
from kvcluster.geometry.shareability import Refusal
from kvcluster.ids import GrantId, RequestId
from kvcluster.services.device_memory import DeviceMemory, Opening
from kvcluster.services.encoding import window_runs, wire_runs
from kvcluster.services.registering import Registration
from kvcluster.services.work import Work
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import fault_of

Verb = Callable[[RequestId, Any, Work], wire.Answer]

ALONE = frozenset({wire.GiveBack, wire.Publish, wire.Seal, wire.Adopt, wire.Register, wire.Complete})
FIRST = frozenset({wire.Join, wire.Find})
TAKES = frozenset({wire.Commit, *FIRST})
BACK = frozenset({wire.Release, wire.Leave, wire.Close})


class Operations:
    """Performs groups on `memory`, and counts: `requests` opened, `refusals` by the error's name, `sharing_refusals` by
    their kind."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.requests = 0
        self.refusals: Counter[str] = Counter()
        self.sharing_refusals: Counter[str] = Counter()
        self._granted = wire.Granted(expires_s=memory.books.governor.grant_s)
        self._verbs: dict[type[wire.Message], Verb] = {  # by the exact class: to ask isinstance costs 0.4 us each
            wire.Open: self._open,
            wire.Find: self._find,
            wire.Grant: self._grant,
            wire.GiveBack: self._give_back,
            wire.Commit: self._commit,
            wire.Release: self._release,
            wire.Publish: self._publish,
            wire.Seal: self._seal,
            wire.Join: self._join,
            wire.Leave: self._leave,
            wire.Close: self._close,
            wire.Adopt: self._adopt,
            wire.Register: self._register,
            wire.Complete: self._complete,
        }

    def perform(self, request: RequestId, ops: Sequence[wire.Operation], work: Work) -> tuple[wire.GroupResult, Work]:
        """One group, whole or not at all: the result, and the work that is kept of it."""
        key = ops[0].request
        try:
            with work.txn:
                _check(ops)
                answers = tuple(self._perform(request, op, work) for op in ops)
                work.txn.keep()
        except KvClusterError as refusal:
            self._count(refusal)
            return wire.GroupResult(request=key, fault=fault_of(refusal)), Work()
        work.follow()
        return wire.GroupResult(request=key, answers=answers), work

    def _count(self, refusal: KvClusterError) -> None:
        self.refusals[type(refusal).__name__] += 1
        if isinstance(refusal, NotShareable):
            self.sharing_refusals[str(refusal.kind)] += 1

    def _perform(self, request: RequestId, op: wire.Operation, work: Work) -> wire.Answer:
        perform = self._verbs.get(type(op))
        if perform is None:
            raise NotAllowed(reason=f"{op.verb} is for host pages, and this is a device")
        return perform(request, op, work)

    def _open(self, request: RequestId, op: wire.Open, work: Work) -> wire.Answer:
        arrival = self._memory.open(request, _opening(request, op))
        self.requests += 1
        return wire.Opened(arrival=arrival)

    def _close(self, request: RequestId, op: wire.Close, work: Work) -> wire.Answer:
        retain_tokens, told_tokens = op.retain_tokens, op.told_tokens
        left = self._memory.close(
            request, work, retain_tokens=retain_tokens, token_ids=op.token_ids, told_tokens=told_tokens
        )
        return wire.Closed(prefix=left.prefix.number, tokens=left.tokens) if left else wire.Closed()

    def _grant(self, request: RequestId, op: wire.Grant, work: Work) -> wire.Answer:
        self._memory.spending.grant(GrantId(request, op.grant), op.size_bytes, work, tokens=op.tokens)
        return self._granted

    def _give_back(self, request: RequestId, op: wire.GiveBack, work: Work) -> wire.Answer:
        self._memory.spending.give_back(GrantId(request, op.grant))
        return wire.Returned()

    def _commit(self, request: RequestId, op: wire.Commit, work: Work) -> wire.Answer:
        identity = GrantId(request, op.grant)
        return wire.Committed(
            runs=wire_runs(self._memory.spending.commit(identity, op.tokens, work, snapshot=op.snapshot))
        )

    def _release(self, request: RequestId, op: wire.Release, work: Work) -> wire.Answer:
        unmapped = op.outcome == "clean"
        return wire.Released(size_bytes=self._memory.release(request, window_runs(op.runs), work, unmapped=unmapped))

    def _register(self, request: RequestId, op: wire.Register, work: Work) -> wire.Answer:
        return wire.Registered(arrival=self._memory.registering.register(request, _registration(op)))

    def _complete(self, request: RequestId, op: wire.Complete, work: Work) -> wire.Answer:
        self._memory.registering.complete(request.session, op.kept_bytes)
        return wire.Registered()

    def _find(self, request: RequestId, op: wire.Find, work: Work) -> wire.Answer:
        found = self._memory.finder.find(self._memory.requests.find(request), op.token_ids, work)
        if found.joining is None:
            return wire.Found(known=found.known)
        prefix, part, tokens = found.joining.prefix, found.joining.part, found.joining.tokens
        return wire.Found(known=found.known, prefix=prefix.number, tokens=tokens, runs=wire_runs(part.runs))

    def _adopt(self, request: RequestId, op: wire.Adopt, work: Work) -> wire.Adopted:
        found = self._memory.keeping.adopt(self._memory.requests.find(request), op.sessions, op.label, work)
        return wire.Adopted(
            what=found.what,
            tokens=found.tokens,
            computed=found.computed,
            token_ids=found.token_ids,
            prefixes=found.prefixes,
            shared=wire_runs(found.shared),
            runs=wire_runs(found.runs),
            told=found.told,
            arrival=found.arrival,
        )

    def _publish(self, request: RequestId, op: wire.Publish, work: Work) -> wire.Answer:
        prefix = self._memory.sharing.publish(self._memory.requests.find(request), op.tokens, work)
        return wire.Published(prefix=prefix.number, tokens=op.tokens, runs=wire_runs(prefix.runs))

    def _seal(self, request: RequestId, op: wire.Seal, work: Work) -> wire.Answer:
        sealing = self._memory.sharing.seal(self._memory.requests.find(request), op.prefix, work)
        self.sharing_refusals.update([str(Refusal.NOT_SEALED)] if sealing.refusal else [])
        return wire.Sealed(prefix=op.prefix, runs=wire_runs(sealing.prefix.runs), refusal=sealing.refusal)

    def _join(self, request: RequestId, op: wire.Join, work: Work) -> wire.Answer:
        joining = self._memory.sharing.join(self._memory.requests.find(request), op.prefix, op.tokens, work)
        return wire.Joined(prefix=op.prefix, tokens=joining.tokens, runs=wire_runs(joining.part.runs))

    def _leave(self, request: RequestId, op: wire.Leave, work: Work) -> wire.Answer:
        reservation = self._memory.requests.find(request)
        self._memory.keeping.released(request)
        unmapped = op.outcome == "clean"
        if not self._memory.registering.leave(reservation, op.prefix, work, unmapped=unmapped):
            self._memory.sharing.leave(reservation, op.prefix, work, unmapped=unmapped)
        return wire.Left()


def _opening(request: RequestId, op: wire.Open) -> Opening:
    try:
        groups = tuple(GroupShape(g.fragments, g.stride_bytes, Keeps(g.keeps), g.windows) for g in op.groups)
    except ValueError as wrong:
        raise NotAllowed(reason=str(wrong)) from wrong
    after = RequestId(request.session, op.after.number, op.after.generation) if op.after else None
    return Opening(groups, op.max_tokens, after, op.tenant, op.shareable_tokens, op.cache_root)


def _registration(op: wire.Register) -> Registration:
    prefixes = tuple((old.epoch, old.prefix, window_runs(old.runs)) for old in op.prefixes)
    return Registration(op.arrival, window_runs(op.runs), prefixes)


def _check(ops: Sequence[wire.Operation]) -> None:
    """What may stand beside what: an operation that cannot be undone, or ends the request, stands last or alone.

    Raises:
        NotAllowed: it does not.
    """
    if len(ops) == 1:
        return
    kinds = [type(op) for op in ops]
    for kind, op in zip(kinds, ops, strict=True):
        if kind in ALONE:
            raise NotAllowed(reason=f"{op.verb} stands alone in its group")
    if wire.Close in kinds[:-1]:
        raise NotAllowed(reason="close is the last operation of its group")
    for kind, op in zip(kinds[1:], ops[1:], strict=True):
        if kind in FIRST:
            raise NotAllowed(reason=f"{op.verb} is the first operation of its group")
    if not (TAKES.isdisjoint(kinds) or BACK.isdisjoint(kinds)):
        raise NotAllowed(reason="a group takes windows or gives windows back, not both")
