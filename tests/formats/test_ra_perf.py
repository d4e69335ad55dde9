"""RA_PERF lines in noisy logs: iterations, nesting, key modes, and every damaged line declared."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from foreign_inputs import (
    ATTESTATION,
    ra_perf_iteration,
    ra_perf_line,
    ra_perf_start,
    text,
)


def _read(data: bytes, **options: str) -> Reading:
    return read(data, options=Options(source="uart.log", **options), format_name="ra-perf")  # type: ignore[arg-type]


def _log(*iterations: list[str], start: bool = True, newline: str = "\n") -> bytes:
    lines = [*(ra_perf_start() if start else []), *(line for i in iterations for line in i)]
    return text(lines, newline)


def test_one_attestation_is_one_run_with_its_events() -> None:
    reading = _read(_log(ra_perf_iteration(), start=False))
    (run,) = reading.runs
    assert (run.task, run.configuration, run.wall_ns) == ("attestation", "embedded", 104_220_000)
    assert run.phase == "first"
    found = {f"{e.layer}|{e.event}": e.value for e in reading.events}
    expected = {name: value * 1000.0 for name, value in ATTESTATION.items()}
    assert found == {k: v for k, v in expected.items() if k != "host|total"}
    assert {e.unit for e in reading.events} == {"ns"}
    assert {e.labels for e in reading.events} == {""}
    assert reading.losses == []


def test_events_nest_host_ta_pta() -> None:
    parents = {f"{e.layer}|{e.event}": e.parent for e in _read(_log(ra_perf_iteration())).events}
    assert parents["host|veraison_new_session"] is None
    assert parents["host|evidence_get"] is None
    assert parents["ta|cmd_total"] == "host|evidence_get"
    assert parents["ta|pta_invoke"] == "ta|cmd_total"
    assert parents["pta|cmd_total"] == "ta|pta_invoke"
    assert parents["pta|perf_flush"] == "ta|pta_invoke"
    assert parents["pta|hash_tee"] == "pta|cmd_total"
    assert parents["pta|cose_sign1"] == "pta|cmd_total"
    for step in ("sign_key_setup", "sign_tbs_hash", "sign_ecdsa", "sign_verify"):
        assert parents[f"pta|{step}"] == "pta|cose_sign1"


def test_no_child_is_longer_than_its_parent_in_the_built_log() -> None:
    events = {f"{e.layer}|{e.event}": e for e in _read(_log(ra_perf_iteration())).events}
    sums: Counter[str] = Counter()
    for event in events.values():
        if event.parent:
            sums[event.parent] += int(event.value)
    assert len(sums) == 5
    for parent, inside in sums.items():
        assert inside <= events[parent].value


def test_the_first_iteration_after_a_start_is_kept_apart() -> None:
    log = _log(ra_perf_iteration(), ra_perf_iteration()) + _log(
        ra_perf_iteration(), ra_perf_iteration()
    )
    runs = [run for run in _read(log).runs if run.task == "attestation"]
    assert [run.phase for run in runs] == ["first", "measured", "warmup", "measured"]
    assert [run.run for run in runs] == [0, 1, 2, 3]


def test_what_happens_once_is_a_task_of_its_own() -> None:
    runs = _read(_log(ra_perf_iteration())).runs
    assert [(run.task, run.wall_ns) for run in runs] == [
        ("teec_init", 812_000),
        ("teec_open_session", 40_211_000),
        ("attestation", 104_220_000),
    ]


def test_black_key_commands_are_runs_with_their_two_key_pairs() -> None:
    lines = ra_perf_start("-")
    for _ in range(2):
        lines += ["I/TC: RA_PERF|pta|cntfrq|8000000|key=-"]
        lines += [ra_perf_line("pta|keypair_generate", 15_000, "black")]
        lines += [ra_perf_line("pta|perf_flush", 900)]
    lines += [ra_perf_line("host|blackkey_generate", 33_000, "black")]
    lines += [ra_perf_line("pta|blackkey_encap", 300, "black")]
    lines += [ra_perf_line("pta|convert_total", 900, "black")]
    lines += [ra_perf_line("host|blackkey_convert", 2_000, "black")]
    reading = _read(text([*lines, *ra_perf_iteration("black")]))
    runs = {run.task: run for run in reading.runs}
    assert runs["blackkey_generate"].wall_ns == 33_000_000
    assert runs["blackkey_convert"].wall_ns == 2_000_000
    generate = [e for e in reading.events if e.sequence == runs["blackkey_generate"].sequence]
    assert Counter(e.event for e in generate) == {"keypair_generate": 2, "perf_flush": 2}
    convert = {
        e.event: e.parent for e in reading.events if e.sequence == runs["blackkey_convert"].sequence
    }
    assert convert == {"blackkey_encap": "pta|convert_total", "convert_total": None}
    assert runs["attestation"].configuration == "black"
    assert reading.losses == []


def test_the_key_mode_is_the_configuration() -> None:
    log = _log(*(ra_perf_iteration(key) for key in ("embedded", "plain", "black", "plain")))
    runs = [run for run in _read(log).runs if run.task == "attestation"]
    assert [(run.configuration, run.run) for run in runs] == [
        ("embedded", 0),
        ("plain", 0),
        ("black", 0),
        ("plain", 1),
    ]


def test_a_given_name_is_the_configuration_and_keeps_key_modes_apart() -> None:
    one = _read(_log(ra_perf_iteration("plain"), start=False), configuration="caam")
    assert {run.configuration for run in one.runs} == {"caam"}
    two = _read(
        _log(ra_perf_iteration("plain"), ra_perf_iteration("black"), start=False),
        configuration="caam",
    )
    assert [run.configuration for run in two.runs] == ["caam/plain", "caam/black"]


def test_an_event_with_another_key_than_its_run_keeps_it_as_a_label() -> None:
    lines = ra_perf_iteration("black")
    at = next(i for i, line in enumerate(lines) if "sign_ecdsa" in line)
    lines[at] = ra_perf_line("pta|sign_ecdsa", 4_613, "plain", "|cpu=2|board=evk")
    events = {e.event: e for e in _read(text(lines)).events}
    assert events["sign_ecdsa"].labels == "board=evk,cpu=2,key=plain"
    assert events["hash_ta"].labels == ""


def test_without_a_server_the_task_has_another_name() -> None:
    runs = _read(_log(ra_perf_iteration(server=False), start=False)).runs
    assert [run.task for run in runs] == ["attestation-no-server"]


def test_cntfrq_sets_the_clock_of_the_pta_and_is_no_event() -> None:
    reading = _read(_log(ra_perf_iteration(hz=62_500_000)))
    assert not [e for e in reading.events if e.event == "cntfrq"]
    clocks = {clock.name: clock.resolution_ns for clock in reading.clocks}
    assert clocks == {"TEE_GetSystemTime (ta)": 1e6, "CNTPCT at 62500000 Hz (pta)": 1000.0}
    assert reading.clock.resolution_ns == 1000.0
    assert [(fact.name, fact.value, fact.unit) for fact in reading.facts] == [
        ("cntfrq", 62_500_000, "Hz")
    ]


def test_a_slow_counter_is_coarser_than_the_printed_microsecond() -> None:
    reading = _read(_log(ra_perf_iteration(hz=32_768)))
    assert reading.clocks[-1].resolution_ns == pytest.approx(30_517.578)


def test_two_counter_frequencies_are_noted() -> None:
    log = _log(ra_perf_iteration(), ra_perf_iteration(hz=62_500_000))
    assert any("2 counter frequencies" in note for note in _read(log).notes)


def test_a_counter_frequency_of_zero_is_lost() -> None:
    (lost,) = _read(_log(ra_perf_iteration(hz=0))).losses
    assert "0 Hz" in lost.reason


NOISE = [
    "U-Boot SPL 2023.04 (Jan 01 2024 - 00:00:00 +0000)",
    "[    1.234567] optee: revision 4.6",
    "root@imx8mpevk:~# RA_PERF=1 optee_remote_attestation --perf --loop 31",
    "see RA_PERF in the documentation",
    "",
    "\x1b[32mOK\x1b[0m",
]


def test_prefixes_crlf_colours_and_noise_change_nothing() -> None:
    clean = _read(_log(ra_perf_iteration(), ra_perf_iteration()))
    lines: list[str] = []
    for number, line in enumerate([*ra_perf_start(), *ra_perf_iteration(), *ra_perf_iteration()]):
        lines += [NOISE[number % len(NOISE)], f"[2024-05-01 10:00:{number:02}.123] \x1b[0m{line} "]
    noisy = _read(text(lines, "\r\n"))
    assert (noisy.runs, noisy.events, noisy.losses) == (clean.runs, clean.events, [])
    assert any("other lines of the log are not RA_PERF lines" in note for note in noisy.notes)


def test_bytes_that_are_not_utf8_change_nothing() -> None:
    data = _log(ra_perf_iteration())
    broken = b"\xff\xfe\x00\x80\n" + data.replace(b"I/TC: ", b"\xc3\x28I/TC: ")
    assert _read(broken).events == _read(data).events


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ("RA_PERF|pta|sign_ecdsa|45", "the line is cut short"),
        ("RA_PERF|pta|sign_ecdsa|4552|key=", "the key mode is damaged"),
        ("RA_PERF|pta|sign_ecdsa|4552|key=embed", "the key mode 'embed' is cut"),
        ("RA_PERF|pta|sign_ecdsa|4552|key=gold", "unknown key mode 'gold'"),
        ("RA_PERF|ptx|sign_ecdsa|4552|key=plain", "unknown layer 'ptx'"),
        ("RA_PERF|pta|sign_ecdsa|45\x0052|key=plain", "bytes of something else"),
        ("RA_PERF|pta|sign_ec#dsa|4552|key=plain", "bytes of something else"),
        ("RA_PERF|pta|sign_ecdsa|-4552|key=plain", "bytes of something else"),
        ("RA_PERF|pta|sign_ecdsa|9999999999999999|key=plain", "the key mode is damaged|bytes of"),
        ("RA_PERF", "the line is cut short"),
        ("RA_PERF|", "the line is cut short"),
        ("RF|pta|sign_ecdsa|4552|key=plain", "the end of a line whose start is lost"),
    ],
)
def test_a_damaged_line_is_a_loss_with_its_line_number(damaged: str, reason: str) -> None:
    lines = [*ra_perf_iteration(), "some noise", damaged, *ra_perf_iteration()]
    reading = _read(text(lines, "\r\n"))
    (lost,) = reading.losses
    assert lost.line == len(ra_perf_iteration()) + 2
    assert any(part in lost.reason for part in reason.split("|"))
    assert lost.source == "uart.log"
    assert len([run for run in reading.runs if run.task == "attestation"]) == 2


def test_a_line_cut_by_another_loses_its_two_halves_only() -> None:
    lines = ra_perf_iteration()
    at = next(i for i, line in enumerate(lines) if "hash_tee" in line)
    victim = "RA_PERF|host|print_evi"
    lines[at] = victim + lines[at]
    lines.insert(at + 1, "dence|12044|key=embedded")
    reading = _read(text([line for line in lines if "|print_evidence|" not in line]))
    assert [(item.line, item.reason) for item in reading.losses] == [
        (at + 1, "cut by another line"),
        (at + 2, "the end of a line whose start is lost"),
    ]
    names = {e.event for e in reading.events}
    assert "hash_tee" in names
    assert "print_evidence" not in names


def test_two_lines_with_their_bytes_mixed_never_give_a_wrong_value() -> None:
    one, two = ra_perf_line("pta|hash_ta", 1_204), ra_perf_line("host|print_evidence", 12_044)
    mixed = "".join(a + b for a, b in zip(one.ljust(len(two)), two.ljust(len(one)), strict=False))
    rest = [
        line
        for line in ra_perf_iteration()
        if "|hash_ta|" not in line and "|print_evidence|" not in line
    ]
    reading = _read(text([mixed, *rest]))
    assert {e.event for e in reading.events}.isdisjoint({"hash_ta", "print_evidence"})


def test_a_line_without_its_newline_is_still_whole() -> None:
    lines = ra_perf_iteration()
    reading = _read("".join(lines).encode())
    assert len(reading.events) == len(ATTESTATION) - 1
    assert reading.losses == []


def test_a_lost_total_ends_the_iteration_when_its_lines_come_again() -> None:
    broken = [line for line in ra_perf_iteration() if "|total|" not in line]
    reading = _read(_log(broken, ra_perf_iteration(), start=False))
    first, second = reading.runs
    assert (first.wall_ns, second.wall_ns) == (None, 104_220_000)
    assert first.error == "the line that measures the whole run is missing"
    (lost,) = reading.losses
    assert "before host|total" in lost.reason
    assert len([e for e in reading.events if e.sequence == 0]) == len(ATTESTATION) - 1


def test_a_log_that_ends_inside_an_iteration_says_so() -> None:
    reading = _read(_log(ra_perf_iteration(), ra_perf_iteration()[:7], start=False))
    assert [run.wall_ns for run in reading.runs] == [104_220_000, None]
    assert reading.losses[-1].reason == "the log ends before host|total"


def test_events_of_a_lost_container_go_to_the_next_one_outside() -> None:
    lines = [line for line in ra_perf_iteration() if "|cose_sign1|" not in line]
    lines = [line for line in lines if not line.startswith("I/TA")]
    parents = {f"{e.layer}|{e.event}": e.parent for e in _read(text(lines)).events}
    assert parents["pta|sign_ecdsa"] == "pta|cmd_total"
    assert parents["pta|cmd_total"] == "host|evidence_get"


def test_an_event_that_the_grammar_does_not_list_is_kept_and_named() -> None:
    lines = ra_perf_iteration()
    lines.insert(8, ra_perf_line("pta|hash_kernel", 700))
    reading = _read(text(lines))
    (event,) = (e for e in reading.events if e.event == "hash_kernel")
    assert (event.value, event.parent) == (700_000.0, "pta|cmd_total")
    assert any("pta|hash_kernel" in note for note in reading.notes)


def _secure(key: str = "embedded") -> list[str]:
    return [line for line in ra_perf_iteration(key) if line.startswith("I/")]


def _host(key: str = "embedded") -> list[str]:
    return [line for line in ra_perf_iteration(key) if not line.startswith("I/")]


def test_the_secure_console_alone_gives_runs_of_the_trusted_application() -> None:
    reading = _read(_log(_secure(), _secure(), start=False))
    assert [(run.task, run.wall_ns) for run in reading.runs] == [("evidence", 59_000_000)] * 2
    parents = {f"{e.layer}|{e.event}": e.parent for e in reading.events}
    assert parents["ta|pta_invoke"] is None
    assert parents["pta|cmd_total"] == "ta|pta_invoke"
    assert reading.losses == []


def test_the_core_alone_gives_runs_of_its_command() -> None:
    core = [line for line in _secure() if line.startswith("I/TC")]
    reading = _read(_log(core, core, start=False))
    runs = [(run.task, run.wall_ns) for run in reading.runs]
    assert runs == [("evidence", 16_320_000), ("perf_flush", 41_877_000)] * 2
    assert reading.losses == []


def test_key_generation_on_the_secure_console_alone_stays_out_of_the_evidence() -> None:
    generate = [
        "I/TC: RA_PERF|pta|cntfrq|8000000|key=-",
        ra_perf_line("pta|keypair_generate", 15_000, "black"),
        ra_perf_line("pta|perf_flush", 900),
    ]
    reading = _read(text([*generate, *generate, *_secure("black")]))
    tasks = Counter(run.task for run in reading.runs)
    assert tasks == {"blackkey_generate-secure": 2, "evidence": 1}
    assert reading.losses == []


def test_console_and_host_logs_one_after_the_other_are_paired() -> None:
    secure = [line for _ in range(3) for line in _secure()]
    host = [*ra_perf_start(), *(line for _ in range(3) for line in _host())]
    apart = _read(text([*secure, *host]))
    together = _read(_log(*(ra_perf_iteration() for _ in range(3))))
    assert [(r.task, r.wall_ns, r.phase) for r in apart.runs] == [
        (r.task, r.wall_ns, r.phase) for r in together.runs
    ]
    keyed = sorted((e.sequence, e.layer, e.event, e.parent or "", e.value) for e in apart.events)
    assert keyed == sorted(
        (e.sequence, e.layer, e.event, e.parent or "", e.value) for e in together.events
    )
    assert any("paired in the order of each" in note for note in apart.notes)


def test_key_generation_on_the_console_never_lands_in_an_attestation_of_the_host_log() -> None:
    generate = [
        "I/TC: RA_PERF|pta|cntfrq|8000000|key=-",
        ra_perf_line("pta|keypair_generate", 15_000, "black"),
        ra_perf_line("pta|perf_flush", 900),
    ]
    reading = _read(text([*generate, *generate, *_host(), *_host()]))
    tasks = {run.sequence: run.task for run in reading.runs}
    made = {tasks[e.sequence] for e in reading.events if e.event == "keypair_generate"}
    assert made == {"blackkey_generate-secure"}
    assert list(tasks.values()).count("attestation") == 2


@pytest.mark.parametrize("iterations", [1, 3])
def test_console_and_host_logs_of_different_length_are_not_paired(iterations: int) -> None:
    secure = [line for _ in range(2) for line in _secure()]
    host = [line for _ in range(iterations) for line in _host()]
    reading = _read(text([*secure, *host]))
    tasks = Counter(run.task for run in reading.runs)
    assert tasks == {"attestation": iterations, "evidence": 2}
    assert reading.losses == []
    assert any("do not pair" in note for note in reading.notes)


def test_a_file_without_a_usable_line_names_the_first_damaged_one() -> None:
    with pytest.raises(FormatError, match=r"uart.log: line 3: no RA_PERF line can be used: the li"):
        _read(b"boot\n\nRA_PERF|host|total|12\n")
    with pytest.raises(FormatError, match="there is no RA_PERF line"):
        _read(b"boot\n")
    with pytest.raises(FormatError, match="there is no RA_PERF line of a measurement"):
        _read(b"I/TC: RA_PERF|pta|cntfrq|8000000|key=-\n")


times = st.dictionaries(
    st.sampled_from(sorted(ATTESTATION)), st.integers(min_value=0, max_value=10**9), min_size=1
)


@given(iterations=st.lists(times, min_size=1, max_size=6), newline=st.sampled_from(["\n", "\r\n"]))
@settings(deadline=None)
def test_reading_what_was_built_gives_it_back(
    iterations: list[dict[str, int]], newline: str
) -> None:
    whole = [{**some, "host|total": some.get("host|total", 1)} for some in iterations]
    ordered = [{k: some[k] for k in ATTESTATION if k in some} for some in whole]
    log = _log(*(ra_perf_iteration(times=some) for some in ordered), newline=newline)
    reading = _read(log)
    runs = [run for run in reading.runs if run.task.startswith("attestation")]
    assert [run.wall_ns for run in runs] == [some["host|total"] * 1000 for some in ordered]
    for run, some in zip(runs, ordered, strict=True):
        events = {
            f"{e.layer}|{e.event}": e.value for e in reading.events if e.sequence == run.sequence
        }
        assert events == {k: v * 1000.0 for k, v in some.items() if k != "host|total"}
    assert reading.losses == []


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_cut_anywhere_loses_at_most_one_line_and_invents_no_value(data: st.DataObject) -> None:
    log = _log(ra_perf_iteration(), ra_perf_iteration("black"), ra_perf_iteration("plain"))
    start = data.draw(st.integers(min_value=0, max_value=len(log)))
    end = data.draw(st.integers(min_value=start, max_value=min(len(log), start + 80)))
    whole = Counter((e.layer, e.event, e.value) for e in _read(log).events)
    reading = _read(log[:start] + log[end:])
    invented = Counter((e.layer, e.event, e.value) for e in reading.events) - whole
    # A cut that joins two lines can splice one value: never more.
    assert invented.total() <= 1


def test_marks_that_found_no_room_are_a_loss_with_their_number() -> None:
    lines = [*ra_perf_iteration(), ra_perf_line("pta|perf_overflow", 5)]
    reading = _read(_log(lines))
    (found,) = reading.losses
    assert (found.count, found.line) == (5, len(ra_perf_start()) + len(lines))
    assert "the buffer of the pta layer was full" in found.reason
    assert all(event.event != "perf_overflow" for event in reading.events)


def test_what_the_host_took_to_print_is_in_no_iteration() -> None:
    lines = [*ra_perf_iteration(), ra_perf_line("host|perf_flush", 70)]
    reading = _read(_log(lines, lines))
    assert [run.task for run in reading.runs[-4:]] == ["attestation", "perf_flush"] * 2
    assert all((event.layer, event.event) != ("host", "perf_flush") for event in reading.events)
    assert reading.losses == []


def test_two_iterations_that_overlap_lose_their_totals_bond_and_say_so() -> None:
    """The console lags: the first iteration's core prints after the second has begun."""
    one = ra_perf_iteration()
    later = {name: value + 1 for name, value in ATTESTATION.items()}
    two = ra_perf_iteration(times=later)
    host = [line for line in one if "RA_PERF|host|" in line]
    core = [line for line in one if "RA_PERF|host|" not in line]
    reading = _read(text([*host, two[0], *core, *two[1:], *ra_perf_iteration()]))
    assert [run.wall_ns for run in reading.runs] == [
        104_220_000,
        None,  # what cannot be told to whom it belongs has no total
        104_221_000,
        104_220_000,
    ]
    assert ["a second pta|ocotp_srk" in loss.reason for loss in reading.losses] == [True]
    values = {value * 1000.0 for times in (ATTESTATION, later) for value in times.values()}
    assert {event.value for event in reading.events} <= values
