"""Fits of boots that cannot be: shares of an extend beyond all of it, costs below nothing.

Such a fit describes the boots it was made of, and says nothing of others: its intervals hold only
for what the boots have in common, which here is not what the model takes for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from excise.units import format_fraction

# What rounding, and an entry's own work beside a slow extend, may add to a share of 0 or of 1.
_SLACK: Final = 0.05
# A cost that is below nothing by less than this share of a boot is nothing.
_NOTHING_RATIO: Final = 1e-3
_HARDLY: Final = 2.0
# Beyond so many times the entries of the largest boot a prediction says how far it reaches.
_FAR: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fitted number with its 95 % interval, both ends the number itself where there is none.

    Attributes:
        degrees: Degrees of freedom of the fit; 0 leaves no interval.
    """

    value: float
    low: float
    high: float
    degrees: int


def overlap_text(overlap: Fitted) -> str:
    """Return a share with its interval, such as `85.3 % [84.0 %, 86.6 %]`."""
    text = _per_cent(overlap.value)
    if not overlap.degrees:
        return text
    return f"{text} [{_per_cent(overlap.low)}, {_per_cent(overlap.high)}]"


def _per_cent(share: float) -> str:
    return format_fraction(share) if abs(share) < 10 else f"{share * 100:,.0f} %"


def doubts(
    *,
    base: Fitted,
    overlap: Fitted | None,
    costs: Mapping[str, Fitted],
    boot_ns: float,
    entries: int,
) -> tuple[str, ...]:
    """Return why a fit cannot be, a sentence or two each; none where it can.

    A number within its interval of what is possible is no reason.

    Args:
        base: Duration without any entry, in ns.
        overlap: Share of an extend that lengthens the boot, where it was fitted.
        costs: Cost of an entry by mode in ns, where these were fitted.
        boot_ns: Mean duration of the boots.
        entries: Most entries of one boot.
    """
    found = []
    least = -_NOTHING_RATIO * boot_ns
    if base.high < least:
        found.append(
            "A boot without any entry would take less than nothing: the boots differ in something "
            "else than their entries."
        )
    found += [
        f"Mode {mode}: an entry costs less than nothing in this fit; the boots differ in something "
        "else."
        for mode, cost in costs.items()
        if cost.high * entries < least
    ]
    if overlap is not None and (overlap.high < -_SLACK or overlap.low > 1 + _SLACK):
        why = "this is not the TPM that the boots had, or an entry takes much besides its extend"
        if overlap.high < 0 or overlap.low > _HARDLY:
            why = "this is hardly the TPM that the boots had"
        found.append(
            f"{overlap_text(overlap)} of an extend's cost would have to lengthen the boot, where "
            f"only 0 % to 100 % can: {why}. Give theirs with --tpm, or leave --tpm out."
        )
    return tuple(found)


def beyond(entries: Sequence[int], *, most: int) -> str:
    """Return how far predictions reach beyond the boots they come from; "" where they do not.

    Args:
        entries: Entries of each prediction.
        most: Most entries of one boot of the fit.
    """
    far = max(entries, default=0)
    if far <= _FAR * most:
        return ""
    times = f"{far / most:,.0f} times the {most:,}" if most else "far more than the none"
    return (
        f"{far:,} entries are {times} that any boot had: that each further one lengthens a "
        "boot as those did is taken for granted."
    )
