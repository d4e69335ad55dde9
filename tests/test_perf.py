"""Marks of `excise.perf`: lines of the grammar, printed after measuring, no mark lost silently."""

from __future__ import annotations

import io
import re
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.collect.perf_cost import python_cost
from excise.errors import UsageError
from excise.formats.model import Options
from excise.formats.registry import read
from excise.perf import Recorder

LINE = re.compile(r"RA_PERF\|[a-z]+\|[a-z_0-9]+\|[0-9]+\|key=(?:[a-z]+|-)(?:\|[a-z_0-9]+=[^|]*)*")


def _recorder(**given: object) -> tuple[Recorder, io.StringIO]:
    file = io.StringIO()
    return Recorder(file=file, enabled=True, **given), file  # type: ignore[arg-type]


def _durations(text: str) -> dict[str, int]:
    rows = [line.split("|") for line in text.splitlines()]
    return {f"{row[1]}|{row[2]}": int(row[3]) for row in rows}


def test_a_step_is_one_line_of_the_grammar_and_the_batch_tells_its_printing() -> None:
    perf, file = _recorder(key="plain")
    with perf.measure("host", "total"), perf.measure("host", "evidence_get"):
        sleep(0.002)
    assert file.getvalue() == ""
    perf.flush()
    lines = file.getvalue().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    assert [line.split("|")[2] for line in lines] == ["evidence_get", "total", "perf_flush"]
    found = _durations(file.getvalue())
    assert 2000 <= found["host|evidence_get"] <= found["host|total"]


def test_the_reader_reads_what_the_recorder_prints() -> None:
    perf, file = _recorder(key="black")
    for _ in range(3):
        with perf.measure("host", "total"):
            with perf.measure("host", "veraison_new_session"):
                pass
            with perf.measure("host", "evidence_get"):
                pass
        perf.flush()
    reading = read(file.getvalue().encode(), options=Options(source="log"), format_name="ra-perf")
    attestations = [run for run in reading.runs if run.task == "attestation"]
    assert [run.configuration for run in attestations] == ["black"] * 3
    assert len(reading.events) == 6
    assert reading.losses == []


def test_marks_beyond_the_buffer_are_counted_and_printed() -> None:
    perf, file = _recorder(capacity=2)
    for _ in range(5):
        with perf.measure("pta", "hash_ta"):
            pass
    assert perf.lost == 3
    perf.flush(layer="pta")
    assert file.getvalue().splitlines()[-1] == "RA_PERF|pta|perf_overflow|3|key=-"
    assert len(file.getvalue().splitlines()) == 4
    with perf.measure("pta", "hash_ta"):
        pass
    assert perf.lost == 0


def test_a_step_that_fails_is_measured_and_its_error_goes_on() -> None:
    perf, file = _recorder()
    with pytest.raises(ZeroDivisionError, match="division"), perf.measure("ta", "pta_invoke"):
        _ = 1 / 0
    perf.flush()
    assert file.getvalue().startswith("RA_PERF|ta|pta_invoke|")


def test_a_decorated_function_is_measured_under_its_name_and_keeps_its_answer() -> None:
    perf, file = _recorder()

    @perf.timed("pta", build="imx_caam")
    def sign_ecdsa(value: int) -> int:
        return value + 1

    assert sign_ecdsa(1) == 2
    perf.flush()
    assert re.match(r"RA_PERF\|pta\|sign_ecdsa\|\d+\|key=-\|build=imx_caam\n", file.getvalue())


def test_a_recorder_that_is_off_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, on in ((None, False), ("0", False), ("", False), ("1", True)):
        if value is None:
            monkeypatch.delenv("RA_PERF", raising=False)
        else:
            monkeypatch.setenv("RA_PERF", value)
        file = io.StringIO()
        perf = Recorder(file=file)
        with perf.measure("host", "total"):
            pass
        perf.note("host", "evidence_get", 1000)
        perf.flush()
        assert (perf.enabled, bool(file.getvalue())) == (on, on)


@pytest.mark.parametrize(
    ("names", "labels", "reason"),
    [
        (("host", "Total"), {}, "lower-case"),
        (("ho|st", "total"), {}, "lower-case"),
        (("host", "total"), {"key": "p=q"}, "lower-case"),
        (("host", "total"), {"build": "a|b"}, "cannot hold"),
    ],
)
def test_what_the_line_cannot_hold_is_refused(
    names: tuple[str, str], labels: dict[str, str], reason: str
) -> None:
    perf, _ = _recorder()
    with pytest.raises(UsageError, match=reason):
        perf.measure(*names, **labels)


def test_a_negative_duration_is_refused() -> None:
    perf, _ = _recorder()
    with pytest.raises(UsageError, match="-1 ns"):
        perf.note("host", "total", -1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=40))
def test_noted_durations_come_back_in_whole_microseconds(durations_ns: list[int]) -> None:
    perf, file = _recorder(capacity=64)
    for number, duration_ns in enumerate(durations_ns):
        perf.note("verifier", f"step_{number}", duration_ns)
    perf.flush()
    printed = [int(line.split("|")[3]) for line in file.getvalue().splitlines()[:-1]]
    assert printed == [duration_ns // 1000 for duration_ns in durations_ns]


def test_a_marks_cost_is_measured_beside_the_clocks() -> None:
    cost = python_cost()
    assert 0 < cost.clock_ns < cost.mark_ns
    assert 0 < cost.beside_ns < cost.mark_ns
