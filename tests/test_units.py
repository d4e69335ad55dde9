"""Durations, sizes, ratios and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import UsageError
from excise.units import (
    format_bytes,
    format_count,
    format_fraction,
    format_ns,
    format_ratio,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_percentage,
)


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("10s", 10_000_000_000),
        ("1.5ms", 1_500_000),
        ("2min 3.2s", 123_200_000_000),
        ("1min 5.754s", 65_754_000_000),
        ("999ms", 999_000_000),
        ("250us", 250_000),
        ("250 µs", 250_000),
        ("250μs", 250_000),
        ("7ns", 7),
        ("1h30m", 5_400_000_000_000),
        ("0,112s", 112_000_000),
        ("1d 1h 1min 1s", 90_061_000_000_000),
        # systemd 245 printed this instead of 18 h: months are 30.4375 days.
        (
            "2month 1w 3d 5h 2min 40.101s",
            (2 * 2_629_800 + 604_800 + 3 * 86_400 + 5 * 3_600 + 160) * 10**9 + 101_000_000,
        ),
        ("1y", 31_557_600 * 10**9),
        ("0.5ns", 0),
        ("1.5ns", 2),
    ],
)
def test_a_duration_is_read_exactly(text: str, expected_ns: int) -> None:
    assert parse_duration(text) == expected_ns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a duration"),
        ("10", "is not a duration"),
        ("ten seconds", "is not a duration"),
        ("-1s", "is not a duration"),
        ("1 parsec", "'parsec' is not a unit of time"),
        ("1s 5", "is not a duration"),
        ("infinity", "is not a duration"),
        ("300y", "more than 292 years"),
        ("1" * 200 + "s", "is not a duration"),
        ("٣s", "is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_a_hint(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse_duration(text)
    assert caught.value.hint is not None
    assert "10s" in caught.value.hint


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_whole_nanoseconds_survive_a_round_trip(value: int) -> None:
    assert parse_duration(f"{value}ns") == value


@given(st.text(max_size=40))
def test_any_text_is_a_duration_or_one_usage_error(text: str) -> None:
    try:
        value = parse_duration(text)
    except UsageError:
        return
    assert 0 <= value < 2**63


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10K", 10_240),
        ("10 KiB", 10_240),
        ("10kB", 10_000),
        ("1.5MiB", 1_572_864),
        ("2GB", 2_000_000_000),
        ("512", 512),
        ("512 B", 512),
    ],
)
def test_a_size_is_read_exactly(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "K", "10X", "-1K", "1e3", "9999999P"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a size|more than 8 EiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("12313", 12_313), (" 12_313 ", 12_313), ("9" * 18, 10**18 - 1)],
)
def test_a_count_is_a_whole_number(text: str, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5", "²", "١", "1__000", "_1", "9" * 5000])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a whole number"):
        parse_count(text)


@pytest.mark.parametrize(("text", "expected"), [("2%", 0.02), ("0.5 %", 0.005), ("+10%", 0.1)])
def test_a_percentage_is_a_fraction(text: str, expected: float) -> None:
    assert parse_percentage(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["2", "two %", "%", "1e2%", ""])
def test_a_percentage_without_its_sign_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a percentage"):
        parse_percentage(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 ns"),
        (0.25, "0.250 ns"),
        (33.14, "33.1 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (1_000, "1.00 µs"),
        (9_996, "10.0 µs"),
        (61_000, "61.0 µs"),
        (4_613_000, "4.61 ms"),
        (682_000_000, "682 ms"),
        (999_600_000, "1.00 s"),
        (1_941_710_000_000, "1,942 s"),
        (-61_000, "-61.0 µs"),
        (float("nan"), "n/a"),
        (float("inf"), "n/a"),
    ],
)
def test_nanoseconds_print_in_the_unit_that_fits(value: float, expected: str) -> None:
    assert format_ns(value) == expected


def test_a_difference_shows_its_plus_sign() -> None:
    assert format_ns(61_000, signed=True) == "+61.0 µs"
    assert format_ns(0, signed=True) == "0 ns"
    assert format_bytes(2048, signed=True) == "+2.00 KiB"
    assert format_count(12_313, signed=True) == "+12,313"


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_a_printed_duration_is_within_half_a_percent(value: float) -> None:
    text, unit = format_ns(value).split(" ")
    factor = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(text.replace(",", "")) * factor == pytest.approx(value, rel=0.005)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_572_864, "1.50 MiB"),
        (809_616 * 1024, "791 MiB"),
        (float("nan"), "n/a"),
    ],
)
def test_sizes_print_in_binary_units(value: float, expected: str) -> None:
    assert format_bytes(value) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (1.041, "+4.1 %"),
        (0.959, "-4.1 %"),
        (1.0134, "+1.3 %"),
        (1.0004, "+0.04 %"),
        (1.0072, "+0.72 %"),
        (1.0, "0.0 %"),
        (1.000001, "0.0 %"),
        (3.518, "+252 %"),
        (2.0, "+100 %"),
        (67.8, "×67.8"),
        (0.0, "-100 %"),
        (float("nan"), "n/a"),
        (-1.0, "n/a"),
    ],
)
def test_a_ratio_prints_as_a_signed_change(ratio: float, expected: str) -> None:
    assert format_ratio(ratio) == expected


def test_a_share_prints_without_a_sign() -> None:
    assert format_fraction(0.853) == "85.3 %"
    assert format_fraction(float("nan")) == "n/a"


@pytest.mark.parametrize(("value", "expected"), [(12_313, "12,313"), (0.5, "0.500"), (-3, "-3")])
def test_counts_mark_thousands(value: float, expected: str) -> None:
    assert format_count(value) == expected
