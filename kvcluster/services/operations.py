"""Groups of operations, as messages, done on one device's memory.

Decodes what a group asks, calls the verbs of `services.device_memory` in one transaction, and encodes what came of
it: an answer an operation, or one fault and nothing done. What may stand beside what is checked first. Knows nothing
of sessions, replies or tickets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvcluster.errors import KvClusterError, NotAllowed
from kvcluster.geometry.residency import GroupShape
from kvcluster.ids import GrantId, RequestId
from kvcluster.services.device_memory import DeviceMemory
from kvcluster.services.encoding import window_runs, wire_runs
from kvcluster.services.work import Work
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import fault_of


class Operations:
    """Performs groups on `memory`, and counts: `requests` opened, and `refusals` by the error's name."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.requests = 0
        self.refusals: Counter[str] = Counter()

    def perform(self, session: str, ops: Sequence[wire.Operation], *, runs_left: int) -> tuple[wire.GroupResult, Work]:
        """One group, whole or not at all. Its answers name at most `runs_left` runs of windows."""
        key = ops[0].request
        request = RequestId(session, key.number, key.generation)
        work = Work()
        try:
            with work.txn:
                _check(ops)
                answers = tuple(self._perform(request, op, work) for op in ops)
                _check_room(answers, runs_left)
                work.txn.keep()
        except KvClusterError as refusal:
            self.refusals[type(refusal).__name__] += 1
            return wire.GroupResult(request=key, fault=fault_of(refusal)), Work()
        work.follow()
        return wire.GroupResult(request=key, answers=answers), work

    def _perform(self, request: RequestId, op: wire.Operation, work: Work) -> wire.Answer:
        memory = self._memory
        match op:
            case wire.Open():
                return self._open(request, op)
            case wire.Grant():
                memory.grant(GrantId(request, op.grant), op.size_bytes, work)
                return wire.Granted(expires_s=memory.governor.grant_s)
            case wire.GiveBack():
                memory.give_back(GrantId(request, op.grant))
                return wire.Returned()
            case wire.Commit():
                return wire.Committed(runs=wire_runs(memory.commit(GrantId(request, op.grant), op.tokens, work)))
            case wire.Release():
                unmapped = op.outcome == "clean"
                return wire.Released(size_bytes=memory.release(request, window_runs(op.runs), work, unmapped=unmapped))
            case wire.Close():
                memory.close(request, work)
                return wire.Closed()

    def _open(self, request: RequestId, op: wire.Open) -> wire.Opened:
        shape = tuple(GroupShape(group.fragments, group.stride_bytes) for group in op.groups)
        after = RequestId(request.session, op.after.number, op.after.generation) if op.after else None
        arrival = self._memory.open(request, shape, op.max_tokens, after=after)
        self.requests += 1
        return wire.Opened(arrival=arrival)


def _check(ops: Sequence[wire.Operation]) -> None:
    """What may stand beside what: an operation that cannot be undone, or ends the request, stands last or alone.

    Raises:
        NotAllowed: it does not.
    """
    kinds = [type(op) for op in ops]
    if wire.GiveBack in kinds and len(kinds) > 1:
        raise NotAllowed(reason="give_back stands alone in its group")
    if wire.Close in kinds[:-1]:
        raise NotAllowed(reason="close is the last operation of its group")
    if wire.Commit in kinds and (wire.Release in kinds or wire.Close in kinds):
        raise NotAllowed(reason="a group commits windows or gives windows back, not both")


def _check_room(answers: Sequence[wire.Answer], runs_left: int) -> None:
    if runs_of_answers(answers) > runs_left:
        raise NotAllowed(
            reason=f"the frame's reply has room for {runs_left} more runs of windows: ask in another frame"
        )


def runs_of_answers(answers: Sequence[wire.Answer]) -> int:
    """How many runs of windows the answers name."""
    return sum(len(answer.runs) for answer in answers if isinstance(answer, wire.Committed))
