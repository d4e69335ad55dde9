"""Durations, sizes, ratios and counts as people write and read them.

Parsing is exact (integer arithmetic, rounded half to even only below the unit of the result).
Formatting keeps three significant digits, never drops digits before the decimal point, and always
prints a unit or a sign, so that a number in a report can be read alone.
"""

from __future__ import annotations

import math
import re
from typing import Final

from excise.errors import UsageError

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

# systemd's year is 365.25 days and its month a twelfth of that (time-util.h, USEC_PER_YEAR).
_DURATION_UNITS: Final[dict[str, int]] = {
    **dict.fromkeys(("ns", "nsec"), 1),
    **dict.fromkeys(("us", "usec", "µs", "μs"), NS_PER_US),
    **dict.fromkeys(("ms", "msec"), NS_PER_MS),
    **dict.fromkeys(("s", "sec", "second", "seconds"), NS_PER_S),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * NS_PER_S),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3_600 * NS_PER_S),
    **dict.fromkeys(("d", "day", "days"), 86_400 * NS_PER_S),
    **dict.fromkeys(("w", "week", "weeks"), 604_800 * NS_PER_S),
    **dict.fromkeys(("M", "month", "months"), 2_629_800 * NS_PER_S),
    **dict.fromkeys(("y", "year", "years"), 31_557_600 * NS_PER_S),
}
_SIZE_UNITS: Final[dict[str, int]] = {
    **dict.fromkeys(("", "b"), 1),
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
    **{prefix: 1024**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", start=1)},
}
_INT64_MAX: Final = 2**63 - 1
_MAX_TEXT: Final = 100
_TERM = re.compile(r"(\d{1,19})(?:[.,](\d{1,24}))?\s*([A-Za-zµμ]+)\s*")
_SIZE = re.compile(r"(\d{1,19})(?:\.(\d{1,24}))?\s*([A-Za-z]*)")
_COUNT = re.compile(r"[0-9]{1,3}(?:_?[0-9]{3}){0,5}|[0-9]{1,18}")
_PERCENTAGE = re.compile(r"([+-]?\d{1,9}(?:\.\d{1,12})?)\s*%")

_DURATION_HINT = "Write a number and a unit, such as 10s, 1.5ms, 250us or '2min 3.2s'"
_SIZE_HINT = "Write a number and a unit, such as 10K, 1.5MiB or 2GB"


def _scaled(whole: str, fraction: str | None, factor: int) -> int:
    """Return whole.fraction × factor as an integer, rounded half to even."""
    if not fraction:
        return int(whole) * factor
    scale: int = 10 ** len(fraction)
    quotient, rest = divmod(int(whole + fraction) * factor, scale)
    if 2 * rest > scale or (2 * rest == scale and quotient % 2):
        quotient += 1
    return quotient


def parse_duration(text: str) -> int:
    """Return the nanoseconds that a text such as `10s` or `2min 3.2s` stands for.

    The units are those of systemd.time(7), and `ns`; a decimal comma is read like a point.

    Args:
        text: One or more numbers, each with its unit; or `0`.

    Raises:
        UsageError: If a number has no unit, a unit is unknown, or the sum is above int64.

    Examples:
        >>> parse_duration("1min 5.754s")
        65754000000
    """
    stripped = text.strip()
    if stripped == "0":
        return 0
    if not stripped or len(stripped) > _MAX_TEXT:
        raise UsageError(f"{stripped[:40]!r} is not a duration", hint=_DURATION_HINT)
    total, position = 0, 0
    while position < len(stripped):
        term = _TERM.match(stripped, position)
        if term is None or not term[1].isascii() or not (term[2] or "0").isascii():
            raise UsageError(f"{stripped[:40]!r} is not a duration", hint=_DURATION_HINT)
        factor = _DURATION_UNITS.get(term[3])
        if factor is None:
            raise UsageError(f"{term[3]!r} is not a unit of time", hint=_DURATION_HINT)
        total += _scaled(term[1], term[2], factor)
        position = term.end()
    if total > _INT64_MAX:
        raise UsageError(f"{stripped[:40]!r} is more than 292 years", hint=_DURATION_HINT)
    return total


def parse_seconds(text: str) -> float:
    """Return the seconds that a text stands for; see `parse_duration`."""
    return parse_duration(text) / 1e9


def parse_bytes(text: str) -> int:
    """Return the bytes that a text such as `10K`, `1.5MiB` or `2GB` stands for.

    `K`, `M`, `G`, `T`, `P` and `KiB` ... count in 1024s, `kB`, `MB` ... in 1000s; case is ignored.

    Raises:
        UsageError: If it is not a size, or is above int64.

    Examples:
        >>> parse_bytes("10K")
        10240
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _SIZE_UNITS.get(match[3].lower()) if match and match[1].isascii() else None
    if match is None or factor is None or not (match[2] or "0").isascii():
        raise UsageError(f"{text.strip()[:40]!r} is not a size", hint=_SIZE_HINT)
    size = _scaled(match[1], match[2], factor)
    if size > _INT64_MAX:
        raise UsageError(f"{text.strip()[:40]!r} is more than 8 EiB", hint=_SIZE_HINT)
    return size


def parse_count(text: str) -> int:
    """Return the whole number that a text such as `12313` or `12_313` stands for.

    Raises:
        UsageError: If it is none, negative, or has more than 18 digits.

    Examples:
        >>> parse_count("12_313")
        12313
    """
    stripped = text.strip()
    if not _COUNT.fullmatch(stripped):
        raise UsageError(f"{stripped[:40]!r} is not a whole number", hint="Such as 12313")
    return int(stripped.replace("_", ""))


def parse_percentage(text: str) -> float:
    """Return the fraction that a text such as `2%` stands for (`2%` is 0.02).

    Raises:
        UsageError: If it has no percent sign or is not a number.
    """
    match = _PERCENTAGE.fullmatch(text.strip())
    if match is None or not match[1].isascii():
        raise UsageError(
            f"{text.strip()[:40]!r} is not a percentage", hint="Write it with its sign, such as 2%"
        )
    return float(match[1]) / 100.0


def parse_hex(text: str, *, option: str) -> bytes:
    """Return bytes given in hexadecimal; the text is never repeated, as it may be a secret.

    Args:
        text: Pairs of digits, with or without spaces between them.
        option: The option or field it was given for.

    Raises:
        UsageError: If it is anything else.

    Examples:
        >>> parse_hex("00ff", option="--nonce")
        b'\\x00\\xff'
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"{option} is not hexadecimal") from None


