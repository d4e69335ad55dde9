from __future__ import annotations

from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.evidence.cbor import MAX_DEPTH, Tag, check_cbor, read_cbor, write_cbor

_KEYS = st.one_of(st.integers(-(2**64), 2**64 - 1), st.text(max_size=8), st.binary(max_size=8))
_VALUES = st.recursive(
    st.one_of(_KEYS, st.booleans(), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_KEYS, inner, max_size=4),
        st.builds(Tag, st.sampled_from([18, 501, 560]), inner),
    ),
    max_leaves=12,
)


@given(_VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert read_cbor(write_cbor(value), tags=(18, 501, 560)) == value


@given(st.binary(max_size=64))
def test_any_bytes_give_a_value_or_a_format_error(data: bytes) -> None:
    with suppress(FormatError):
        read_cbor(data, tags=(1, 18, 37))


@given(_VALUES, st.binary(min_size=1, max_size=8))
def test_bytes_after_the_item_are_refused(value: Any, rest: bytes) -> None:
    with pytest.raises(FormatError, match="bytes follow the item"):
        check_cbor(write_cbor(value) + rest, tags=(18, 501, 560))


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        ("a201020103", "the key 1 occurs twice"),
        ("a20a011a0000000a02", "the key 10 occurs twice"),
        ("a2616101616102", "the key 'a' occurs twice"),
        ("a2410102410103", "the key h'01' occurs twice"),
        ("a1f9490001", "a key is a float or simple value"),
        ("a1f501", "a key is a float or simple value"),
        ("a18001", "a key is an array"),
        ("9fff", "a length is indefinite"),
        ("bf0102ff", "a length is indefinite"),
        ("5f4101ff", "a length is indefinite"),
        ("7f6161ff", "a length is indefinite"),
        ("d81c8201d81d00", "tag 28 is not allowed here"),
        ("d81d00", "tag 29 is not allowed here"),
        ("c249010000000000000000", "tag 2 is not allowed here"),
        ("8201", "2 items are announced in 1 bytes"),
        ("82011a00", "ends inside an item"),
        ("43aabb", "3 bytes are announced and 2 are left"),
        ("9a7fffffff", "2147483647 items are announced in 0 bytes"),
        ("ba7fffffff00", "items are announced in 1 bytes"),
        ("1c", "additional information 28 is reserved"),
        ("f7", "simple value 23 has no meaning here"),
        ("f8ff", "simple value 24 has no meaning here"),
        ("ff", "a length is indefinite"),
        ("", "ends inside an item"),
        ("61ff", "cannot be decoded"),
        ("19ff", "ends inside an item"),
    ],
)
def test_loose_encodings_are_refused_by_name(encoded: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_cbor(bytes.fromhex(encoded))


def test_what_a_general_decoder_takes_is_what_the_scan_refuses() -> None:
    # The decoder alone: the last of two keys wins, 1 and true are one key, 10 and 10.0 too.
    assert cbor2.loads(bytes.fromhex("a201020103")) == {1: 3}
    assert cbor2.loads(bytes.fromhex("a20101f502")) == {1: 2}
    assert cbor2.loads(bytes.fromhex("a20a01f9490002")) == {10: 2}
    for encoded in ("a201020103", "a20101f502", "a20a01f9490002"):
        with pytest.raises(FormatError, match="key"):
            read_cbor(bytes.fromhex(encoded))


def test_integers_in_more_bytes_than_they_need_are_read() -> None:
    assert read_cbor(bytes.fromhex("a1190001" + "5b0000000000000001ff")) == {1: b"\xff"}


def test_nesting_ends_at_a_limit() -> None:
    assert read_cbor(b"\x81" * MAX_DEPTH + b"\x01")
    with pytest.raises(FormatError, match="nested more than"):
        read_cbor(b"\x81" * (MAX_DEPTH + 1) + b"\x01")


def test_values_in_tags_have_the_same_types_as_outside() -> None:
    # cbor2 6 gives tuples and frozen maps inside tags, cbor2 5 lists and maps.
    value = read_cbor(write_cbor(Tag(18, [{1: [2]}, {3: {4: []}}])), tags=(18,))
    assert value == Tag(18, [{1: [2]}, {3: {4: []}}])
    assert type(value.value) is list
    assert type(value.value[0]) is dict
    assert type(value.value[0][1]) is list


def test_tags_that_the_decoder_turns_into_objects_come_back_as_tags() -> None:
    assert read_cbor(bytes.fromhex("c11a61ce4800"), tags=(1,)) == Tag(1, 1640908800)
    uuid = bytes(range(16))
    assert read_cbor(b"\xd8\x25\x50" + uuid, tags=(37,)) == Tag(37, uuid)
    with pytest.raises(FormatError, match="cannot be decoded"):
        read_cbor(bytes.fromhex("c11bffffffffffffffff"), tags=(1,))


def test_errors_say_where() -> None:
    with pytest.raises(
        FormatError, match="x: offset 3: field CBOR: the key 1 occurs twice"
    ) as info:
        read_cbor(bytes.fromhex("a201020103"), source="x")
    assert info.value.offset == 3
