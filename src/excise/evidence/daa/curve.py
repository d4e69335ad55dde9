"""The two groups of FP256BN: points, their encodings, and sums of multiples of them.

A point is affine, a pair of coordinates, and never the identity; where a sum can be the identity it
is None. In between, points of G1 are Jacobian triples.

Source: TCG Algorithm Registry, TPM_ECC_BN_P256; the encodings are those of xaptum/ecdaa 1.x and
FIDO ECDAA: 04 ‖ x ‖ y, and 04 ‖ x.re ‖ x.im ‖ y.re ‖ y.im.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from excise.errors import FormatError
from excise.evidence.daa.field import (
    GAMMA_POWERS,
    XI,
    B,
    Fp2,
    N,
    P,
    U,
    conj2,
    integer,
    inv2,
    inverse,
    mul2,
    neg2,
    scale2,
    sqr2,
    square_root,
    sub2,
)

G1 = tuple[int, int]
G2 = tuple[Fp2, Fp2]
_Jacobian = tuple[int, int, int]

SCALAR_BYTES: Final = 32
G1_BYTES: Final = 65
G2_BYTES: Final = 129

GENERATOR_1: Final[G1] = (integer(1), integer(2))
GENERATOR_2: Final[G2] = (
    (
        integer(0xFE0C3350B4C96C2028560F577C28913ACE1C539A12BF843CD22616B689C09EFB),
        integer(0x4EA66057738AC054DB5AE1C637D813B924DD78E287D03589D269ED34A37E6A2B),
    ),
    (
        integer(0x702046E7C542A3B376770D75124E3E51EFCB24758D615848E909B481BEDC27FF),
        integer(0x0554E3BCD388C29042EEA649297EB29F8B4CBE80821A98B3E01281114AAD049B),
    ),
)
"""AMCL's generator, which xaptum/ecdaa uses; IBM's FIDO code has the negative of it."""

_TWIST_B: Final = scale2(XI, B)
_INFINITY: Final[_Jacobian] = (integer(1), integer(1), integer(0))


# Numbers and encodings


def random_scalar() -> int:
    """Return a uniformly random number in 1..n−1, from the system's generator."""
    return integer(secrets.randbelow(int(N) - 1) + 1)


def encode_scalar(value: int) -> bytes:
    """Return 32 bytes, big-endian."""
    return int(value).to_bytes(SCALAR_BYTES, "big")


def decode_scalar(data: bytes, *, field: str, allow_zero: bool = False) -> int:
    """Return a number modulo n in its only encoding.

    Raises:
        FormatError: Not 32 bytes, not below the group order, or zero.
    """
    _require_size(data, SCALAR_BYTES, field)
    value = int.from_bytes(data, "big")
    if value >= N:
        raise FormatError("not below the group order", field=field)
    if value == 0 and not allow_zero:
        raise FormatError("zero", field=field)
    return integer(value)


def encode_g1(point: G1) -> bytes:
    """Return 04 ‖ x ‖ y."""
    return b"\x04" + int(point[0]).to_bytes(32, "big") + int(point[1]).to_bytes(32, "big")


def decode_g1(data: bytes, *, field: str) -> G1:
    """Return a point of G1; the curve's cofactor is 1, so every point on it has order n.

    Raises:
        FormatError: Wrong size or tag, a coordinate not below p, the identity, or not on the curve.
    """
    x, y = _coordinates(data, G1_BYTES, field)
    if (y * y - x * x * x - B) % P:
        raise FormatError("not on the curve y² = x³ + 3", field=field)
    return x, y


def encode_g2(point: G2) -> bytes:
    """Return 04 ‖ x.re ‖ x.im ‖ y.re ‖ y.im."""
    return b"\x04" + b"".join(int(n).to_bytes(32, "big") for half in point for n in half)


def decode_g2(data: bytes, *, field: str) -> G2:
    """Return a point of G2, on the twist and of order n.

    Raises:
        FormatError: Wrong size or tag, a coordinate not below p, the identity, not on the twist, or
            of another order.
    """
    xr, xi, yr, yi = _coordinates(data, G2_BYTES, field)
    point: G2 = (xr, xi), (yr, yi)
    if not on_twist(point):
        raise FormatError("not on the twist y² = x³ + 3(1 + i)", field=field)
    if not in_g2(point):
        raise FormatError("not in the subgroup of order n", field=field)
    return point


