"""What is found of a prompt, what a fork shares, and that nobody's rows change by it: one verb at a time."""

from __future__ import annotations

import pytest

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import KvClusterError, NotAllowed, OutOfBudget
from kvcluster.wire import messages as wire
from tests.pages.frames import Asker, Client, PageHost, page_host
from tests.pages.world import OTHER, PITCH_BYTES, SIZE

LONG = list(range(20, 20 + 4 * SIZE))


def written(host: PageHost, client: Client, token_ids: list[int], *, retain: bool = True) -> Asker:
    """A sequence that computed these tokens, row i holding token i; ended, and retained, where nobody says not."""
    sequence = client.open(max_tokens=len(token_ids))
    joined = sequence.find(token_ids)
    for entry in range(joined // SIZE, len(sequence.blocks)):
        host.write(sequence.blocks[entry], [float(token) for token in token_ids[entry * SIZE : (entry + 1) * SIZE]])
    if retain:
        sequence.close(len(token_ids))
    return sequence


@pytest.mark.parametrize("common", range(len(LONG) + 1))
def test_a_prompt_finds_all_that_it_has_in_common_with_another_but_its_last_token(common: int) -> None:
    with page_host() as host:
        client = host.client()
        written(host, client, LONG)
        prompt = [*LONG[:common], *[1] * (len(LONG) - common)]
        sequence = client.open()
        assert sequence.find(prompt) == min(common, len(prompt) - 1)
        rows = [row for number in sequence.blocks for row in host.rows(number)]
        assert rows[: min(common, len(LONG) - 1)] == LONG[: min(common, len(LONG) - 1)]
        assert host.blocks("request") == len(sequence.blocks) - min(common, len(prompt) - 1) // SIZE


def test_nobody_finds_what_is_not_told_to_be_written() -> None:
    with page_host() as host:
        client = host.client()
        sequence = client.open()
        sequence.find(LONG)
        assert client.open().find(LONG) == 0
        assert sequence.share(2 * SIZE + 1) == 2 * SIZE
        assert client.open().find(LONG) == 2 * SIZE


def test_nothing_is_found_under_another_root_without_one_or_by_another_tenant() -> None:
    with page_host() as host:
        written(host, host.client("one"), LONG)
        assert host.client("one").open().find(LONG) == len(LONG) - 1
        assert host.client("one").open(root=OTHER).find(LONG) == 0
        assert host.client("one").open(root=b"").find(LONG) == 0
        assert host.client("two").open().find(LONG) == 0


def test_a_block_that_is_found_is_not_written_by_whoever_goes_on_from_its_middle() -> None:
    with page_host() as host:
        client = host.client()
        written(host, client, LONG)
        sequence = client.open()
        assert sequence.find([*LONG[:6], 1, 2]) == 6
        host.write(sequence.blocks[1], [20.0 + 4, 20.0 + 5, 1.0, 2.0])
        again = client.open()
        assert again.find(LONG) == len(LONG) - 1
        assert [row for number in again.blocks for row in host.rows(number)][:-1] == LONG[:-1]


def test_what_was_found_and_begun_stays_as_it_was_written_when_it_is_shared_and_goes_on() -> None:
    with page_host() as host:
        client = host.client()
        written(host, client, LONG)
        sequence = client.open()
        prompt = [*LONG[:6], 1, 2]
        sequence.find(prompt)
        host.write(sequence.blocks[1], [24.0, 25.0, 1.0, 2.0])
        assert sequence.share(2 * SIZE) == 2 * SIZE
        before = list(sequence.blocks)
        sequence.grow(3 * SIZE)
        assert sequence.blocks[:2] == before
        assert host.rows(sequence.blocks[1]) == [24.0, 25.0, 1.0, 2.0]


def test_two_that_computed_the_same_leave_it_once_and_what_follows_is_found() -> None:
    with page_host() as host:
        client = host.client()
        first, second = client.open(), client.open()
        first.find(LONG[: 2 * SIZE])
        second.find(LONG)
        first.close(2 * SIZE)
        second.close(4 * SIZE)
        assert host.blocks("retained") == 4
        assert client.open().find([*LONG, 1]) == 4 * SIZE


def test_nothing_in_use_is_evicted_though_it_was_computed_twice() -> None:
    """CASES 39: an entry in use behind one that nobody uses was what "evicted" a block in use."""
    with page_host(9) as host:
        client = host.client()
        first, second = client.open(max_tokens=5 * SIZE), client.open(max_tokens=5 * SIZE)
        first.find(LONG[: 2 * SIZE])
        second.find(LONG)
        host.write(second.blocks[3], [1.0, 2.0, 3.0, 4.0])
        first.close(2 * SIZE)
        second.share(4 * SIZE)
        third = client.open(max_tokens=4 * SIZE)
        third.grow(4 * SIZE)
        with pytest.raises(OutOfBudget):
            client.open(max_tokens=4 * SIZE).grow(1)
        assert host.seen().evictions == 0
        assert not {*second.blocks} & {*third.blocks}
        assert host.rows(second.blocks[3]) == [1.0, 2.0, 3.0, 4.0]


def test_a_sequence_is_nobodys_child_twice_and_a_fork_is_all_or_nothing() -> None:
    with page_host() as host:
        client = host.client()
        parent = client.open()
        parent.grow(6)
        before = host.picture()
        key, other = client.next_key(), client.next_key()
        for op in (
            parent.fork_op(6, key, key),
            parent.fork_op(6, other, parent.key),
            parent.fork_op(9, other),
            wire.Fork(request=other, children=(key,), tokens=1),
        ):
            with pytest.raises(KvClusterError):
                client.ask(op)
            assert host.picture() == before


def test_the_last_of_a_fork_to_write_keeps_the_block_and_pays_for_it_again() -> None:
    with page_host(16) as host:
        client = host.client()
        parent = client.open()
        parent.grow(6)
        host.write(parent.blocks[1], [1.0, 2.0])
        shared = list(parent.blocks)
        one, two = parent.fork(6, 2)
        assert (host.blocks("request"), host.blocks("prefix"), host.blocks("free")) == (0, 2, 14)
        for child in (one, two):
            child.grow(7)
            assert child.blocks[0] == shared[0]
            assert host.rows(child.blocks[1])[:2] == [1.0, 2.0]
        assert len({one.blocks[1], two.blocks[1], shared[1]}) == 3
        parent.grow(7)
        assert parent.blocks == shared
        assert (host.blocks("request"), host.blocks("prefix"), host.blocks("free")) == (3, 1, 12)


def test_whoever_dies_with_a_block_that_it_kept_of_a_fork_leaves_it_in_quarantine_until_it_is_gone() -> None:
    with page_host(16) as host:
        client = host.client()
        parent = client.open()
        parent.grow(6)
        [child] = parent.fork(6)
        child.close()
        parent.grow(7)
        host.service.disconnected(client.session)
        assert (host.blocks("quarantine"), host.blocks("prefix"), host.blocks("free")) == (1, 1, 14)
        host.service.gone(client.session)
        assert host.blocks("free") == 16


def test_a_fork_below_what_was_written_takes_nothing_of_the_rest_along() -> None:
    with page_host() as host:
        client = host.client()
        parent = client.open()
        parent.find(LONG)
        parent.share(len(LONG))
        [child] = parent.fork(6)
        assert host.blocks("retained") == 2
        parent.grow(2 * SIZE)
        parent.close(2 * SIZE, [1, 2])  # what follows the six tokens is another text now
        assert child.share(6) == SIZE
        found = client.open()
        assert found.find([*LONG[:6], 1, 2, 3]) == 2 * SIZE
        assert client.open().find(LONG) == len(LONG) - 1


def test_beams_move_their_tables_and_pay_for_what_only_one_of_them_has_when_they_write() -> None:
    with page_host(16) as host:
        client = host.client()
        first = client.open()
        first.grow(6)
        beams = [first, *first.fork(6, 2)]
        for beam in beams:
            beam.grow(7)
        free = host.blocks("free")
        client.ask(first.permute_op(beams, [1, 1, 0], 7))
        assert host.blocks("free") == free + 1
        assert host.blocks("request") == 0
        for beam in beams:
            beam.grow(8)
        assert host.blocks("request") == 3
        assert host.blocks("free") == free


def test_beams_of_two_tenants_or_roots_or_beyond_their_room_are_refused() -> None:
    with page_host() as host:
        client = host.client()
        one, two, short = client.open(), client.open(root=OTHER), client.open(max_tokens=4)
        for sequence in (one, two, short):
            sequence.grow(4)
        one.grow(6)
        before = host.picture()
        for op in (
            one.permute_op([one, two], [0, 0], 4),
            one.permute_op([one, short], [0, 0], 6),
            one.permute_op([one, one], [0, 0], 4),
            one.permute_op([one], [1], 4),
            one.permute_op([one], [0, 0], 4),
        ):
            with pytest.raises(NotAllowed):
                client.ask(op)
            assert host.picture() == before


def test_what_is_found_and_not_committed_is_neither_forked_nor_permuted_nor_shared() -> None:
    with page_host() as host:
        client = host.client()
        written(host, client, LONG)
        sequence = client.open()
        client.ask(sequence.find_op(LONG[:7]))
        sequence.told = 7
        for op in (
            sequence.fork_op(4, client.next_key()),
            sequence.permute_op([sequence], [0], 4),
            sequence.share_op(4),
        ):
            with pytest.raises(NotAllowed, match=r"commit first|found more"):
                client.ask(op)
            host.seen()
        sequence.grow(7)
        assert sequence.share(4) == 4


def test_two_commits_of_one_group_begin_with_the_found_block_once() -> None:
    with page_host() as host:
        client = host.client()
        written(host, client, LONG)
        sequence = client.open()
        grown = (*sequence.grow_ops(8), *sequence.grow_ops(12))
        answers = client.ask(sequence.find_op([*LONG[:6], 1, 2]), *grown)
        [_, first, second] = [answer for answer in answers if isinstance(answer, wire.Paged)]
        assert (first.start, second.start) == (1, 2)
        assert host.rows(first.blocks[0][0])[:2] == LONG[4:6]
        assert host.blocks("request") == 2


def test_ids_that_nobody_told_or_that_are_more_than_there_is_room_for_are_refused() -> None:
    with page_host() as host:
        client = host.client()
        sequence = client.open(max_tokens=12)
        sequence.find(LONG[:8])
        before = host.picture()
        for op in (
            sequence.share_op(9),
            sequence.share_op(8, [1] * 5),
            sequence.close_op(8, [1] * 5),
            sequence.close_op(9),
            wire.Share(request=sequence.key, tokens=4, token_ids=b"odd", told_tokens=8),
            wire.Close(request=sequence.key, retain_tokens=4, token_ids=b"odd", told_tokens=8),
        ):
            with pytest.raises(NotAllowed):
                client.ask(op)
            assert host.picture() == before
        sequence.close(8)


def test_a_block_is_found_for_what_it_holds_whatever_its_owners_say() -> None:
    """CASES 33: one block, two stories of what is in it: the second one is not listed."""
    with page_host() as host:
        client = host.client()
        parent = client.open()
        parent.find(LONG[:4])
        parent.grow(8)
        [child] = parent.fork(8)
        parent.share(8, [1, 2, 3, 4])
        child.share(8, [5, 6, 7, 8])
        assert client.open().find([*LONG[:4], 1, 2, 3, 4, 9]) == 8
        assert client.open().find([*LONG[:4], 5, 6, 7, 8, 9]) == 4


def test_a_tenant_keeps_what_it_retains_below_its_quota() -> None:
    with page_host(8, Quotas({"one": 4 * PITCH_BYTES})) as host:
        one, two = host.client("one"), host.client("two")
        written(host, one, LONG)
        two.open(max_tokens=4 * SIZE).grow(4 * SIZE)
        with pytest.raises(OutOfBudget):
            two.open(max_tokens=SIZE).grow(1)
        assert host.blocks("retained") == 4
        assert one.open(max_tokens=4 * SIZE).find(LONG) == 3 * SIZE  # the last block makes room for its copy


def test_a_tenant_without_a_quota_gives_way_to_one_that_has_room_in_its_own() -> None:
    with page_host(8, Quotas({"one": 6 * PITCH_BYTES})) as host:
        one, two = host.client("one"), host.client("two")
        written(host, two, LONG[: 2 * SIZE])
        one.open(max_tokens=5 * SIZE).grow(5 * SIZE)
        two.open(max_tokens=SIZE).grow(1)
        assert (host.blocks("free"), host.blocks("retained")) == (0, 2)
        one.open(max_tokens=SIZE).grow(1)
        assert (host.blocks("free"), host.blocks("retained"), host.seen().evictions) == (0, 1, 1)
