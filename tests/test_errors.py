"""Every error survives pickling with its fields, and its sentence carries the figures."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from kvcluster import errors
from kvcluster.errors import Carried, InvariantBroken, KvClusterError, Quarantined, Residue

RESIDUE = (Residue("map 3 windows", 4096), Residue("charge", 100))

EXAMPLES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "OutOfBudget": (
        {"need": 70, "free": 30, "oldest_arrival": 4, "retry_after_s": 0.5, "quarantined": 10, "capacity": 90},
        ("70", "30", "0.5 s"),
    ),
    "OutOfBlocks": ({"need": 12, "free": 5}, ("12", "5")),
    "DeviceUnreachable": ({"device": "host:0", "reason": "no answer in 5 s"}, ("host:0", "no answer in 5 s")),
    "DeviceMissing": (
        {"device": "cuda:7", "reason": "no such GPU", "remedy": "choose another"},
        ("cuda:7", "no such GPU", "choose another"),
    ),
    "NeverFits": ({"need": 900, "capacity": 800}, ("900", "800")),
    "NotShareable": ({"kind": "no_boundary", "reason": "no boundary at 40 tokens"}, ("no boundary at 40 tokens",)),
    "GrantRefused": ({"reason": "too-small", "need": 20, "granted": 10}, ("too-small", "20", "10")),
    "UnknownRequest": ({"request": "abc/1.0"}, ("abc/1.0",)),
    "NotAllowed": ({"reason": "the range is closed"}, ("the range is closed",)),
    "StaleEpoch": ({"sent": 3, "current": 7}, ("3", "7")),
    "LateDuplicate": ({"seq": 11, "watermark": 17}, ("11", "17")),
    "SessionEnded": ({"session": "cafe"}, ("cafe",)),
    "BadFrame": ({"field": "ops.0.tokens", "reason": "not a number"}, ("ops.0.tokens", "not a number")),
    "LimitReached": (
        {"limit": "descriptors", "need": 50, "free": 9, "remedy": "raise RLIMIT_NOFILE"},
        ("50", "descriptors", "9", "raise RLIMIT_NOFILE"),
    ),
    "DriverError": (
        {"call": "map", "code": 12, "name": "ENOMEM", "address": 0x7F00, "size_bytes": 4096},
        ("map", "12", "ENOMEM", "0x7f00", "4096"),
    ),
    "Quarantined": ({"residue": RESIDUE}, ("4196", "map 3 windows", "charge")),
    "InvariantBroken": ({"sentence": "the ledger does not sum"}, ("the ledger does not sum",)),
}


def _classes(kind: type[Carried] = Carried) -> Iterator[type[Carried]]:
    """Ours, down to the last; the classes that only group others are not raised."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _classes(child) if child is KvClusterError else (child,)


def _example(name: str) -> Carried:
    kind: type[Carried] = getattr(errors, name)
    return kind(**EXAMPLES[name][0])


def test_every_error_class_has_an_example_here() -> None:
    assert {kind.__name__ for kind in _classes()} == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_error_comes_out_of_a_pickle_with_its_class_fields_and_sentence(name: str) -> None:
    error = _example(name)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert (again.fields(), str(again)) == (error.fields(), str(error))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_errors_fields_are_what_it_was_made_of(name: str) -> None:
    error, made_of = _example(name), EXAMPLES[name][0]
    assert error.fields() == made_of
    assert all(getattr(error, field) == value for field, value in made_of.items())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_errors_sentence_carries_its_figures(name: str) -> None:
    sentence = str(_example(name))
    assert [figure for figure in EXAMPLES[name][1] if figure not in sentence] == []


def test_a_bug_of_ours_is_not_caught_with_what_a_caller_may_catch() -> None:
    assert not issubclass(InvariantBroken, KvClusterError)


def test_an_error_that_was_given_a_note_still_pickles() -> None:
    error = _example("NeverFits")
    error.add_note("seen while testing")
    assert pickle.loads(pickle.dumps(error)).fields() == EXAMPLES["NeverFits"][0]


def test_a_copied_error_has_the_same_fields() -> None:
    error = _example("OutOfBudget")
    assert copy.deepcopy(error).fields() == error.fields()


def test_a_field_that_changed_after_the_error_was_made_is_carried_as_it_is_now() -> None:
    error = errors.OutOfBudget(need=1, free=0, oldest_arrival=None, retry_after_s=0.1, quarantined=0, capacity=1)
    error.retry_after_s = 2.0
    assert pickle.loads(pickle.dumps(error)).retry_after_s == 2.0


def test_a_refused_grant_speaks_of_bytes_only_when_it_is_too_small() -> None:
    assert str(errors.GrantRefused(reason="spent")) == "the grant is spent"


def test_the_residue_of_a_quarantine_is_summed_in_its_sentence() -> None:
    assert str(Quarantined(residue=RESIDUE)).startswith("4196 bytes could not be taken back")
