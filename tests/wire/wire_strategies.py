"""Every message, and every error, that can be."""

from __future__ import annotations

import inspect
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kvcluster import errors
from kvcluster.errors import KvClusterError, Residue
from kvcluster.wire.messages import (
    Adopt,
    Adopted,
    Close,
    Closed,
    Commit,
    Committed,
    Complete,
    Drop,
    Fault,
    Find,
    Fork,
    Forked,
    Found,
    Frame,
    GiveBack,
    Grant,
    Granted,
    Group,
    GroupResult,
    Join,
    Joined,
    Leave,
    Left,
    OldPrefix,
    Open,
    Opened,
    Paged,
    Permute,
    Permuted,
    Publish,
    Published,
    Register,
    Registered,
    Release,
    Released,
    Reply,
    RequestKey,
    Returned,
    Run,
    Seal,
    Sealed,
    Share,
    Shared,
)
from kvcluster.wire.socket import (
    Fenced,
    Forget,
    Handed,
    Heartbeat,
    Hello,
    NotHanded,
    Reclaim,
    Redeem,
    Surrender,
    Welcome,
)
from tests.examples import examples

# No deadline: the machine may be busy. What is drawn is large, so that fewer examples do.
unhurried = settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])

counts = st.integers(0, 2**63 - 1)
positives = st.integers(1, 2**63 - 1)
integers = st.integers(-(2**63), 2**63 - 1)
names = st.text(min_size=1, max_size=64)
texts = st.text(max_size=40)
seconds = st.floats(allow_nan=False, allow_infinity=False)
keys = st.builds(RequestKey, number=counts, generation=counts)
runs = st.builds(Run, group=counts, fragment=counts, start=counts, count=positives)
token_ids = st.lists(st.binary(min_size=4, max_size=4), max_size=5).map(b"".join)
blocks = st.lists(st.tuples(counts, counts), max_size=4).map(tuple)
key_tuples = st.lists(keys, min_size=1, max_size=3).map(tuple)
run_tuples = st.lists(runs, max_size=4).map(tuple)
old_prefixes = st.lists(
    st.builds(OldPrefix, epoch=counts, prefix=positives, runs=run_tuples.filter(bool)), max_size=2
).map(tuple)
outcomes = st.sampled_from(("clean", "quarantined"))
residues = st.builds(Residue, texts, integers)
groups = st.builds(
    Group,
    fragments=positives,
    stride_bytes=positives,
    keeps=st.sampled_from(("every", "ring", "snapshot")),
    windows=counts,
)
shapes = st.lists(groups, min_size=1, max_size=3).map(tuple)

_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "int": integers,
    "float": seconds,
    "int | None": st.none() | integers,
    "tuple[Residue, ...]": st.lists(residues, max_size=3).map(tuple),
}

ERROR_CLASSES = tuple(
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, KvClusterError) and kind is not KvClusterError
)


def errors_of(kind: type[KvClusterError]) -> st.SearchStrategy[KvClusterError]:
    parameters = inspect.signature(kind).parameters.values()
    return st.builds(kind, **{parameter.name: _FIELDS[parameter.annotation] for parameter in parameters})


any_error = st.one_of(*(errors_of(kind) for kind in ERROR_CLASSES))


