"""Arbitrary bytes, and damaged real ones, give rows or one FormatError."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.capture.journal import encode
from excise.errors import FormatError
from excise.formats.model import Format, Options, Reading
from excise.formats.registry import by_name
from foreign_inputs import EXAMPLES

NAMES = sorted(EXAMPLES)
INT64_MAX = 2**63 - 1


def _require_sound(reading: Reading) -> None:
    """Rows that every later step can rely on."""
    sequences = [run.sequence for run in reading.runs]
    assert sequences == list(range(len(sequences)))
    assert reading.runs or reading.aggregates
    for run in reading.runs:
        for value in (run.wall_ns, run.user_ns, run.system_ns, run.max_rss_bytes):
            assert value is None or 0 <= value <= INT64_MAX
        if run.probe is not None:
            assert all(math.isfinite(value) and value >= 0.0 for value in run.probe.op_ns)
        assert run.exit_code is None or abs(run.exit_code) <= INT64_MAX
    known = set(sequences)
    for event in reading.events:
        assert event.sequence in known
        assert math.isfinite(event.value)
    for row in reading.aggregates:
        for number in (row.count, row.min, row.mean, row.median, row.max, row.sd):
            assert number is None or math.isfinite(number)
    for loss in reading.losses:
        assert loss.reason
        assert loss.count >= 1
        assert len(loss.text) <= 200
    for record in (*reading.runs, *reading.events, *reading.aggregates, *reading.losses):
        assert encode(record).endswith(b"}\n")


def _attempt(known: Format, data: bytes) -> None:
    confidence = known.detect(data[:65536])
    assert 0.0 <= confidence <= 1.0
    found = _answer(known, data)
    if isinstance(found, Reading):
        _require_sound(found)
        return
    assert found.reason
    assert found.line is not None or found.field is not None, found
    assert found.source == "x"


def _answer(known: Format, data: bytes) -> Reading | FormatError:
    try:
        return known.read(data, Options(source="x"))
    except FormatError as error:
        return error


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_arbitrary_bytes_give_rows_or_one_format_error(name: str, data: bytes) -> None:
    _attempt(by_name(name), data)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(min_value=0, max_value=2**32))
@settings(max_examples=150, deadline=None)
def test_a_damaged_input_gives_rows_or_one_format_error(name: str, seed: int) -> None:
    _attempt(by_name(name), _mutated(EXAMPLES[name], random.Random(seed)))


def _mutated(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut out, repeated, swapped with tokens of the grammar, or cut off."""
    tokens = [b"\x00", b"\xff\xfe", b"|", b"=", b"-", b"1" * 30, b"9" * 400, b".", b":", b"{", b"]"]
    tokens += [b"null", b"NaN", b"1e308", b"-1", b'"', b"\n", b"\r", b" ", b"s", b"infinity"]
    result = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(result) + 1)
        length = chance.randint(0, 12)
        kind = chance.randrange(5)
        if kind == 0:
            result[at : at + length] = bytes(chance.randrange(256) for _ in range(length))
        elif kind == 1:
            del result[at : at + length]
        elif kind == 2:
            result[at:at] = result[chance.randrange(len(result) + 1) :][: 8 * length]
        elif kind == 3:
            result[at : at + length] = chance.choice(tokens)
        else:
            del result[max(1, at) :]
    return bytes(result)


def test_mutated_real_captures_give_rows_or_one_format_error(shared_vectors: Path) -> None:
    chance = random.Random(20080501)
    folders = [shared_vectors / "formats" / name for name in ("captured", "systemd_252")]
    files = sorted(path for folder in folders for path in folder.iterdir())
    assert len(files) > 40
    for path in files:
        data = path.read_bytes()[:4000]
        for name in NAMES:
            for _ in range(6):
                _attempt(by_name(name), _mutated(data, chance))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "hostile",
    [
        b"RA_PERF|" * 20_000,
        b"|key=" * 20_000,
        b"RA_PERF|host|" + b"a" * 300_000,
        b"RA_PERF|host|total|1|key=plain" + b"|a=b" * 50_000,
        b" " * 300_000,
        b"9" * 300_000,
        (b"1s " * 600 + b"\n") * 50,
        (b"a." * 900 + b"\n") * 50,
        b'\tCommand being timed: "a\nb\n' * 5_000,
        b'{"results":[' + b"[" * 100_000,
        b'{"benchmarks":[{"runs":[{"values":' + b"[" * 100_000,
        b"Startup finished in " + b"1s (a) + " * 5_000,
    ],
    ids=[
        *("markers", "keys", "long name", "many labels", "blanks", "digits", "spans", "units"),
        *("commands", "deep results", "deep benchmarks", "stages"),
    ],
)
def test_hostile_input_ends_in_linear_time(name: str, hostile: bytes) -> None:
    import time

    known = by_name(name)
    began = time.process_time()
    _attempt(known, hostile)
    # The slowest takes 0.2 s on a two-core machine; a quadratic reader would take minutes.
    assert time.process_time() - began < 10.0
