from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.evidence.daa import field
from excise.evidence.daa.curve import (
    GENERATOR_1,
    GENERATOR_2,
    FixedBase,
    add,
    add_g2,
    decode_g1,
    decode_g2,
    decode_scalar,
    encode_g1,
    encode_g2,
    encode_scalar,
    in_g2,
    multiply,
    multiply_g2,
    negate,
    on_twist,
    sum_of_multiples,
)
from excise.evidence.daa.field import N, P, U, mul12, sqr2, sqr12, sqr12_unitary
from excise.evidence.daa.hashing import hash_to_scalar
from excise.evidence.daa.pairing import (
    final_exponentiation,
    miller_product,
    pairing_product_is_one,
    precompute_lines,
)

scalars = st.integers(min_value=0, max_value=int(N) + 5)
INFINITY = b"\x04" + bytes(64)


def pairing(point, other):
    return final_exponentiation(miller_product([(point, precompute_lines(other))]))


def power(value, exponent):
    result = field.ONE12
    for bit in bin(int(exponent))[2:]:
        result = sqr12(result)
        if bit == "1":
            result = mul12(result, value)
    return result


def naive_multiple(point, scalar):
    """Return k·P with nothing but the group law."""
    result, addend = None, point
    while scalar:
        if scalar & 1:
            result = add(result, addend)
        addend, scalar = add(addend, addend), scalar >> 1
    return result


def twist_point_outside_g2():
    """Return a point of the twist that is not in G2: nearly every point of it is not."""
    for number in range(1, 100):
        x = (field.integer(number), field.integer(1))
        right = field.add2(field.mul2(sqr2(x), x), field.scale2(field.XI, field.B))
        # A root in Fp² of a + bi: with the norm's root r, re² = (a ± r)/2.
        r = field.square_root(right[0] ** 2 + right[1] ** 2)
        for sign in (1, -1) if r is not None else ():
            re = field.square_root((right[0] + sign * r) * field.inverse(2))
            if re:
                y = (re, right[1] * field.inverse(2 * re) % P)
                if on_twist((x, y)):
                    return x, y
    raise AssertionError("no point found")


def test_the_numbers_are_those_of_tpm_ecc_bn_p256() -> None:
    assert U == -0x6882F5C030B0A801
    assert P == 0xFFFFFFFFFFFCF0CD46E5F25EEE71A49F0CDC65FB12980A82D3292DDBAED33013
    assert N == 0xFFFFFFFFFFFCF0CD46E5F25EEE71A49E0CDC65FB1299921AF62D536CD10B500D


def test_both_generators_have_order_n() -> None:
    assert multiply(GENERATOR_1, N - 1) == negate(GENERATOR_1)
    assert multiply(GENERATOR_1, N) is None
    assert on_twist(GENERATOR_2)
    assert multiply_g2(GENERATOR_2, N) is None
    assert in_g2(GENERATOR_2)


@given(scalars, scalars)
def test_sums_of_multiples_equal_those_of_the_plain_group_law(a: int, b: int) -> None:
    other = naive_multiple(GENERATOR_1, 0xDEADBEEF)
    expected = add(naive_multiple(GENERATOR_1, a), naive_multiple(other, b))
    assert sum_of_multiples([(GENERATOR_1, a), (other, b)]) == expected


def test_a_table_of_multiples_equals_single_ones_at_the_edges_too() -> None:
    numbers = [0, 1, 2, 15, 16, 17, 2**128, N - 1, N, N + 1, hash_to_scalar(b"any")]
    for window in (4, 6):
        table = FixedBase(GENERATOR_1, window=window)
        expected = [naive_multiple(GENERATOR_1, number % N) for number in numbers]
        assert table.multiply_all(numbers) == expected


def test_the_pairing_is_bilinear_and_not_degenerate() -> None:
    a, b = hash_to_scalar(b"a"), hash_to_scalar(b"b")
    one = pairing(GENERATOR_1, GENERATOR_2)
    left, right = multiply(GENERATOR_1, a), multiply_g2(GENERATOR_2, b)
    assert one != field.ONE12
    assert power(one, N) == field.ONE12
    assert pairing(left, right) == power(one, a * b % N)
    assert pairing(negate(GENERATOR_1), GENERATOR_2) == field.conj12(one)


def test_a_product_of_pairings_is_one_exactly_when_the_exponents_cancel() -> None:
    lines = precompute_lines(GENERATOR_2)
    triple = multiply_g2(GENERATOR_2, 3)
    minus = negate(multiply(GENERATOR_1, 3))
    assert pairing_product_is_one([(GENERATOR_1, precompute_lines(triple)), (minus, lines)])
    assert not pairing_product_is_one([(GENERATOR_1, lines), (minus, lines)])
    assert pairing_product_is_one([(None, lines)])


