"""The log of births and deaths: bounded, each told once however often it is told, and whole after bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcluster.services.chronicle import (
    MOST_DEATHS,
    MOST_NAMES,
    Chronicle,
    Death,
    Told,
    Who,
    decode_told,
    encode_told,
)

DEVICE = Who("device", "host:0", "node", 17, epoch=5)


def death(who: Who = DEVICE, cause: str = "it was killed by SIGKILL", told_by: str = "process 1") -> Death:
    return Death(who, 9.0, cause, told_by)


def test_a_death_that_several_notice_is_one_and_the_first_word_counts() -> None:
    chronicle = Chronicle()
    chronicle.died(death(told_by="process 1"))
    chronicle.died(death(cause="its process ended", told_by="process 2"))
    assert chronicle.told().deaths == (death(told_by="process 1"),)


def test_who_knows_the_cause_is_believed_after_one_who_did_not() -> None:
    chronicle = Chronicle()
    chronicle.died(death(cause="", told_by="process 1"))
    chronicle.died(death(told_by="process 2"))
    assert chronicle.told().deaths == (death(told_by="process 2"),)


def test_the_next_process_of_a_name_is_another_life() -> None:
    chronicle = Chronicle()
    next_one = replace(DEVICE, pid=18, epoch=6)
    for at_s, who in enumerate((DEVICE, DEVICE, next_one)):
        chronicle.born(who, at_s=at_s)
    chronicle.died(death(next_one))
    assert len(chronicle.told().deaths) == 2
    born = chronicle.told().birth_of("device", "host:0", "node")
    assert born is not None
    assert (born.who, born.at_s, born.number) == (next_one, 2.0, 2)


def test_a_death_that_is_told_after_the_next_birth_is_that_of_the_epoch_it_names() -> None:
    chronicle = Chronicle()
    chronicle.born(DEVICE, at_s=1.0)
    chronicle.born(replace(DEVICE, pid=18, epoch=6), at_s=2.0)
    assert not chronicle.has_left(DEVICE)
    assert chronicle.told().deaths == (Death(DEVICE, 2.0, "", "its successor"),)
    chronicle.died(death(replace(DEVICE, pid=0)))
    assert chronicle.told().deaths == (death(DEVICE),)


def test_a_death_without_a_process_id_is_that_of_the_last_birth() -> None:
    chronicle = Chronicle()
    worker = Who("request", "job/0", "node", 31)
    chronicle.born(worker, at_s=1.0)
    chronicle.died(death(replace(worker, pid=0)))
    assert chronicle.told().deaths == (death(worker),)


def test_one_that_leaves_as_it_is_meant_to_is_no_death_and_neither_is_one_that_follows_it() -> None:
    chronicle = Chronicle()
    chronicle.born(DEVICE, at_s=1.0)
    assert chronicle.lives(DEVICE)
    chronicle.left(replace(DEVICE, pid=18, epoch=6))
    assert chronicle.lives(DEVICE)
    chronicle.left(DEVICE)
    assert not chronicle.lives(DEVICE)
    assert chronicle.has_left(DEVICE)
    chronicle.born(replace(DEVICE, pid=18, epoch=6), at_s=2.0)
    assert chronicle.told().deaths == ()


def test_a_birth_that_was_never_told_is_unknown() -> None:
    assert Told().birth_of("device", "host:0", "node") is None


def test_the_log_is_bounded_and_keeps_the_newest() -> None:
    chronicle = Chronicle()
    for pid in range(MOST_DEATHS + 3):
        chronicle.died(death(replace(DEVICE, pid=pid, epoch=0)))
    for number in range(MOST_NAMES + 3):
        chronicle.born(replace(DEVICE, name=f"host:{number}"), at_s=1.0)
    told = chronicle.told()
    assert [each.who.pid for each in told.deaths] == list(range(3, MOST_DEATHS + 3))
    assert (len(told.births), told.births[-1].who.name) == (MOST_NAMES, f"host:{MOST_NAMES + 2}")


def test_a_log_comes_out_of_its_bytes_as_it_went_in() -> None:
    chronicle = Chronicle()
    chronicle.born(DEVICE, at_s=1.5)
    chronicle.died(death())
    told = chronicle.told()
    assert decode_told(encode_told(told)) == told
    assert Chronicle(told).told() == told


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"births": [{}], "deaths": []}', b'{"births": 3}'])
def test_bytes_that_are_no_log_are_an_empty_one(data: bytes) -> None:
    assert decode_told(data) == Told()
