"""Find the step on which values lie: the tick of a clock, or the digits that a tool printed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from excise.stats._arrays import FloatArray, as_values

MAX_DECIMALS = 9
"""Decimals looked at: nanoseconds printed in seconds."""
COARSE_RATIO = 0.001
"""A step above this share of the median is coarse (the probe keeps its clock's step below it)."""
CHANCE = 1e-4
"""A grid is reported when values off any grid would fit it as well less often than this."""
TICK_TOLERANCE = 0.02
"""How far from a multiple of a tick a value may lie, in ticks, besides the rounding of print."""
SMALLEST_PARTS = 32
"""The tick is looked for as the smallest difference divided by 1 to this."""
FIRST_VALUES = 2_000
"""Distinct values whose differences give the first fit of a tick."""
SPREAD_VALUES = 5_000
"""Distinct values over which the fit is then extended, before it is checked on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """The grid on which values lie; steps are in the unit of the values.

    Attributes:
        n: Number of values.
        distinct: Number of different values.
        distinct_ratio: Share of different values, distinct / n.
        step: Step of the grid; None when these values show none.
        step_ratio: Step over the absolute median; None without a step or with median 0.
        printed_step: Place of the last digit in use (0.01, 1, 10), whether or not that is a grid;
            None when a value has more than 9 decimals.
        coarse: The step is above 0.1 % of the median.
    """

    n: int
    distinct: int
    distinct_ratio: float
    step: float | None
    step_ratio: float | None
    printed_step: float | None
    coarse: bool


def find_quantisation(values: ArrayLike) -> Quantisation:
    """Find the step of the grid on which values lie, if they show one.

    A tick that is not a decimal (1/3 us, written in ns and rounded) is looked for first: the
    smallest difference or a small part of it, of which all values are multiples. Otherwise
    integers and decimal fractions are taken as exact, and the greatest common divisor of their
    differences is the step. Either is reported only if values without a grid would hardly
    ever fit so well.

    Args:
        values: Any unit, shape (n,), in any order.

    Raises:
        UsageError: Values empty or not finite.
    """
    array = as_values(values)
    unique = _merge_rounding(np.unique(array))
    printed = _printed_step(unique)
    ratio = unique.size / array.size
    step = None
    if unique.size >= 3:
        # scaled, so that neither tiny nor huge units leave the range of floats on the way
        scale = float(np.abs(unique).max())
        tick = _find_tick(unique / scale, rounding=(printed or 0.0) / scale)
        step = None if tick is None else tick * scale
        if step is None and printed is not None:
            step = _common_step(unique, printed_step=printed, repeats=ratio < 0.1)
    centre = abs(float(np.median(array)))
    step_ratio = step / centre if step is not None and centre > 0 else None
    return Quantisation(
        n=array.size,
        distinct=unique.size,
        distinct_ratio=ratio,
        step=step,
        step_ratio=step_ratio,
        printed_step=printed,
        coarse=step_ratio is not None and step_ratio > COARSE_RATIO,
    )


def _merge_rounding(unique: FloatArray) -> FloatArray:
    """Drop values that differ from the one before by float rounding only."""
    tolerance = 8 * np.finfo(float).eps * np.abs(unique).max()
    return unique[np.concatenate(([True], np.diff(unique) > tolerance))]


def _printed_step(unique: FloatArray) -> float | None:
    """Return the place of the last digit that any value uses, or None for long fractions."""
    largest = float(np.abs(unique).max())
    if largest == 0:
        return None
    for decimals in range(MAX_DECIMALS + 1):
        if largest * 10.0**decimals > (2**40 if decimals else 2**52):
            return None
        if _are_whole(unique[:100] * 10.0**decimals) and _are_whole(unique * 10.0**decimals):
            break
    else:
        return None
    if decimals:
        return float(10.0**-decimals)
    common = int(np.gcd.reduce(np.rint(unique).astype(np.int64)))
    power = 1
    while common % (power * 10) == 0:
        power *= 10
    return float(power)


def _are_whole(scaled: FloatArray) -> bool:
    """Tell whether all values are integers but for float rounding."""
    tolerance = 8 * np.finfo(float).eps * np.abs(scaled).max()
    return bool((np.abs(scaled - np.rint(scaled)) <= tolerance).all())


def _common_step(unique: FloatArray, *, printed_step: float, repeats: bool) -> float | None:
    """Return the greatest common divisor of the differences, if it is hardly by chance.

    That m differences share a divisor g by chance has probability g ** (1 - m). Values that
    repeat often show a grid by that alone.
    """
    whole = np.rint(np.diff(unique) / printed_step).astype(np.int64)
    divisor = int(np.gcd.reduce(whole))
    if divisor > 1 and not repeats and float(divisor) ** (1 - whole.size) > CHANCE:
        return None
    return divisor * printed_step


def _find_tick(unique: FloatArray, *, rounding: float) -> float | None:
    """Return a tick much longer than the rounding of print of which all values are multiples."""
    smallest = float(np.diff(unique[:FIRST_VALUES]).min())
    smallest = min(smallest, float(np.diff(unique).min()) + rounding)
    for parts in range(1, SMALLEST_PARTS + 1):
        guess = smallest / parts
        if rounding > guess / 8:
            return None
        tick = _refine_tick(unique, guess=guess, rounding=rounding)
        if tick is not None:
            return tick
    return None


def _refine_tick(unique: FloatArray, *, guess: float, rounding: float) -> float | None:
    """Fit the tick over a growing range and return it if all values within reach fit, else None.

    Each range may be so long that the error of the tick so far stays below a quarter tick
    at its end; least squares over it then makes the tick more exact and the next range longer.
    """
    tolerance = TICK_TOLERANCE * guess + rounding
    differences = np.sort(np.diff(unique[:FIRST_VALUES]))
    tick = guess
    reach = guess / 4 / max(rounding, 1e-3 * guess) * guess
    offsets = unique[:: -(-unique.size // SPREAD_VALUES)] - unique[0]
    for samples in (differences, offsets[1:]):
        while True:
            near = samples[samples <= reach]
            if near.size == 0:
                break
            multiples = np.rint(near / tick)
            if (multiples < 1).any() or np.abs(near - multiples * tick).max() > 0.3 * tick:
                return None
            tick = float((near @ multiples) / (multiples @ multiples))
            if np.abs(near - multiples * tick).max() > tolerance:
                return None
            if near.size == samples.size:
                break
            longer = max(reach, float(near.max()) * tick / 4 / max(rounding, 1e-9 * tick))
            if longer < 1.5 * reach:
                break
            reach = longer
    return _confirm_tick(unique, tick=tick, reach=reach, rounding=rounding)


def _confirm_tick(
    unique: FloatArray, *, tick: float, reach: float, rounding: float
) -> float | None:
    """Return the tick if nearly all values lie within reach and chance would not fit them so."""
    inside = unique[unique - unique[0] <= reach]
    if inside.size < max(5, 0.9 * unique.size):
        return None
    multiples = np.rint((inside - unique[0]) / tick)
    centred = multiples - multiples.mean()
    tick = float(centred @ (inside - inside.mean()) / (centred @ centred))
    phase = np.exp(2j * np.pi * (inside - unique[0]) / tick)
    off = np.abs(np.angle(phase / phase.mean())) / (2 * np.pi)
    allowed = TICK_TOLERANCE + rounding / tick / 2
    if off.max() > allowed or (2 * allowed) ** (inside.size - 2) * SMALLEST_PARTS > CHANCE:
        return None
    return tick
