"""Detection tells every format from every other, on real and on built inputs."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from excise.errors import FormatError, UsageError
from excise.formats.model import Options
from excise.formats.registry import FORMATS, by_name, claims, detect, read, unpack
from foreign_inputs import EXAMPLES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "formats"

# Every captured file and its format; None: no format of ours, so it must not be claimed.
CAPTURED: dict[str, str | None] = {
    "bpftrace_0.17.stderr": None,
    "bpftrace_0.17_all.ndjson": "bpftrace-json",
    "bpftrace_0.17_all.txt": "bpftrace",
    "hyperfine_1.15_N.csv": None,
    "hyperfine_1.15_N.json": "hyperfine",
    "hyperfine_1.15_N.md": None,
    "hyperfine_1.15_param_fail.json": "hyperfine",
    "hyperfine_1.15_single.json": "hyperfine",
    "hyperfine_1.15_stdout.txt": None,
    "multitime.txt": None,
    "multitime_liketime.txt": "time-shell",
    "multitime_rusage.txt": None,
    "perf_stat_j_6.1.json": "perf-stat-json",
    "perf_stat_j_percpu_6.1.json": "perf-stat-json",
    "perf_stat_j_repeat_6.1.json": "perf-stat-json",
    "perf_stat_text_6.1.txt": "perf-stat",
    "perf_stat_text_repeat_6.1.txt": "perf-stat",
    "perf_stat_x_6.1.csv": "perf-stat-csv",
    "perf_stat_x_interval_6.1.csv": "perf-stat-csv",
    "perf_stat_x_percpu_6.1.csv": "perf-stat-csv",
    "perf_stat_x_persocket_6.1.csv": "perf-stat-csv",
    "perf_stat_x_repeat_6.1.csv": "perf-stat-csv",
    "perf_trace_6.1.txt": "perf-trace",
    "perf_trace_summary_6.1.txt": "perf-trace",
    "time_bash.txt": "time-shell",
    "time_bash_TIMEFORMAT.txt": None,
    "time_bash_over1min.txt": "time-shell",
    "time_bash_p.txt": "time-shell",
    "time_busybox.txt": "time-shell",
    "time_busybox_p.txt": "time-shell",
    "time_dash.txt": "time-shell",
    "time_gnu.txt": "time-gnu",
    "time_gnu_f_fail.txt": None,
    "time_gnu_p.txt": "time-shell",
    "time_gnu_v.txt": "time-gnu-v",
    "time_gnu_v_fail.txt": "time-gnu-v",
    "time_gnu_v_signal.txt": "time-gnu-v",
    "time_mksh.txt": "time-shell",
    "time_zsh.txt": "time-shell",
    "time_zsh_TIMEFMT.txt": "time-shell",
}
SYSTEMD: dict[str, str | None] = {
    "aa_status.txt": None,
    "dmesg_systemd.txt": "dmesg",
    "ima_count.txt": None,
    "systemd-analyze_blame.txt": "systemd-analyze",
    "systemd-analyze_critical-chain.txt": "systemd-analyze",
    "systemd-analyze_critical-chain_C.txt": "systemd-analyze",
    "systemd-analyze_plot.svg": None,
    "systemd-analyze_time.txt": "systemd-analyze",
    "systemd-analyze_timespan.txt": None,
    "systemd_show_timestamps.txt": "systemd-show",
    "systemd_version.txt": None,
    "uptime.txt": None,
}
OURS = {name for name in CAPTURED.values() if name} | {name for name in SYSTEMD.values() if name}


def _claimants(data: bytes) -> list[str]:
    """Names of this test's formats that claim the bytes (other rooms test their own)."""
    mine = set(EXAMPLES)
    return [known.name for _, known in claims(unpack(data)) if known.name in mine]


@pytest.mark.parametrize(("folder", "expected"), [("captured", CAPTURED), ("systemd_252", SYSTEMD)])
def test_every_captured_file_is_claimed_by_its_format_alone(
    shared_vectors: Path, folder: str, expected: dict[str, str | None]
) -> None:
    files = {path.name: path for path in (shared_vectors / "formats" / folder).iterdir()}
    assert files.keys() == expected.keys()
    wrong = {
        name: found
        for name, path in files.items()
        if (found := _claimants(path.read_bytes())) != ([expected[name]] if expected[name] else [])
    }
    assert wrong == {}


@pytest.mark.parametrize("folder", ["ftrace_6.1", "ftrace_6.12", "notes"])
def test_traces_are_claimed_by_their_format_alone(shared_vectors: Path, folder: str) -> None:
    wrong = {
        path.name: found
        for path in (shared_vectors / "formats" / folder).iterdir()
        if (found := _claimants(path.read_bytes())) != _format_of_trace(path.name)
    }
    assert wrong == {}


