"""A sensor's message has one form, and anything else is refused by name of the field."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import FormatError, UsageError
from excise.evidence.sensor_message import MAGIC, SensorMessage, read_sensor_message

BANKS = st.dictionaries(
    st.sampled_from(["sha1", "sha256", "sha384", "sha512", "sm3_256"]),
    st.dictionaries(st.integers(0, 31), st.binary(min_size=1, max_size=64), max_size=24),
)
MESSAGES = st.builds(
    SensorMessage,
    list_offset=st.integers(0, 2**63 - 1),
    list_entries=st.binary(max_size=300),
    list_sha512=st.binary(min_size=64, max_size=64),
    pcrs=BANKS,
    embedder=st.text("abc_0 é", max_size=20),
    embedding=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)).map(tuple),
    image_sha256=st.binary(min_size=32, max_size=32),
)


def _message(**changes: object) -> SensorMessage:
    fields: dict[str, object] = {
        "list_offset": 5,
        "list_entries": b"entries",
        "list_sha512": bytes(64),
        "pcrs": {"sha256": {0: bytes(32), 10: b"\1" * 32}},
        "embedder": "model",
        "embedding": (1.0, -0.5),
        "image_sha256": bytes(32),
    }
    return SensorMessage(**(fields | changes))  # type: ignore[arg-type]


@given(MESSAGES)
def test_reading_what_was_written_gives_it_back(message: SensorMessage) -> None:
    data = message.to_bytes()
    assert read_sensor_message(data) == message
    assert read_sensor_message(data).to_bytes() == data


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_message_of_one_form_or_a_format_error(data: bytes, magic: bool) -> None:
    data = MAGIC + data if magic else data
    try:
        message = read_sensor_message(data)
    except FormatError:
        return
    assert message.to_bytes() == data


@given(MESSAGES, st.data())
def test_a_message_cut_anywhere_is_refused(message: SensorMessage, draw: st.DataObject) -> None:
    data = message.to_bytes()
    end = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(FormatError, match=r"."):
        read_sensor_message(data[:end])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data + b"\0", "after the last field"),
        (lambda data: data.replace(b"\0\2\0\0\0\7", b"\0\3\0\0\0\7"), "tag 3 where 2 belongs"),
        (lambda data: data.replace(b"\0\1\0\0\0\x08", b"\0\1\0\0\0\x07", 1), "tag"),
        (lambda data: data.replace(b"model", b"mo\x00el"), "embedder"),
        (lambda data: data.replace(b"model", b"mo\xffel"), "embedder"),
        (lambda data: data.replace(b"\x3f\x80\0\0", b"\x7f\x80\0\0"), "what is no number"),
        (lambda data: data.replace(b"\x0a\x20\1", b"\x00\x20\1"), "PCR 0 is not in order"),
        (lambda data: data.replace(b"\6sha256", b"\7sha256"), "PCR values"),
    ],
)
def test_what_differs_in_one_thing_is_refused(change, reason: str) -> None:  # type: ignore[no-untyped-def]
    data = _message().to_bytes()
    assert change(data) != data
    with pytest.raises(FormatError, match=reason):
        read_sensor_message(change(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"list_offset": -1},
        {"list_sha512": b""},
        {"image_sha256": bytes(31)},
        {"embedding": (0.0,) * 5000},
        {"pcrs": {"": {0: b"1"}}},
        {"pcrs": {"sha1": {32: b"1"}}},
        {"pcrs": {"sha1": {0: b""}}},
    ],
)
def test_what_has_no_form_is_not_written(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"."):
        _message(**changes).to_bytes()