def _rounded(value: float, digits: int) -> str:
    """Return the value with that many significant digits, but all before the point."""
    if value == 0.0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    # Rounding may have carried into a new digit: 9.996 is 10.0, not 10.00.
    carried = max(0, digits - 1 - math.floor(math.log10(abs(float(text.replace(",", ""))) or 1.0)))
    return f"{value:,.{carried}f}" if carried < decimals else text


def _with_unit(
    value: float, steps: tuple[tuple[str, float], ...], digits: int, *, signed: bool
) -> str:
    """Return the value in the largest unit in which it does not round below 1."""
    if not math.isfinite(value):
        return "n/a"
    sign = "-" if value < 0 else "+" if signed and value > 0 else ""
    size = abs(value)
    for name, factor in steps:
        # Half of the last kept digit below 1 still rounds up to 1 of this unit.
        if size >= factor * (1.0 - 0.5 * 10.0**-digits):
            return f"{sign}{_rounded(size / factor, digits)} {name}"
    name, factor = steps[-1]
    return f"{sign}{_rounded(size / factor, digits)} {name}"


_TIME_STEPS: Final = (
    ("s", float(NS_PER_S)),
    ("ms", float(NS_PER_MS)),
    ("µs", float(NS_PER_US)),
    ("ns", 1.0),
)
_SIZE_STEPS: Final = tuple(
    (name, float(1024**power))
    for power, name in sorted(enumerate(("B", "KiB", "MiB", "GiB", "TiB")), reverse=True)
)


def format_ns(value: float, *, digits: int = 3, signed: bool = False) -> str:
    """Return nanoseconds as text in the unit that fits: `33.1 ns`, `4.61 ms`, `1,942 s`.

    Args:
        value: Nanoseconds; NaN and infinities give `n/a`.
        digits: Significant digits; digits before the point are never dropped.
        signed: Whether a positive value gets a `+`, for differences.

    Examples:
        >>> format_ns(61_000, signed=True)
        '+61.0 µs'
    """
    return _with_unit(value, _TIME_STEPS, digits, signed=signed)


