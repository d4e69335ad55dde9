"""Arithmetic of FP256BN: the prime field and its extensions of degree 2, 6 and 12.

The integers are gmpy2's where it is installed (some two times as fast), Python's otherwise; the
variable `EXCISE_DAA_ARITHMETIC=int` chooses Python's. Neither takes constant time: what is computed
with secrets here can be timed by whoever shares the processor.

An element of Fp² = Fp[i]/(i² + 1) is a pair. Fp⁶ = Fp²[v]/(v³ − ξ) and Fp¹² = Fp⁶[w]/(w² − v) with
ξ = 1 + i are flat tuples of 6 and 12 numbers, the coefficients of 1, v, v² and then of w, vw, v²w.
Sums and differences are not reduced: every product is, at its end.

Source: ISO/IEC 15946-5 (the curve); TCG Algorithm Registry, TPM_ECC_BN_P256 (its parameters).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

ARITHMETIC: str
"""`gmpy2` or `int`: whose integers compute here."""

if TYPE_CHECKING:
    integer = int

    def _invert(value: int, modulus: int, /) -> int: ...
    def _power(base: int, exponent: int, modulus: int, /) -> int: ...
else:
    try:
        if os.environ.get("EXCISE_DAA_ARITHMETIC") == "int":
            raise ImportError
        from gmpy2 import invert as _invert
        from gmpy2 import mpz as integer
        from gmpy2 import powmod as _power

        ARITHMETIC = "gmpy2"
    except ImportError:
        integer = int
        _power = pow

        def _invert(value: int, modulus: int) -> int:
            return pow(value, -1, modulus)

        ARITHMETIC = "int"

Fp2 = tuple[int, int]
Fp6 = tuple[int, int, int, int, int, int]
Fp12 = tuple[int, int, int, int, int, int, int, int, int, int, int, int]

U: Final = integer(-0x6882F5C030B0A801)
"""The parameter of this Barreto-Naehrig curve."""
P: Final = 36 * U**4 + 36 * U**3 + 24 * U**2 + 6 * U + 1
"""The field's prime."""
N: Final = 36 * U**4 + 36 * U**3 + 18 * U**2 + 6 * U + 1
"""The prime order of the three groups."""
B: Final = integer(3)
"""The constant of y² = x³ + 3."""

_0: Final = integer(0)
ONE12: Final[Fp12] = (integer(1), _0, _0, _0, _0, _0, _0, _0, _0, _0, _0, _0)


def inverse(value: int) -> int:
    """Return 1/value in Fp; the value is not 0."""
    return _invert(value, P)


def square_root(value: int) -> int | None:
    """Return the even one of the two square roots in Fp, or None when there is none."""
    root = _power(value, (P + 1) >> 2, P)  # p = 3 mod 4
    if root * root % P != value % P:
        return None
    return P - root if root & 1 else root


# Fp²


def add2(a: Fp2, b: Fp2) -> Fp2:
    """Return a + b."""
    return (a[0] + b[0]) % P, (a[1] + b[1]) % P


def sub2(a: Fp2, b: Fp2) -> Fp2:
    """Return a − b."""
    return (a[0] - b[0]) % P, (a[1] - b[1]) % P


def mul2(a: Fp2, b: Fp2) -> Fp2:
    """Return a·b."""
    ar, ai = a
    br, bi = b
    t, u = ar * br, ai * bi
    return (t - u) % P, ((ar + ai) * (br + bi) - t - u) % P


def sqr2(a: Fp2) -> Fp2:
    """Return a²."""
    r, i = a
    return (r + i) * (r - i) % P, (r + r) * i % P


def scale2(a: Fp2, k: int) -> Fp2:
    """Return a·k for k in Fp."""
    return a[0] * k % P, a[1] * k % P


def neg2(a: Fp2) -> Fp2:
    """Return −a."""
    return -a[0] % P, -a[1] % P


