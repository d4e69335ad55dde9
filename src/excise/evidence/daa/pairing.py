"""The optimal ate pairing on FP256BN, as products over points of G2 whose lines are known.

Only whether a product of pairings is 1 is ever asked, so the final exponentiation may raise to a
multiple of the usual exponent, and any correct pairing answers alike.

Source: Vercauteren, Optimal Pairings (IEEE Trans. Inf. Theory 2010); Fuentes-Castañeda, Knapp,
Rodríguez-Henríquez, Faster Hashing to G2 (SAC 2011) for the final exponentiation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from excise.evidence.daa.curve import G1, G2, batch_inverse, frobenius_g2, signed_digits
from excise.evidence.daa.field import (
    ONE12,
    XI,
    Fp2,
    Fp12,
    P,
    U,
    conj12,
    frobenius12,
    frobenius12_squared,
    inv2,
    inv12,
    mul2,
    mul12,
    mul12_line,
    neg2,
    scale2,
    sqr2,
    sqr12,
    sqr12_unitary,
    sub2,
)

Lines = tuple[tuple[Fp2, Fp2], ...]
"""The lines of one point of G2: (−λ/ξ, (λx − y)/ξ) for each step of the Miller loop."""


_LOOP: Final = signed_digits(-(6 * U + 2))
_U_DIGITS: Final = signed_digits(-U)
_XI_INVERSE: Final = inv2(XI)


def precompute_lines(point: G2) -> Lines:
    """Return the lines of a point of order n, once for all pairings with it."""
    lines: list[tuple[Fp2, Fp2]] = []
    minus = point[0], neg2(point[1])
    here = point
    for digit in _LOOP[1:]:
        here = _tangent(here, lines)
        if digit:
            here = _chord(here, point if digit > 0 else minus, lines)
    # 6u + 2 is negative, so the loop's point and value are inverted before the last two lines.
    here = here[0], neg2(here[1])
    first = frobenius_g2(point)
    second = frobenius_g2(first)
    here = _chord(here, first, lines)
    _chord(here, (second[0], neg2(second[1])), lines)
    return tuple(lines)


def _tangent(point: G2, lines: list[tuple[Fp2, Fp2]]) -> G2:
    x, y = point
    slope = mul2(scale2(sqr2(x), 3), inv2((y[0] + y[0], y[1] + y[1])))
    return _step(slope, point, x, lines)


def _chord(point: G2, other: G2, lines: list[tuple[Fp2, Fp2]]) -> G2:
    slope = mul2(sub2(other[1], point[1]), inv2(sub2(other[0], point[0])))
    return _step(slope, point, other[0], lines)


def _step(slope: Fp2, point: G2, other_x: Fp2, lines: list[tuple[Fp2, Fp2]]) -> G2:
    x, y = point
    constant = sub2(mul2(slope, x), y)
    scaled = mul2(slope, _XI_INVERSE)
    lines.append((neg2(scaled), mul2(constant, _XI_INVERSE)))
    new_x = sub2(sub2(sqr2(slope), x), other_x)
    return new_x, sub2(mul2(slope, sub2(x, new_x)), y)


def miller_product(pairs: Iterable[tuple[G1, Lines]]) -> Fp12:
    """Return the product of the Miller loops, which share their squarings."""
    # A line at P = (x, y) is y − λx·w⁻¹ + (λx' − y')·w⁻³; divided by y, which the final
    # exponentiation does not see, its first coefficient is 1.
    chosen = list(pairs)
    inverses = batch_inverse([point[1] for point, _ in chosen])
    steps = [
        iter([((c0 * k % P, c1 * k % P), (s0 * a % P, s1 * a % P)) for (s0, s1), (c0, c1) in lines])
        for (point, lines), k in zip(chosen, inverses, strict=True)
        for a in (point[0] * k % P,)
    ]
    value = ONE12
    for digit in _LOOP[1:]:
        value = sqr12(value)
        for _ in range(2 if digit else 1):
            for line in steps:
                value = mul12_line(value, *next(line))
    value = conj12(value)
    for _ in range(2):
        for line in steps:
            value = mul12_line(value, *next(line))
    return value


def _power_u(value: Fp12) -> Fp12:
    """Return value to the power u, which is negative, for a unitary value."""
    inverse = conj12(value)
    result = value
    for digit in _U_DIGITS[1:]:
        result = sqr12_unitary(result)
        if digit:
            result = mul12(result, value if digit > 0 else inverse)
    return conj12(result)


def final_exponentiation(value: Fp12) -> Fp12:
    """Return value to a multiple of (p¹² − 1)/n that n does not divide further."""
    value = mul12(conj12(value), inv12(value))
    value = mul12(frobenius12_squared(value), value)
    x1 = _power_u(value)
    x2 = sqr12_unitary(x1)
    x6 = mul12(sqr12_unitary(x2), x2)
    x6_squared = _power_u(x6)
    x12_cubed = _power_u(sqr12_unitary(x6_squared))
    a = mul12(mul12(x12_cubed, x6_squared), x6)
    b = mul12(a, conj12(x2))
    result = mul12(mul12(a, x6_squared), value)
    result = mul12(result, frobenius12(b))
    result = mul12(result, frobenius12_squared(a))
    last = frobenius12(frobenius12_squared(mul12(b, conj12(value))))
    return mul12(result, last)


def pairing_product_is_one(pairs: Iterable[tuple[G1 | None, Lines]]) -> bool:
    """Return whether the product of e(P, Q) over the pairs is 1.

    Args:
        pairs: Points of G1 with the lines of points of G2; None is the identity, with pairing 1.
    """
    present = [(point, lines) for point, lines in pairs if point is not None]
    return final_exponentiation(miller_product(present)) == ONE12