def test_a_square_in_the_cyclotomic_subgroup_is_the_plain_square() -> None:
    value = pairing(GENERATOR_1, GENERATOR_2)
    assert sqr12_unitary(value) == sqr12(value) == mul12(value, value)


def test_the_subgroup_check_knows_points_of_the_twist_outside_g2() -> None:
    outside = twist_point_outside_g2()
    assert multiply_g2(outside, N) is not None
    assert not in_g2(outside)
    assert in_g2(multiply_g2(GENERATOR_2, 12345))
    with pytest.raises(FormatError, match="not in the subgroup of order n"):
        decode_g2(encode_g2(outside), field="X")


def test_the_negated_generator_of_other_fido_code_is_told_apart() -> None:
    x, y = GENERATOR_2
    negated = (x, field.neg2(y))
    assert in_g2(negated)
    assert encode_g2(negated) != encode_g2(GENERATOR_2)
    assert multiply_g2(negated, 7) != multiply_g2(GENERATOR_2, 7)
    assert add_g2(GENERATOR_2, negated) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (INFINITY, "the identity"),
        (encode_g1(GENERATOR_1)[:-1], "64 bytes instead of 65"),
        (encode_g1(GENERATOR_1) + b"\0", "66 bytes instead of 65"),
        (b"\x02" + encode_g1(GENERATOR_1)[1:], "tag 0x02"),
        (b"\x04" + encode_scalar(1) + encode_scalar(3), "not on the curve"),
        (b"\x04" + encode_scalar(P) + encode_scalar(2), "not below p"),
        (b"\x04" + encode_scalar(1) + encode_scalar(P), "not below p"),
        (b"\x04" + encode_scalar(P + 1) + encode_scalar(2), "not below p"),
        (b"\x04" + encode_scalar(1) + encode_scalar(P + 2), "not below p"),
    ],
)
def test_a_point_of_g1_has_one_encoding(data: bytes, reason: str) -> None:
    assert decode_g1(encode_g1(GENERATOR_1), field="A") == GENERATOR_1
    with pytest.raises(FormatError, match=reason):
        decode_g1(data, field="A")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: b"\x04" + bytes(128), "the identity"),
        (lambda d: d[:-1], "128 bytes instead of 129"),
        (lambda d: b"\x03" + d[1:], "tag 0x03"),
        (lambda d: d[:33] + bytes(32) + d[65:], "not on the twist"),
        (lambda d: d[:1] + encode_scalar(P) + d[33:], "not below p"),
    ],
)
def test_a_point_of_g2_has_one_encoding(change, reason: str) -> None:
    good = encode_g2(GENERATOR_2)
    assert decode_g2(good, field="X") == GENERATOR_2
    with pytest.raises(FormatError, match=reason):
        decode_g2(change(good), field="X")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode_scalar(N), "not below the group order"),
        (b"\xff" * 32, "not below the group order"),
        (bytes(32), "zero"),
        (bytes(31), "31 bytes instead of 32"),
    ],
)
def test_a_number_has_one_encoding(data: bytes, reason: str) -> None:
    assert decode_scalar(encode_scalar(N - 1), field="c") == N - 1
    with pytest.raises(FormatError, match=reason):
        decode_scalar(data, field="c")


@given(st.binary(max_size=140))
def test_any_bytes_are_a_point_or_a_format_error(data: bytes) -> None:
    for decode in (decode_g1, decode_g2):
        try:
            decode(data, field="any")
        except FormatError:
            continue
        raise AssertionError("random bytes made a point")


@pytest.mark.parametrize("arithmetic", ["int", "gmpy2"])
def test_both_kinds_of_integers_give_the_same_verdicts(arithmetic: str) -> None:
    program = (
        "from excise.evidence.daa import field\n"
        "from daa_group import BASENAME, group, failed\n"
        "made = group()\n"
        "good = made.sign(basename=BASENAME)\n"
        "result = made.verifier.verify(good, message=b'the state of a sensor', basename=BASENAME)\n"
        "wrong = made.verifier.verify(good, message=b'another', basename=BASENAME)\n"
        "print(field.ARITHMETIC, result.verdict, failed(wrong))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), "EXCISE_DAA_ARITHMETIC": arithmetic},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{arithmetic} PASSED ['daa.proof']\n"
