"""Polling of a driver: a command's time is then a multiple of the poll, whatever the TPM took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from excise.units import counted

SHORTEST_NS: Final = 300_000.0
LONGEST_NS: Final = 20_000_000.0
MOST_POLLS: Final = 20
"""Times of more polls are left out: the error of each poll adds up."""
FEWEST_MULTIPLES: Final = 6
"""Different multiples that must be filled: fewer fit some grid by chance."""
FEWEST_VALUES: Final = 3
AGREEMENT: Final = 0.93
"""Length of the mean phase: 1 where all are at the same place of the grid, 0 where anywhere."""
WIDEST_RATIO: Final = 0.1
"""Median distance of the values of one multiple from their median, in steps: 0.25 by chance."""
_STEPS: Final = 1_000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """The grid on which the times of a TPM's commands lie, if they lie on one.

    Attributes:
        step_ns: The grid's step; None where the times show none.
        evidence: How it was found, or what was looked at, in words.
    """

    step_ns: float | None
    evidence: str


def find_polling(times: Mapping[str, Sequence[float]]) -> Polling:
    """Find the step of a driver's polling in the times of several commands.

    Each multiple of the step counts once, however many times lie on it: commands of one length are
    no evidence of a grid. The longest step that fits is taken.

    Args:
        times: Times in ns of each command, in any order.
    """
    held = [np.asarray(each, dtype=np.float64) for each in times.values()]
    values = np.concatenate([np.zeros(0), *held])
    nothing = f"looked for in {counted(values.size, 'time')} of {counted(len(times), 'command')}"
    if values.size < FEWEST_MULTIPLES * FEWEST_VALUES:
        return Polling(step_ns=None, evidence=f"too few times: {nothing}")
    ticks = np.geomspace(SHORTEST_NS, LONGEST_NS, _STEPS)
    found = np.array([_agreement(values, tick) for tick in ticks])
    good = found >= AGREEMENT
    if not good.any():
        return Polling(step_ns=None, evidence=nothing)
    longest = int(np.flatnonzero(good)[-1])
    near = slice(max(0, longest - _STEPS // 50), longest + 1)
    best = near.start + int(np.argmax(found[near]))
    step, multiples = _refined(values, float(ticks[best]))
    return Polling(
        step_ns=step, evidence=f"the times lie on {multiples} of its first {MOST_POLLS} multiples"
    )


def _agreement(values: _Floats, tick: float) -> float:
    """Return how well the values lie on one grid of this step; 0 where too few multiples are.

    Each multiple counts with the median of its values, so that what was held up elsewhere does not.
    """
    inside = values[values <= (MOST_POLLS + 0.5) * tick]
    # Half of all, so that a long tick does not live off the few values that it covers, and none
    # that lies within the first half step, where a grid says nothing.
    if inside.size < values.size / 2:
        return 0.0
    multiples = np.rint(inside / tick).astype(np.int64)
    counts = np.bincount(multiples, minlength=MOST_POLLS + 1)
    counts[0] = 0
    filled = np.flatnonzero(counts >= FEWEST_VALUES)
    if filled.size < FEWEST_MULTIPLES or counts[filled].sum() < 0.8 * inside.size:
        return 0.0
    offsets = inside / tick - multiples
    centres = np.array([np.median(offsets[multiples == number]) for number in filled])
    spreads = [
        np.median(np.abs(offsets[multiples == number] - centre))
        for number, centre in zip(filled, centres, strict=True)
    ]
    if np.median(spreads) > WIDEST_RATIO:
        return 0.0
    return float(abs(np.exp(2j * np.pi * centres).mean()))


def _refined(values: _Floats, tick: float) -> tuple[float, int]:
    """Return the step by least squares over medians of the multiples, and how many there are."""
    inside = values[values <= (MOST_POLLS + 0.5) * tick]
    multiples = np.rint(inside / tick)
    numbers = [n for n in np.unique(multiples) if n and (multiples == n).sum() >= FEWEST_VALUES]
    centres = np.array([np.median(inside[multiples == number]) for number in numbers])
    centred = np.array(numbers) - np.mean(numbers)
    return float(centred @ (centres - centres.mean()) / (centred @ centred)), len(numbers)