def conj2(a: Fp2) -> Fp2:
    """Return the conjugate, which is aᵖ."""
    return a[0], -a[1] % P


def inv2(a: Fp2) -> Fp2:
    """Return 1/a; a is not 0."""
    k = inverse(a[0] * a[0] + a[1] * a[1])
    return a[0] * k % P, -a[1] * k % P


def pow2(a: Fp2, exponent: int) -> Fp2:
    """Return a power in Fp²."""
    result: Fp2 = (integer(1), integer(0))
    for bit in bin(exponent)[2:]:
        result = sqr2(result)
        if bit == "1":
            result = mul2(result, a)
    return result


XI: Final[Fp2] = (integer(1), integer(1))
GAMMA: Final = pow2(XI, int(P - 1) // 6)
"""w^(p−1): what the Frobenius map multiplies w by."""
GAMMA_POWERS: Final = tuple(pow2(GAMMA, k) for k in range(6))
_NORM_POWERS: Final = tuple(mul2(g, conj2(g))[0] for g in GAMMA_POWERS)


# Fp⁶


def _mul6(a: Fp6, b: Fp6) -> Fp6:
    """Return a·b, not reduced."""
    a0, a1, a2, a3, a4, a5 = a
    b0, b1, b2, b3, b4, b5 = b
    t, u = a0 * b0, a1 * b1
    v0r, v0i = t - u, (a0 + a1) * (b0 + b1) - t - u
    t, u = a2 * b2, a3 * b3
    v1r, v1i = t - u, (a2 + a3) * (b2 + b3) - t - u
    t, u = a4 * b4, a5 * b5
    v2r, v2i = t - u, (a4 + a5) * (b4 + b5) - t - u
    # (a₁+a₂)(b₁+b₂) − v₁ − v₂
    c, d, e, f = a2 + a4, a3 + a5, b2 + b4, b3 + b5
    t, u = c * e, d * f
    xr, xi = t - u - v1r - v2r, (c + d) * (e + f) - t - u - v1i - v2i
    # (a₀+a₁)(b₀+b₁) − v₀ − v₁
    c, d, e, f = a0 + a2, a1 + a3, b0 + b2, b1 + b3
    t, u = c * e, d * f
    yr, yi = t - u - v0r - v1r, (c + d) * (e + f) - t - u - v0i - v1i
    # (a₀+a₂)(b₀+b₂) − v₀ − v₂
    c, d, e, f = a0 + a4, a1 + a5, b0 + b4, b1 + b5
    t, u = c * e, d * f
    zr, zi = t - u - v0r - v2r, (c + d) * (e + f) - t - u - v0i - v2i
    return (
        *(v0r + xr - xi, v0i + xr + xi),
        *(yr + v2r - v2i, yi + v2r + v2i),
        *(zr + v1r, zi + v1i),
    )


def _mul6_line(a: Fp6, b: Fp2, c: Fp2) -> Fp6:
    """Return a·(b·v + c·v²), not reduced."""
    a0, a1, a2, a3, a4, a5 = a
    b0, b1 = b
    c0, c1 = c
    bs, cs = b0 + b1, c0 + c1
    # a·(b + c·v) first: a₀b + ξa₂c, a₁b + a₀c, a₂b + a₁c; then times v.
    t, u = a0 * b0, a1 * b1
    pr, pi = t - u, (a0 + a1) * bs - t - u
    t, u = a2 * c0, a3 * c1
    qr, qi = t - u, (a2 + a3) * cs - t - u
    e, f = a0 + a2, a1 + a3
    g, h = b0 + c0, b1 + c1
    t, u = e * g, f * h
    # (a₀+a₁)(b+c) − a₀b − a₁c
    rr, ri = t - u - pr - qr, (e + f) * (g + h) - t - u - pi - qi
    # what is left is a₁b + a₀c; now a₂c and a₂b
    t, u = a4 * c0, a5 * c1
    sr, si = t - u, (a4 + a5) * cs - t - u
    t, u = a4 * b0, a5 * b1
    xr, xi = t - u + qr, (a4 + a5) * bs - t - u + qi
    # times v: (c₀, c₁, c₂) becomes (ξc₂, c₀, c₁)
    return (
        *(xr - xi, xr + xi),
        *(pr + sr - si, pi + sr + si),
        *(rr, ri),
    )


def _inv6(a: Fp6) -> Fp6:
    a0, a1, a2 = (a[0], a[1]), (a[2], a[3]), (a[4], a[5])
    c0 = sub2(sqr2(a0), mul2(XI, mul2(a1, a2)))
    c1 = sub2(mul2(XI, sqr2(a2)), mul2(a0, a1))
    c2 = sub2(sqr2(a1), mul2(a0, a2))
    k = inv2(add2(mul2(a0, c0), mul2(XI, add2(mul2(a2, c1), mul2(a1, c2)))))
    return (*mul2(c0, k), *mul2(c1, k), *mul2(c2, k))


# Fp¹²


def mul12(a: Fp12, b: Fp12) -> Fp12:
    """Return a·b."""
    a0, a1, b0, b1 = a[:6], a[6:], b[:6], b[6:]
    x0, x1, x2, x3, x4, x5 = x = _mul6(a0, b0)
    y0, y1, y2, y3, y4, y5 = y = _mul6(a1, b1)
    sums = _mul6(
        (a0[0] + a1[0], a0[1] + a1[1], a0[2] + a1[2], a0[3] + a1[3], a0[4] + a1[4], a0[5] + a1[5]),
        (b0[0] + b1[0], b0[1] + b1[1], b0[2] + b1[2], b0[3] + b1[3], b0[4] + b1[4], b0[5] + b1[5]),
    )
    return (
        (x0 + y4 - y5) % P,
        (x1 + y4 + y5) % P,
        (x2 + y0) % P,
        (x3 + y1) % P,
        (x4 + y2) % P,
        (x5 + y3) % P,
        (sums[0] - x[0] - y[0]) % P,
        (sums[1] - x[1] - y[1]) % P,
        (sums[2] - x[2] - y[2]) % P,
        (sums[3] - x[3] - y[3]) % P,
        (sums[4] - x[4] - y[4]) % P,
        (sums[5] - x[5] - y[5]) % P,
    )


def sqr12(a: Fp12) -> Fp12:
    """Return a²."""
    a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5 = a
    t0, t1, t2, t3, t4, t5 = _mul6(a[:6], a[6:])
    # (a + b)(a + vb) − ab − vab
    s0, s1, s2, s3, s4, s5 = _mul6(
        (a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5),
        (a0 + b4 - b5, a1 + b4 + b5, a2 + b0, a3 + b1, a4 + b2, a5 + b3),
    )
    return (
        (s0 - t0 - t4 + t5) % P,
        (s1 - t1 - t4 - t5) % P,
        (s2 - t2 - t0) % P,
        (s3 - t3 - t1) % P,
        (s4 - t4 - t2) % P,
        (s5 - t5 - t3) % P,
        (t0 + t0) % P,
        (t1 + t1) % P,
        (t2 + t2) % P,
        (t3 + t3) % P,
        (t4 + t4) % P,
        (t5 + t5) % P,
    )


def mul12_line(a: Fp12, b: Fp2, c: Fp2) -> Fp12:
    """Return a·(1 + (b·v + c·v²)·w), the form of a line."""
    a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5 = a
    x0, x1, x2, x3, x4, x5 = _mul6_line(a[:6], b, c)
    y0, y1, y2, y3, y4, y5 = _mul6_line(a[6:], b, c)
    return (
        (a0 + y4 - y5) % P,
        (a1 + y4 + y5) % P,
        (a2 + y0) % P,
        (a3 + y1) % P,
        (a4 + y2) % P,
        (a5 + y3) % P,
        (b0 + x0) % P,
        (b1 + x1) % P,
        (b2 + x2) % P,
        (b3 + x3) % P,
        (b4 + x4) % P,
        (b5 + x5) % P,
    )


def conj12(a: Fp12) -> Fp12:
    """Return a to the power p⁶, which inverts what has norm 1."""
    return (*a[:6], -a[6] % P, -a[7] % P, -a[8] % P, -a[9] % P, -a[10] % P, -a[11] % P)


def inv12(a: Fp12) -> Fp12:
    """Return 1/a; a is not 0."""
    a0, a1 = a[:6], a[6:]
    x, y = _mul6(a0, a0), _mul6(a1, a1)
    norm = (
        *((x[0] - y[4] + y[5]) % P, (x[1] - y[4] - y[5]) % P),
        *((x[2] - y[0]) % P, (x[3] - y[1]) % P, (x[4] - y[2]) % P, (x[5] - y[3]) % P),
    )
    k = _inv6(norm)
    z0, z1, z2, z3, z4, z5 = _mul6(a0, k)
    m0, m1, m2, m3, m4, m5 = _mul6(a1, k)
    return (
        *(z0 % P, z1 % P, z2 % P, z3 % P, z4 % P, z5 % P),
        *(-m0 % P, -m1 % P, -m2 % P, -m3 % P, -m4 % P, -m5 % P),
    )


def frobenius12(a: Fp12) -> Fp12:
    """Return a to the power p."""
    g = GAMMA_POWERS
    return (
        *(a[0], -a[1] % P),
        *mul2((a[2], -a[3]), g[2]),
        *mul2((a[4], -a[5]), g[4]),
        *mul2((a[6], -a[7]), g[1]),
        *mul2((a[8], -a[9]), g[3]),
        *mul2((a[10], -a[11]), g[5]),
    )


def frobenius12_squared(a: Fp12) -> Fp12:
    """Return a to the power p²."""
    k = _NORM_POWERS
    return (
        *(a[0], a[1], a[2] * k[2] % P, a[3] * k[2] % P, a[4] * k[4] % P, a[5] * k[4] % P),
        *(a[6] * k[1] % P, a[7] * k[1] % P, a[8] * k[3] % P, a[9] * k[3] % P),
        *(a[10] * k[5] % P, a[11] * k[5] % P),
    )


def _sqr4(a0: int, a1: int, b0: int, b1: int) -> tuple[int, int, int, int]:
    """Return (a + b·y)² for y² = ξ, not reduced."""
    tr, ti = (a0 + a1) * (a0 - a1), 2 * a0 * a1
    ur, ui = (b0 + b1) * (b0 - b1), 2 * b0 * b1
    c, d = a0 + b0, a1 + b1
    return (
        tr + ur - ui,
        ti + ur + ui,
        (c + d) * (c - d) - tr - ur,
        2 * c * d - ti - ui,
    )


def sqr12_unitary(a: Fp12) -> Fp12:
    """Return a² for an element of the cyclotomic subgroup.

    Source: Granger, Scott, Faster Squaring in the Cyclotomic Subgroup (PKC 2010).
    """
    a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5 = a
    p0, p1, p2, p3 = _sqr4(a0, a1, b2, b3)
    q0, q1, q2, q3 = _sqr4(b0, b1, a4, a5)
    r0, r1, r2, r3 = _sqr4(a2, a3, b4, b5)
    t0, t1 = r2 - r3, r2 + r3
    return (
        (3 * p0 - 2 * a0) % P,
        (3 * p1 - 2 * a1) % P,
        (3 * q0 - 2 * a2) % P,
        (3 * q1 - 2 * a3) % P,
        (3 * r0 - 2 * a4) % P,
        (3 * r1 - 2 * a5) % P,
        (3 * t0 + 2 * b0) % P,
        (3 * t1 + 2 * b1) % P,
        (3 * p2 + 2 * b2) % P,
        (3 * p3 + 2 * b3) % P,
        (3 * q2 + 2 * b4) % P,
        (3 * q3 + 2 * b5) % P,
    )
