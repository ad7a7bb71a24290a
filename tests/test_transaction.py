"""All or nothing, also where an undo fails."""

from __future__ import annotations

import errno

import pytest

from kvcluster.errors import DriverError, Quarantined, Residue
from kvcluster.transaction import Progress, Transaction


def _failure(call: str) -> DriverError:
    return DriverError(call=call, code=errno.EIO, name="EIO")


class Diary:
    """Undos that write down that they ran, and fail where they should."""

    def __init__(self, *failing: str) -> None:
        self.entries: list[tuple[str, int]] = []
        self._failing = failing

    def step(self, transaction: Transaction, name: str, count: int = 1) -> None:
        progress = transaction.doing(name, 10, undo=lambda done: self._undo(name, done))
        progress.count = count

    def fail(self, error: BaseException, *names: str, kept: bool = False) -> None:
        """A transaction of these steps that ends in `error`."""
        with Transaction() as transaction:
            for name in names:
                self.step(transaction, name)
            if kept:
                transaction.keep()
            raise error

    def _undo(self, name: str, done: Progress) -> None:
        self.entries.append((name, done.count))
        if name in self._failing:
            raise _failure(name)


def test_what_is_kept_is_not_undone() -> None:
    diary = Diary()
    with Transaction() as transaction:
        diary.step(transaction, "a")
        transaction.keep()
    assert diary.entries == []


def test_without_keep_everything_is_undone_newest_first() -> None:
    diary = Diary()
    with Transaction() as transaction:
        for name in "abc":
            diary.step(transaction, name)
    assert [name for name, _ in diary.entries] == ["c", "b", "a"]


def test_an_undo_learns_how_much_was_done() -> None:
    diary = Diary()
    with Transaction() as transaction:
        diary.step(transaction, "none", 0)
        diary.step(transaction, "three", 3)
    assert diary.entries == [("three", 3), ("none", 0)]


@pytest.mark.parametrize("error", [_failure("map"), ValueError("ours"), KeyboardInterrupt()])
def test_the_error_that_started_it_comes_out_once_everything_is_undone(error: BaseException) -> None:
    diary = Diary()
    with pytest.raises(type(error)) as caught:
        diary.fail(error, "a")
    assert caught.value is error
    assert diary.entries == [("a", 1)]


def test_an_undo_that_fails_becomes_residue_and_stops_no_other() -> None:
    diary, error = Diary("b", "c"), _failure("map")
    with pytest.raises(Quarantined) as caught:
        diary.fail(error, *"abc")
    assert [name for name, _ in diary.entries] == ["c", "b", "a"]
    assert caught.value.residue == (Residue("c", 10), Residue("b", 10))
    assert caught.value.__cause__ is error


def test_an_undo_made_of_parts_names_the_parts_that_stay() -> None:
    parts = (Residue("one part", 4), Residue("another part", 2))

    def undo(done: Progress) -> None:
        raise Quarantined(residue=parts)

    with pytest.raises(Quarantined) as caught, Transaction() as transaction:
        transaction.doing("whole", 10, undo=undo)
    assert caught.value.residue == parts


def test_a_bug_in_an_undo_is_not_taken_for_a_failed_call() -> None:
    def undo(done: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Transaction() as transaction:
        transaction.doing("whole", 10, undo=undo)


def test_a_kept_transaction_lets_a_later_error_through_without_undoing() -> None:
    diary, error = Diary(), ValueError("later")
    with pytest.raises(ValueError, match="later"):
        diary.fail(error, "a", kept=True)
    assert diary.entries == []