def _require_size(data: bytes, size: int, field: str) -> None:
    if len(data) != size:
        raise FormatError(f"{len(data)} bytes instead of {size}", field=field)


def _coordinates(data: bytes, size: int, field: str) -> tuple[int, ...]:
    _require_size(data, size, field)
    if data[0] != 4:
        raise FormatError(f"tag {data[0]:#04x} instead of 0x04 (uncompressed)", field=field)
    numbers = [int.from_bytes(data[at : at + 32], "big") for at in range(1, size, 32)]
    if not any(numbers):
        raise FormatError("the identity", field=field)
    if any(number >= P for number in numbers):
        raise FormatError("a coordinate is not below p", field=field)
    return tuple(integer(number) for number in numbers)


# G1


def lift_x(x: int) -> G1 | None:
    """Return the point with this x and an even y, or None when there is none."""
    y = square_root(x * x * x + B)
    return None if y is None else (integer(x), y)


def batch_inverse(values: Sequence[int]) -> list[int]:
    """Return the inverse of each value, none of which is 0, with one inversion in all."""
    prefixes, product = [], integer(1)
    for value in values:
        prefixes.append(product)
        product = product * value % P
    rest = inverse(product)
    result = [product] * len(values)
    for at in range(len(values) - 1, -1, -1):
        result[at] = rest * prefixes[at] % P
        rest = rest * values[at] % P
    return result


def _double(point: _Jacobian) -> _Jacobian:
    x, y, z = point
    a = x * x % P
    b = y * y % P
    d = 4 * x * b % P
    e = 3 * a
    nx = (e * e - 2 * d) % P
    return nx, (e * (d - nx) - 8 * b * b) % P, 2 * y * z % P


def _add_affine(point: _Jacobian, other: G1) -> _Jacobian:
    x, y, z = point
    if z == 0:
        return other[0], other[1], integer(1)
    zz = z * z % P
    h = (other[0] * zz - x) % P
    r = (other[1] * zz * z - y) % P
    if h == 0:
        return _double(point) if r == 0 else _INFINITY
    hh = h * h % P
    hhh = h * hh % P
    v = x * hh % P
    nx = (r * r - hhh - 2 * v) % P
    return nx, (r * (v - nx) - y * hhh) % P, z * h % P


def _to_affine(point: _Jacobian) -> G1 | None:
    x, y, z = point
    if z == 0:
        return None
    k = inverse(z)
    kk = k * k % P
    return x * kk % P, y * kk * k % P


def _all_affine(points: Sequence[_Jacobian]) -> list[G1]:
    """Return points that are not the identity, with one inversion in all."""
    result = []
    for (x, y, _), k in zip(points, batch_inverse([p[2] for p in points]), strict=True):
        kk = k * k % P
        result.append((x * kk % P, y * kk * k % P))
    return result


def negate(point: G1) -> G1:
    """Return −P."""
    return point[0], P - point[1]


def add(first: G1 | None, second: G1 | None) -> G1 | None:
    """Return P + Q."""
    if first is None or second is None:
        return first if second is None else second
    return _to_affine(_add_affine((first[0], first[1], integer(1)), second))


def multiply(point: G1, scalar: int) -> G1 | None:
    """Return k·P for any k."""
    return sum_of_multiples([(point, scalar)])


def multiply_each(points: Sequence[G1], scalar: int) -> list[G1]:
    """Return k·P for each point, for a k that n does not divide."""
    return _all_affine([_sum_jacobian([(point, scalar)]) for point in points])


def sum_of_multiples(terms: Iterable[tuple[G1, int]]) -> G1 | None:
    """Return Σ k·P, all terms in one pass."""
    return _to_affine(_sum_jacobian(list(terms)))


# The curve has the endomorphism (x, y) → (βx, y), which multiplies by λ; k = k₁ + k₂λ with k₁ and
# k₂ of half the length. Source: Gallant, Lambert, Vanstone (CRYPTO 2001).
_BETA: Final = (-18 * U**3 - 18 * U**2 - 9 * U - 2) % P
# Two short vectors (a, b) with a + bλ = 0 mod n, of determinant −n.
_V1: Final = (2 * U + 1, 6 * U**2 + 4 * U + 1)
_V2: Final = (6 * U**2 + 2 * U, -(2 * U + 1))
_WINDOW: Final = 5
_SHORT_BITS: Final = 136
"""Scalars of no more bits are not split: the shared doublings are as few."""