def stretches(request: RequestKey) -> st.SearchStrategy[list[Any]]:
    """An optional open, then other operations, all on `request`."""
    key = st.just(request)
    opened = st.builds(
        Open,
        request=key,
        groups=shapes,
        max_tokens=positives,
        tenant=st.text(max_size=64),
        shareable_tokens=counts,
        cache_root=st.binary(max_size=32),
    )
    other = st.one_of(
        st.builds(Grant, request=key, grant=counts, size_bytes=positives),
        st.builds(GiveBack, request=key, grant=counts),
        st.builds(Commit, request=key, grant=counts, tokens=positives, snapshot=st.booleans()),
        st.builds(Publish, request=key, tokens=positives),
        st.builds(Seal, request=key, prefix=positives),
        st.builds(Join, request=key, prefix=positives, tokens=positives),
        st.builds(Find, request=key, token_ids=token_ids.filter(bool)),
        st.builds(Adopt, request=key, sessions=st.just(("t", "u")), label=st.binary(min_size=16, max_size=16)),
        st.builds(Leave, request=key, prefix=positives, outcome=outcomes),
        st.builds(Register, request=key, arrival=counts, runs=run_tuples, prefixes=old_prefixes),
        st.builds(Complete, request=key),
        st.builds(Fork, request=key, children=key_tuples, tokens=positives),
        st.builds(Permute, request=key, members=key_tuples, parents=st.just((0,)), tokens=positives),
        st.builds(Share, request=key, tokens=positives, token_ids=token_ids, told_tokens=counts),
        st.builds(Drop, request=key, outcome=outcomes),
        st.builds(
            Release,
            request=key,
            runs=st.lists(runs, min_size=1, max_size=4).map(tuple),
            outcome=outcomes,
        ),
        st.builds(Close, request=key, retain_tokens=counts, token_ids=token_ids, told_tokens=counts),
    )
    several = st.lists(other, min_size=1, max_size=4)
    return st.one_of(opened.map(lambda op: [op]), several, st.builds(lambda op, rest: [op, *rest], opened, several))


def _ops(requests: list[RequestKey]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*map(stretches, requests)).map(lambda parts: tuple(op for part in parts for op in part))


operations = st.lists(keys, min_size=1, max_size=4, unique=True).flatmap(_ops)
frames = st.builds(Frame, session=names, seq=positives, ack=counts, epoch=counts, ops=operations)

faults = st.builds(
    Fault,
    error=names,
    fields=st.dictionaries(texts, st.one_of(texts, integers, seconds, st.booleans(), st.none()), max_size=3),
)
answers = st.one_of(
    st.builds(Opened, arrival=counts),
    st.builds(Granted, expires_s=seconds),
    st.builds(Returned),
    st.builds(Committed, runs=run_tuples),
    st.builds(Released, size_bytes=counts),
    st.builds(Published, prefix=positives, tokens=counts, runs=run_tuples),
    st.builds(Sealed, prefix=positives, runs=run_tuples, refusal=st.none() | texts),
    st.builds(Joined, prefix=positives, tokens=counts, runs=run_tuples),
    st.builds(Found, known=counts, prefix=counts, tokens=counts, runs=run_tuples),
    st.builds(
        Adopted, what=st.sampled_from(["adopted", "living"]), token_ids=token_ids, shared=run_tuples, told=counts
    ),
    st.builds(Paged, start=counts, blocks=blocks, known=counts, tokens=counts),
    st.builds(Forked, arrivals=st.lists(counts, max_size=3).map(tuple)),
    st.builds(Permuted),
    st.builds(Shared, tokens=counts),
    st.builds(Left),
    st.builds(Registered, arrival=counts),
    st.builds(Closed, prefix=st.none() | positives),
)
results = st.builds(
    GroupResult, request=keys, answers=st.lists(answers, max_size=4).map(tuple), fault=st.none() | faults
)
replies = st.builds(
    Reply,
    session=names,
    seq=positives,
    epoch=counts,
    results=st.lists(results, max_size=3).map(tuple),
    fault=st.none() | faults,
)

socket_messages = st.one_of(
    st.builds(Hello, session=names),
    st.builds(
        Welcome,
        device=texts,
        epoch=counts,
        granule_bytes=positives,
        capacity_bytes=positives,
        lease_s=seconds,
        heartbeat_s=seconds,
    ),
    st.builds(
        Redeem, ask=positives, seq=positives, known=st.lists(st.tuples(counts, counts, st.booleans())).map(tuple)
    ),
    st.builds(Heartbeat),
    st.builds(
        Handed,
        ask=positives,
        seq=positives,
        total=counts,
        handles=st.lists(st.tuples(counts, counts, st.booleans(), positives, st.booleans()), max_size=4).map(tuple),
    ),
    st.builds(Reclaim, size_bytes=positives, younger_than=counts),
    st.builds(Forget, handles=st.lists(st.tuples(counts, counts), min_size=1, max_size=4).map(tuple)),
    st.builds(NotHanded, ask=positives, fault=faults),
    st.builds(Surrender),
    st.builds(Fenced, session=names),
    faults,
)
