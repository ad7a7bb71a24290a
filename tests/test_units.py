"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.units import GIB, KIB, MIB, ceil_div, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (4096, 4096),
        ("0", 0),
        ("4096", 4096),
        ("4096 B", 4096),
        ("64KiB", 64 * KIB),
        ("64 kib", 64 * KIB),
        ("64k", 64 * KIB),
        ("512MiB", 512 * MIB),
        (" 1.5 GiB ", 3 * GIB // 2),
        ("2g", 2 * GIB),
        ("1TiB", 1024 * GIB),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_reads_as_the_bytes_it_names(text: str | int, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "-1MiB", "1 MB", "1 parsec", "1e9", "1,5GiB", "64 KiB 2", "nan", -1])
def test_what_is_no_size_is_refused_with_the_form_that_is(text: str | int) -> None:
    with pytest.raises(ValueError, match="as in 512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (11_796_480, "11.2 MiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (-2 * MIB, "-2.0 MiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_leaves_at_least_one(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(0, 2**50))
def test_a_written_size_reads_back_within_a_twentieth(size_bytes: int) -> None:
    assert abs(parse_bytes(format_bytes(size_bytes)) - size_bytes) * 20 <= size_bytes


@given(st.integers(0, 2**60), st.integers(1, 2**40))
def test_ceil_div_is_the_fewest_units_that_hold_the_amount(amount: int, unit: int) -> None:
    count = ceil_div(amount, unit)
    assert count * unit >= amount
    assert (count - 1) * unit < amount