def _format_of_trace(name: str) -> list[str]:
    """Return the format that a captured trace is of, as a list; empty for other files."""
    for start, known in (
        *(("fg_", "function-graph"), ("tpmtrace-", "function-graph"), ("own-", "function-graph")),
        *(("selinux-", "function-graph"), ("tomoyo-", "function-graph")),
        ("newer_", "function-graph"),  # listings quoted in prose
        *(("events_", "ftrace-events"), ("function_", "ftrace-events")),
        *(("trace_pipe_", "ftrace-events"), ("kprobe_events", "ftrace-events")),
        *(("hist_trigger", "ftrace-hist"), ("kprobe_profile", "kprobe-profile")),
        *(("per_cpu_stats", "ftrace-buffers"), ("dmesg_initcall_debug", "dmesg")),
    ):
        if name.startswith(start):
            return [known]
    return []


@pytest.mark.parametrize("folder", ["ima", "quote", "eventlog", "cose", "psa", "corim", "ear"])
def test_evidence_is_claimed_by_none_of_these_formats(shared_vectors: Path, folder: str) -> None:
    claimed = {
        str(path): found
        for path in (shared_vectors / folder).rglob("*")
        if path.is_file() and (found := _claimants(path.read_bytes()))
    }
    assert claimed == {}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_built_input_is_claimed_by_its_format_alone(name: str) -> None:
    assert _claimants(EXAMPLES[name]) == [name]
    assert detect(EXAMPLES[name]).name == name
    assert read(EXAMPLES[name], options=Options()).format == name


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_detection_survives_windows_line_ends(name: str) -> None:
    assert detect(EXAMPLES[name].replace(b"\n", b"\r\n")).name == name


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.parametrize("other", sorted(EXAMPLES))
def test_a_forced_wrong_format_is_one_format_error(name: str, other: str) -> None:
    if other == name:
        assert read(EXAMPLES[name], options=Options(), format_name=name).format == name
        return
    with pytest.raises(FormatError, match=r"line \d+") as caught:
        read(EXAMPLES[other], options=Options(source="in"), format_name=name)
    assert caught.value.source == "in"
    assert caught.value.line is not None
    assert caught.value.reason


@pytest.mark.parametrize("name", [known.name for known in FORMATS])
def test_every_format_has_a_page(name: str) -> None:
    page = DOCS / f"{name}.md"
    assert page.is_file(), f"docs/formats/{name}.md is missing"
    assert page.read_text().startswith(f"# {name}\n"), f"{page.name} has another heading"


def test_there_is_no_page_without_a_format() -> None:
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages == {known.name for known in FORMATS}


def test_names_and_titles_are_unique() -> None:
    known = FORMATS
    assert len({item.name for item in known}) == len(known)
    assert len({item.title for item in known}) == len(known)


def test_gzip_is_unpacked_before_detection() -> None:
    packed = gzip.compress(EXAMPLES["hyperfine"])
    assert (
        read(packed, options=Options()).runs == read(EXAMPLES["hyperfine"], options=Options()).runs
    )


def test_concatenated_gzip_members_are_read_as_one() -> None:
    whole = EXAMPLES["pyperf"]
    assert unpack(gzip.compress(whole[:50]) + gzip.compress(whole[50:])) == whole


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-6], "the gzip data is cut short"),
        (lambda data: data[:12] + b"\xff\xff\xff" + data[15:], "damaged gzip data"),
    ],
)
def test_damaged_gzip_is_one_format_error(damage: object, reason: str) -> None:
    assert callable(damage)
    with pytest.raises(FormatError, match=reason):
        read(damage(gzip.compress(EXAMPLES["pyperf"])), options=Options())


def test_a_gzip_bomb_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("excise.formats.registry.MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(FormatError, match="more than 1 GiB"):
        unpack(gzip.compress(bytes(1_000_000)))


@pytest.mark.parametrize("data", [b"", b" \n\t\r\n"])
def test_an_empty_input_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="f: the input is empty"):
        read(data, options=Options(source="f"))


def test_an_unknown_input_says_how_to_force_a_format() -> None:
    with pytest.raises(FormatError, match="no known format fits this input") as caught:
        read(b"hello, world\n", options=Options())
    assert caught.value.hint is not None
    assert "--format" in caught.value.hint


def test_an_unknown_format_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no format is called 'perf'") as caught:
        by_name("perf")
    assert caught.value.hint is not None
    assert "ra-perf" in caught.value.hint


def test_two_formats_that_fit_alike_are_not_guessed_between() -> None:
    mixed = EXAMPLES["time-shell"] + EXAMPLES["systemd-analyze"]
    with pytest.raises(FormatError, match=r"fits .* and .* alike"):
        detect(mixed)


def test_measurements_are_found_behind_a_long_boot_log() -> None:
    boot = b"[    1.234567] systemd[1]: Startup finished in 1s (kernel) + 2s (userspace) = 3s.\r\n"
    assert detect(boot * 10_000 + EXAMPLES["ra-perf"]).name == "ra-perf"


def test_a_campaign_that_asks_for_no_events_imports_no_reader() -> None:
    script = "import sys, excise.campaign.run; print('excise.formats.registry' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