def _split(scalar: int) -> tuple[int, int]:
    """Return (k₁, k₂) with k = k₁ + k₂λ mod n, each of about 128 bits."""
    determinant = _V1[0] * _V2[1] - _V1[1] * _V2[0]
    c1 = (2 * scalar * _V2[1] + determinant) // (2 * determinant)
    c2 = (-2 * scalar * _V1[1] + determinant) // (2 * determinant)
    return scalar - c1 * _V1[0] - c2 * _V2[0], -c1 * _V1[1] - c2 * _V2[1]


def _wnaf(scalar: int, window: int = _WINDOW) -> list[tuple[int, int]]:
    """Return the (position, odd digit) pairs of the windowed non-adjacent form of k ≥ 0."""
    full, half = 1 << window, 1 << (window - 1)
    digits = []
    rest, position = int(scalar), 0
    while rest:
        shift = (rest & -rest).bit_length() - 1
        rest >>= shift
        position += shift
        digit = rest & (full - 1)
        if digit >= half:
            digit -= full
        digits.append((position, digit))
        rest -= digit
    return digits


def signed_digits(value: int) -> tuple[int, ...]:
    """Return the non-adjacent form of a number ≥ 0, most significant digit first."""
    sparse = dict(_wnaf(value, window=2))
    return tuple(sparse.get(position, 0) for position in range(max(sparse, default=-1), -1, -1))


def _odd_multiples(points: Sequence[G1]) -> list[list[G1]]:
    """Return P, 3P, 5P … (half a window) of each point, affine."""
    count = 1 << (_WINDOW - 2)
    one = integer(1)
    doubles = _all_affine([_double((x, y, one)) for x, y in points])
    flat: list[_Jacobian] = []
    for (x, y), twice in zip(points, doubles, strict=True):
        here: _Jacobian = (x, y, one)
        flat.append(here)
        for _ in range(count - 1):
            here = _add_affine(here, twice)
            flat.append(here)
    affine = _all_affine(flat)
    return [affine[at : at + count] for at in range(0, len(affine), count)]


def _sum_jacobian(terms: list[tuple[G1, int]]) -> _Jacobian:
    """Return Σ k·P by interleaved windows."""
    kept = [(point, scalar % N) for point, scalar in terms]
    kept = [(point, scalar) for point, scalar in kept if scalar]
    if not kept:
        return _INFINITY
    tables = _odd_multiples([point for point, _ in kept])
    schedule: dict[int, list[G1]] = {}

    def enter(table: list[G1], scalar: int) -> None:
        sign = scalar < 0
        for position, digit in _wnaf(-scalar if sign else scalar):
            x, y = table[abs(digit) >> 1]
            point = (x, P - y) if (digit < 0) != sign else (x, y)
            schedule.setdefault(position, []).append(point)

    for (_, scalar), table in zip(kept, tables, strict=True):
        if int(scalar).bit_length() <= _SHORT_BITS:
            enter(table, scalar)
            continue
        first, second = _split(scalar)
        enter(table, first)
        enter([(_BETA * x % P, y) for x, y in table], second)
    result = _INFINITY
    for position in range(max(schedule), -1, -1):
        if result[2]:
            result = _double(result)
        for point in schedule.get(position, ()):
            result = _add_affine(result, point)
    return result