def format_bytes(value: float, *, digits: int = 3, signed: bool = False) -> str:
    """Return a size as text in the binary unit that fits: `1.50 MiB`; whole bytes stay whole.

    Args:
        value: Bytes; NaN and infinities give `n/a`.
        digits: Significant digits from KiB on.
        signed: Whether a positive value gets a `+`, for differences.
    """
    if math.isfinite(value) and abs(value) < 1024 and value == int(value):
        sign = "+" if signed and value > 0 else ""
        return f"{sign}{int(value)} B"
    return _with_unit(value, _SIZE_STEPS, digits, signed=signed)


def format_count(value: float, *, digits: int = 3, signed: bool = False) -> str:
    """Return a count as text with thousands marked: `12,313`; a mean of counts keeps decimals."""
    if not math.isfinite(value):
        return "n/a"
    sign = "-" if value < 0 else "+" if signed and value > 0 else ""
    if value == int(value):
        return f"{sign}{int(abs(value)):,}"
    return f"{sign}{_rounded(abs(value), digits)}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with what it counts, in the singular for one.

    Args:
        number: How many.
        noun: What is counted, in the singular; the plural is it with an s.
        plural: The plural where it is another.

    Examples:
        >>> counted(1, "run"), counted(12313, "entry", "entries"), counted(0, "run")
        ('1 run', '12,313 entries', '0 runs')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_ratio(ratio: float, *, digits: int = 2) -> str:
    """Return the ratio B/A as a signed change of A, `+4.1 %`; from tenfold on as `×67.8`.

    Args:
        ratio: B/A; not finite or below zero gives `n/a`.
        digits: Significant digits of the percentage; at least one decimal below 100 %, but no
            more than two.

    Examples:
        >>> format_ratio(1.0134), format_ratio(67.8), format_ratio(1.0)
        ('+1.3 %', '×67.8', '0.0 %')
    """
    if not math.isfinite(ratio) or ratio < 0:
        return "n/a"
    if ratio >= 10.0:
        return f"×{_rounded(ratio, 3)}"
    percent = (ratio - 1.0) * 100.0
    size = abs(percent)
    if size >= 99.95:
        decimals = 0
    elif size >= 1.0 or size < 0.005:
        decimals = 1
    else:
        decimals = min(2, max(1, digits - 1 - math.floor(math.log10(size))))
    text = f"{size:.{decimals}f}"
    if float(text) == 0.0:
        return "0.0 %"
    return f"{'-' if percent < 0 else '+'}{text} %"


def format_ratio_beside(ratio: float, low: float | None, high: float | None) -> str:
    """Return a ratio in the form that its interval has: as a multiple where an end is tenfold.

    >>> format_ratio_beside(9.5, 8.92, 14.7), format_ratio_beside(1.02, 1.01, 1.03)
    ('×9.50', '+2.0 %')
    >>> format_ratio_beside(1.02, None, None)
    '+2.0 %'
    """
    ends = [end for end in (low, high) if end is not None and math.isfinite(end)]
    if any(end >= 10.0 for end in ends) and math.isfinite(ratio) and ratio >= 0:
        return f"×{_rounded(ratio, 3)}"
    return format_ratio(ratio)


def format_ratio_interval(low: float, high: float) -> str:
    """Return an interval of a ratio as changes, both ends in one form.

    >>> format_ratio_interval(1.013, 1.05)
    '[+1.3, +5.0 %]'
    >>> format_ratio_interval(8.92, 14.7)
    '[×8.92, ×14.7]'
    """
    ends = format_ratio(low), format_ratio(high)
    if any(end.startswith("×") for end in ends):
        return f"[×{low:.3g}, ×{high:.3g}]"
    if all(end.endswith(" %") for end in ends):
        return f"[{ends[0][:-2]}, {ends[1]}]"
    return f"[{ends[0]}, {ends[1]}]"


def format_fraction(fraction: float, *, decimals: int = 1) -> str:
    """Return a share of a whole as text: 0.853 is `85.3 %`; no sign, unlike `format_ratio`."""
    if not math.isfinite(fraction):
        return "n/a"
    return f"{fraction * 100.0:.{decimals}f} %"