class FixedBase:
    """Multiples of one point, found with additions alone.

    Args:
        point: The point.
        window: Bits of a digit: a table has 2^window − 1 points for each of 256/window digits.
    """

    def __init__(self, point: G1, *, window: int = 4) -> None:
        self._window = window
        rows: list[_Jacobian] = []
        per_row = (1 << window) - 1
        digits = -(-int(N).bit_length() // window)
        starts: list[_Jacobian] = [(point[0], point[1], integer(1))]
        for _ in range(digits - 1):
            here = starts[-1]
            for _ in range(window):
                here = _double(here)
            starts.append(here)
        for base in _all_affine(starts):
            here = (base[0], base[1], integer(1))
            rows.append(here)
            for _ in range(per_row - 1):
                here = _add_affine(here, base)
                rows.append(here)
        affine = _all_affine(rows)
        self._rows = [affine[at : at + per_row] for at in range(0, len(affine), per_row)]

    def multiply_all(self, scalars: Sequence[int]) -> list[G1 | None]:
        """Return k·P for each k, in step, so that one inversion serves a digit of all of them."""
        rests, mask = [int(scalar % N) for scalar in scalars], (1 << self._window) - 1
        sums: list[G1 | None] = [None] * len(rests)
        for at, row in enumerate(self._rows):
            shift = at * self._window
            pending: list[tuple[int, G1, G1, int]] = []
            for index, rest in enumerate(rests):
                digit = rest >> shift & mask
                if not digit:
                    continue
                here, other = sums[index], row[digit - 1]
                # Partial sums are multiples below the row's: x is equal only in a wrap at n.
                if here is None:
                    sums[index] = other
                elif here[0] == other[0]:
                    sums[index] = add(here, other)
                else:
                    pending.append((index, here, other, other[0] - here[0]))
            inverses = batch_inverse([difference for *_, difference in pending])
            for (index, (x, y), (ox, oy), _), k in zip(pending, inverses, strict=True):
                slope = (oy - y) * k % P
                nx = (slope * slope - x - ox) % P
                sums[index] = nx, (slope * (x - nx) - y) % P
        return sums


# G2


def on_twist(point: G2) -> bool:
    """Return whether a pair lies on y² = x³ + 3(1 + i)."""
    x, y = point
    return sub2(sqr2(y), mul2(sqr2(x), x)) == _TWIST_B


_X_FROBENIUS: Final = inv2(GAMMA_POWERS[2])
_Y_FROBENIUS: Final = inv2(GAMMA_POWERS[3])


def frobenius_g2(point: G2) -> G2:
    """Return the p-power Frobenius map ψ, carried over to the twist."""
    x, y = point
    return mul2(conj2(x), _X_FROBENIUS), mul2(conj2(y), _Y_FROBENIUS)


def in_g2(point: G2) -> bool:
    """Return whether a point of the twist has order n.

    It has if and only if ψ(Q) = (t − 1)Q, with t − 1 = 6u²: ψ² − tψ + p = 0 holds on the whole
    twist, so that such a Q has (p + 1 − t)Q = nQ = 0; and on the group of order n, ψ is
    multiplication by p, which is t − 1 modulo n.
    """
    return frobenius_g2(point) == multiply_g2(point, 6 * U * U)


_Jacobian2 = tuple[Fp2, Fp2, Fp2]
_ZERO2: Final[Fp2] = (integer(0), integer(0))
_ONE2: Final[Fp2] = (integer(1), integer(0))


def _double_g2(point: _Jacobian2) -> _Jacobian2:
    x, y, z = point
    b = sqr2(y)
    d = scale2(mul2(x, b), 4)
    e = scale2(sqr2(x), 3)
    nx = sub2(sqr2(e), (2 * d[0], 2 * d[1]))
    return nx, sub2(mul2(e, sub2(d, nx)), scale2(sqr2(b), 8)), scale2(mul2(y, z), 2)


def _add_affine_g2(point: _Jacobian2, other: G2) -> _Jacobian2:
    x, y, z = point
    if z == _ZERO2:
        return other[0], other[1], _ONE2
    zz = sqr2(z)
    h = sub2(mul2(other[0], zz), x)
    r = sub2(mul2(other[1], mul2(zz, z)), y)
    if h == _ZERO2:
        return _double_g2(point) if r == _ZERO2 else (_ONE2, _ONE2, _ZERO2)
    hh = sqr2(h)
    hhh = mul2(h, hh)
    v = mul2(x, hh)
    nx = sub2(sub2(sqr2(r), hhh), (2 * v[0], 2 * v[1]))
    return nx, sub2(mul2(r, sub2(v, nx)), mul2(y, hhh)), mul2(z, h)


def multiply_g2(point: G2, scalar: int) -> G2 | None:
    """Return k·Q for k ≥ 0, also for a point of the twist outside G2."""
    result: _Jacobian2 = (_ONE2, _ONE2, _ZERO2)
    minus = point[0], neg2(point[1])
    for digit in signed_digits(scalar):
        result = _double_g2(result)
        if digit:
            result = _add_affine_g2(result, point if digit > 0 else minus)
    return _to_affine_g2(result)


def add_g2(first: G2, second: G2) -> G2 | None:
    """Return Q + Q'."""
    return _to_affine_g2(_add_affine_g2((first[0], first[1], _ONE2), second))


def _to_affine_g2(point: _Jacobian2) -> G2 | None:
    x, y, z = point
    if z == _ZERO2:
        return None
    k = inv2(z)
    kk = sqr2(k)
    return mul2(x, kk), mul2(y, mul2(kk, k))
