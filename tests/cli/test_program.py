"""The program as its users meet it: words in, text and an exit code out."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import typer

from captures import run, write
from ended import PATIENCE_S, ended, wait_until
from excise.capture.archive import pack
from excise.capture.journal import Run
from excise.capture.manifest import Fact
from excise.capture.seal import seal
from excise.capture.store import JOURNAL
from excise.cli.commands import COMMANDS, SECTIONS, Group
from in_process import Program

PROGRAM = str(Path(sys.executable).with_name("excise"))


def _every_command(place: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command of the program."""
    if isinstance(place, Mapping):
        for name, inner in place.items():
            yield from _every_command(inner, (*words, name))
    elif isinstance(place, Group):
        yield from _every_command(place.commands, words)
    else:
        module, attribute = str(place).split(":")
        found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, typer.Typer):
            yield from ((*words, str(each.name)) for each in found.registered_commands)
        else:
            yield words


EVERY_COMMAND = list(_every_command(COMMANDS))
HYPERFINE = json.dumps(
    {
        "results": [
            {
                "command": "true", "mean": 0.001, "stddev": 0.0001, "median": 0.001,
                "user": 0.0, "system": 0.0, "min": 0.0009, "max": 0.0011,
                "times": [0.001, 0.0009, 0.0011], "exit_codes": [0, 0, 0],
            }
        ]
    }
)  # fmt: skip


def program(
    *words: str | Path, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the installed program in a process of its own."""
    return subprocess.run(
        [PROGRAM, *map(str, words)],
        input=stdin,
        capture_output=True,
        env={**os.environ, **(environment or {})},
        timeout=120,
        check=False,
    )


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Return a campaign's capture: two configurations, the second 10 % slower."""
    records: list[Run] = []
    for block in range(21):
        for arm, ratio in (("none", 1.0), ("none (A/A)", 1.0), ("b", 1.1)):
            noise = 1 + 0.002 * ((block * 7 + len(records) * 3) % 5 - 2)
            records.append(
                run(
                    len(records), block=block, run=block, configuration=arm,
                    phase="measured" if block else "first", wall_ns=round(1e6 * ratio * noise),
                )
            )  # fmt: skip
    return write(
        tmp_path / "c.excise", list(records), baseline="none", twin="none (A/A)", paired=True
    )


@pytest.mark.parametrize("words", EVERY_COMMAND, ids=" ".join)
def test_every_commands_help_shows_an_example(excise: Program, words: tuple[str, ...]) -> None:
    code, out, err = excise(*words, "--help")
    assert code == 0
    assert err == ""
    # `verify daa` is `daa verify` under another name.
    names = "|".join((" ".join(words), " ".join(reversed(words))))
    assert re.search(rf"Example:\s+excise\s+(?:{names})\b", " ".join(out.split()))


def test_help_lists_every_command_and_comes_without_words_too(excise: Program) -> None:
    code, out, _ = excise("--help")
    assert code == 0
    shown = re.findall(r"^╭─ (.+?) ─|^│ ([a-z]+) ", out, re.M)
    expected = [each for heading, section in SECTIONS.items() for each in (heading, *section)]
    assert [heading or command for heading, command in shown if heading != "Options"] == expected
    code, again, err = excise()
    assert (code, err) == (2, "")
    assert again.split() == out.split()


def test_the_version_is_that_of_the_package(excise: Program) -> None:
    from excise import __version__

    assert excise("--version") == (0, f"excise {__version__}\n", "")


ERRORS: list[tuple[Sequence[str], int, str]] = [
    (["nonsense"], 2, "No such command 'nonsense'"),
    (["show", "--nonsense"], 2, "No such option"),
    (["show"], 2, "no capture was given"),
    (["show", "none"], 3, "none: there is no such file or folder"),
    (["show", "."], 3, "is not a capture"),
    (["run", "--expect", "256", "--", "true"], 2, "256 is no exit code: they are from 0 to 255"),
    (["show", "file.txt"], 3, "file.txt: is not a capture"),
    (["show", "none.tar.zst"], 3, "no such file"),
    (["show", "reference:nope"], 2, "no reference data is called 'nope'"),
    (["show", "c.excise", "--metric", "nope"], 2, "Metrics here: wall_ns"),
    (["show", "c.excise", "--format", "nope"], 2, "unknown format 'nope'"),
    (["compare", "c.excise", "--margin", "wide"], 2, "'wide' is not a percentage"),
    (["compare", "c.excise", "--baseline", "x"], 2, "Configurations here: none"),
    (["compare", "c.excise", "none"], 3, "there is no such file or folder"),
    (["attribute", "c.excise"], 2, "nothing has child events"),
    (["gate", "c.excise", "--baseline", "x"], 2, "neither a configuration of it nor another"),
    (["gate", "c.excise"], 2, "Missing option '--baseline'"),
    (["import"], 2, "no file was given"),
    (["import", "none.txt"], 3, "none.txt: cannot be read (No such file or directory)"),
    (["import", "file.txt"], 3, "no known format fits"),
    (["import", "file.txt", "--format", "nope"], 2, "nope"),
    (["import", "file.txt", "--format", "hyperfine"], 3, "file.txt"),
    (["report", "c.excise", "-o", "nowhere/x.html"], 2, "its folder does not exist"),
    (["report", "c.excise", "-o", "x.docx"], 2, "'.docx' tells no format"),
    (["run"], 2, "no command was given"),
    (["run", "none.toml"], 2, "none.toml: cannot be read"),
    (["run", "file.toml"], 2, "file.toml: blocks: Expected `int`, got `str`"),
    (["run", "-n", "0", "--", "true"], 2, "--blocks"),
    (["run", "--timeout", "soon", "--", "true"], 2, "'--timeout': 'soon'"),
    (["run", "-c", ": x", "--", "true"], 2, "has no name"),
    (["run", "--", "no-such-program-xyz"], 4, "not found or not executable"),
    (["run", "-c", "b: no-such-prefix-xyz", "--", "true"], 4, "no-such-prefix-xyz"),
    (["run", "-o", "c.excise", "--", "true"], 2, "holds imported data"),
    (["run", "--", "a\udcff"], 2, "is not UTF-8 text"),
]


@pytest.fixture
def things(capture: Path, tmp_path: Path) -> None:
    """Make what the errors need beside the capture."""
    (tmp_path / "file.txt").write_text("nothing of interest\n")
    (tmp_path / "file.toml").write_text('blocks = "many"\n')


@pytest.mark.parametrize(("words", "code", "said"), ERRORS)
def test_errors_go_to_standard_error_with_their_code(
    excise: Program, things: None, words: Sequence[str], code: int, said: str
) -> None:
    found, out, err = excise(*words)
    assert (found, out) == (code, "")
    assert err.startswith("excise: ")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("words", "code", "said"), ERRORS)
def test_with_json_errors_are_json_on_standard_error(
    excise: Program, things: None, words: Sequence[str], code: int, said: str
) -> None:
    found, out, err = excise(words[0], "--json", *words[1:])
    assert (found, out) == (code, "")
    error = json.loads(err)
    assert error["exit_code"] == code
    assert error["reason"]
    assert said.split(":")[-1].strip()[:12] in json.dumps(error, ensure_ascii=False)


def test_json_after_the_dashes_belongs_to_the_command(excise: Program) -> None:
    code, _, err = excise("run", "--", "no-such-program-xyz", "--json")
    assert code == 4
    assert err.startswith("excise: not found")


def test_show_prints_text_or_any_other_format(excise: Program, capture: Path) -> None:
    code, out, err = excise("show", capture)
    assert (code, err) == (0, "")
    assert "Each task under each configuration" in out
    assert "\x1b" not in out
    for name, start in (
        ("csv", "task,configuration,"),
        ("markdown", "# t"),
        ("latex", "\\documentclass"),
        ("html", "<!doctype html"),
        ("json", "{"),
    ):
        code, out, err = excise("show", capture, "--format", name)
        assert (code, err) == (0, "")
        assert out.lower().startswith(start)
    _, out, _ = excise("show", capture, "--json")
    rows = json.loads(out)["data"]["summaries"]
    assert [row["configuration"] for row in rows] == ["none", "none (A/A)", "b"]
    assert {row["n"] for row in rows} == {20}


def test_compare_as_csv_gives_intervals_as_numbers(excise: Program, capture: Path) -> None:
    code, out, _ = excise("compare", capture, "--format", "csv")
    assert code == 0
    row = next(csv.DictReader(io.StringIO(out)))
    assert float(row["interval_low"]) <= float(row["ratio"]) <= float(row["interval_high"])
    assert 1.09 < float(row["interval_low"]) < float(row["interval_high"]) < 1.11


def test_compare_finds_what_was_put_in(excise: Program, capture: Path) -> None:
    code, out, _ = excise("compare", capture, "--json")
    assert code == 0
    (row,) = json.loads(out)["data"]["comparisons"]
    assert row["verdict"] == "costs"
    assert row["ratio"] == pytest.approx(1.1, rel=0.01)


def test_the_gate_answers_by_its_exit_code(excise: Program, capture: Path) -> None:
    code, out, err = excise("gate", capture, "--baseline", "none", "--max-regression", "20%")
    assert (code, err) == (0, "")
    assert out.startswith("Passes: 1 comparison with a limit of 20 %, none fails\nok  t  b  +")
    code, out, err = excise("gate", capture, "--baseline", "none")
    assert code == 1
    assert out.startswith(
        "Does not pass: 1 comparison with a limit of 2 %, 1 failed\nFAIL  t  b  +"
    )
    assert "costs more than +2.0 %" in out
    assert err == "excise: 1 of 1 comparison does not pass\n"
    code, out, err = excise("gate", capture, "--baseline", "none", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["passed"] is False


def test_a_gate_with_another_capture_refuses_other_machines(
    excise: Program, capture: Path, tmp_path: Path
) -> None:
    facts = [{"name": "cpu.model", "value": "Z80", "must_agree": True}]
    plain = json.loads((capture / "manifest.json").read_text())
    other = tmp_path / "other.excise"
    for path, model in ((capture, "6502"), (other, "Z80")):
        path.mkdir(exist_ok=True)
        facts[0]["value"] = model
        (path / "manifest.json").write_text(json.dumps({**plain, "host_facts": facts}))
    (other / JOURNAL).write_bytes((capture / JOURNAL).read_bytes())
    code, _, err = excise("gate", capture, "--baseline", other)
    assert code == 1
    assert "cpu.model: Z80 against 6502" in err
    assert excise("gate", capture, "--baseline", other, "--force")[0] == 0
    code, out, _ = excise("compare", capture, other, "--force")
    assert code == 0
    assert "Compared by force although cpu.model: 6502 against Z80" in " ".join(out.split())


def test_a_changed_file_of_a_sealed_capture_is_named_with_exit_code_1(
    excise: Program, capture: Path
) -> None:
    seal(capture)
    assert excise("show", capture)[0] == 0
    with (capture / JOURNAL).open("ab") as file:
        file.write(b"\n")
    code, out, err = excise("show", capture)
    assert (code, out) == (1, "")
    assert "the seal is broken" in err
    assert "journal.jsonl: changed" in err


def test_a_sealed_capture_is_not_written(excise: Program, tmp_path: Path) -> None:
    words = ["run", "-n", "2", "-o", "s.excise", "--seal", "--", "true"]
    assert excise(*words)[0] == 0
    code, _, err = excise(*words)
    assert code == 2
    assert "is sealed and cannot be written" in err


def test_a_report_is_written_and_its_charts_beside_it(
    excise: Program, capture: Path, tmp_path: Path
) -> None:
    code, out, err = excise(
        "report",
        capture,
        "-o",
        "r.html",
        "--charts",
        "charts",
        "--beside",
        "reference:lsmpmon-2008",
    )
    assert (code, out) == (0, "")
    assert err.startswith("Wrote r.html, charts/")
    assert "<html" in (tmp_path / "r.html").read_text().lower()
    for name in err.split("Wrote ")[1].strip().split(", "):
        assert (tmp_path / name).stat().st_size > 0


def test_every_table_of_a_report_is_written_as_csv(
    excise: Program, capture: Path, tmp_path: Path
) -> None:
    code, out, err = excise("report", capture, "-o", "r.html", "--tables", "tables")
    assert (code, out) == (0, "")
    assert err.startswith("Wrote r.html, tables/")
    written = err.strip().removeprefix("Wrote r.html, ").split(", ")
    assert len(written) > 3
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        Path(name).name for name in written
    }
    assert (tmp_path / "tables/comparison.csv").read_bytes().startswith(b"task,")


def test_a_report_without_a_name_is_called_by_its_format(
    excise: Program, capture: Path, tmp_path: Path
) -> None:
    for format_name, ending in (("csv", ".csv"), ("latex", ".tex")):
        code, _, err = excise("report", capture, "--format", format_name)
        assert (code, err) == (0, f"Wrote report{ending}\n")
        assert (tmp_path / f"report{ending}").stat().st_size > 0
    assert not (tmp_path / "report.html").exists()


def test_import_reads_standard_input_and_says_what_it_read(tmp_path: Path) -> None:
    done = program("import", "-", "-o", tmp_path / "h.excise", "--json", stdin=HYPERFINE.encode())
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["files"]
    assert (found["format"], found["runs"], found["lost"]) == ("hyperfine", 3, 0)
    shown = program("show", tmp_path / "h.excise", "--json")
    row = json.loads(shown.stdout)["data"]["summaries"][0]
    assert (row["configuration"], row["n"], row["median"]) == ("true", 2, 1e6)


def test_a_capture_may_come_on_standard_input(capture: Path, tmp_path: Path) -> None:
    archive = pack(capture, tmp_path / "c.tar.zst").read_bytes()
    done = program("compare", "-", "--json", stdin=archive)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["comparisons"][0]["verdict"] == "costs"
    cut = program("show", "-", stdin=archive[:50])
    assert cut.returncode == 3
    assert b"is not a whole capture archive" in cut.stderr


def test_a_campaign_may_come_on_standard_input(tmp_path: Path) -> None:
    text = b'title = "mine"\nblocks = 6\n[[configurations]]\nname = "a"\n'
    text += b'[[tasks]]\nname = "t"\ncommand = ["true"]\n'
    done = program("run", "-", "-o", tmp_path / "m.excise", stdin=text)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(b"(14 runs, 0 failed)\n")


def test_failed_runs_are_told_and_kept(excise: Program) -> None:
    code, out, err = excise("run", "-n", "6", "-o", "f.excise", "--", "false")
    assert code == 1
    assert "14 of 14 runs of f.excise failed" in " ".join(out.split())
    assert "(14 runs, 14 failed)" in err
    assert "f.excise: nothing was measured where every run failed" in err
    assert "false under plain: 7 of 7 runs (exit code 1)" in err
    assert excise("run", "-n", "6", "-o", "f.excise", "-i", "--", "false")[0] == 0


def test_some_failed_runs_are_data_and_no_failure_of_the_campaign(
    excise: Program, tmp_path: Path
) -> None:
    flaky = "test -e seen || { touch seen; kill -9 $$; }"
    code, _, err = excise("run", "-n", "6", "-o", "f.excise", "--", "sh", "-c", flaky)
    assert code == 0
    assert "(14 runs, 1 failed)" in err
    killed = "test -e seen || exit 0; kill -9 $$"
    words = ("run", "-n", "6", "-o", "g.excise", "-c", "a", "-c", "b: env", "--", "sh", "-c")
    assert excise(*words, killed)[0] == 1
    assert "(signal 9)" in excise(*words, killed)[2]


def test_nothing_more_is_printed_when_the_reader_goes(capture: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [PROGRAM, "show", str(capture)], stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_standard_stream_changes_no_answer(closed: str) -> None:
    for words, code in (("--version", 0), ("show reference:lsmpmon-2008", 0), ("show nothing", 3)):
        done = subprocess.run(
            ["sh", "-c", f"{PROGRAM} {words} {closed}"], capture_output=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr


def test_a_full_disk_is_an_error_and_not_a_traceback(capture: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [PROGRAM, "show", str(capture)], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 4
    assert done.stderr == b"excise: the output: cannot be written (No space left on device)\n"


def test_an_environment_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "run", "-n", "1", "-o", str(tmp_path / "e"), "--", "true"],
        env={**os.environb, b"ODD": b"\xff"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 4
    assert b"not UTF-8 text: 'ODD'" in done.stderr


def on_terminal(*words: str, environment: dict[str, str] | None = None) -> str:
    """Return what the program writes to a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
    )
    os.close(follower)
    chunks = []
    try:
        while chunk := os.read(leader, 65_536):
            chunks.append(chunk)
    except OSError:  # EIO: the terminal's last writer has gone
        pass
    os.close(leader)
    assert process.wait(timeout=PATIENCE_S) == 0
    return b"".join(chunks).decode()


def test_colour_is_for_terminals_and_no_color_is_heeded(capture: Path) -> None:
    words = ["compare", str(capture)]
    assert "\x1b[" in on_terminal(*words, environment={"NO_COLOR": ""})
    assert "\x1b[" not in on_terminal(*words, environment={"NO_COLOR": "1"})


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    words = ["run", "-n", "5", "--", "true"]
    shown = on_terminal(words[0], "-o", str(tmp_path / "a"), *words[1:])
    assert "measuring" in shown
    assert "12/12" in shown
    hidden = on_terminal(words[0], "--no-progress", "-o", str(tmp_path / "b"), *words[1:])
    assert "measuring" not in hidden
    piped = program(words[0], "-o", tmp_path / "c", *words[1:])
    assert b"measuring" not in piped.stderr


def test_facts_without_a_unit_are_rounded(excise: Program, tmp_path: Path) -> None:
    load = Fact(name="load.average_1min", value=10.5263671875, unit="1")
    write(tmp_path / "loaded.excise", [run(0)], host_facts=[load])
    _, out, _ = excise("show", tmp_path / "loaded.excise")
    assert re.search(r"load.average_1min +10\.5\n", out)


def test_help_shows_what_stands_in_brackets(excise: Program) -> None:
    _, out, _ = excise("compare", "--help")
    assert "[default: the campaign's, else 1%]" in out
    _, out, _ = excise("tpm", "bench", "--help")
    assert "[default:" in out


def test_doctor_says_yes_or_what_to_do(excise: Program) -> None:
    code, out, err = excise("doctor", "--json")
    assert (code, err) == (0, "")
    abilities = json.loads(out)
    assert {"run campaigns", "Landlock per process", "seccomp filters"} <= {
        ability["name"] for ability in abilities
    }
    for ability in abilities:
        assert ability["found"]
        assert ability["state"] in ("yes", "partly", "no")
        assert (ability["state"] == "yes") == (ability["enable"] == "")
    _, text, _ = excise("doctor")
    assert text.count("\n") == len(abilities) + sum(bool(each["enable"]) for each in abilities)


def test_the_demo_needs_no_network_and_shows_a_real_result(tmp_path: Path) -> None:
    done = program("demo", "-o", tmp_path / "demo.html")
    assert done.returncode == 0, done.stderr
    assert b"Cost against none" in done.stdout
    assert b"A/A" in done.stdout
    assert (tmp_path / "demo.html").stat().st_size > 100_000


def test_the_demo_answers_within_two_seconds_of_processor_time() -> None:
    # The first time it may compile its modules; any time others may share its processor's caches.
    assert any(_demo_s() < 2.0 for _ in range(5))


def _demo_s() -> float:
    before = os.times()
    assert program("demo").returncode == 0
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_says_how_to_go_on_and_does(tmp_path: Path, number: int) -> None:
    """A terminal sends Ctrl-C to the whole foreground group; so is it done here."""
    path = tmp_path / "i.excise"
    hurry = tmp_path / "hurry"
    command = ["sh", "-c", f"[ -e {hurry} ] || sleep 0.3"]
    words = [PROGRAM, "run", "-n", "20", "-o", str(path), "--", *command]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True)
    with ended(process, group=True):
        wait_until(
            lambda: (path / JOURNAL).exists() and b'"sequence":1,' in (path / JOURNAL).read_bytes(),
            beside=process,
        )
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=PATIENCE_S)
    hurry.touch()
    assert process.returncode == 130
    said = re.search(rb"Stopped after (\d+) of 42 runs; nothing is lost", err)
    assert said
    assert f"-o {path} goes on".encode() in err
    lines = (path / JOURNAL).read_bytes().splitlines()
    assert sum(line.startswith(b'{"kind":"run"') for line in lines) == int(said[1])
    again = subprocess.run(words, capture_output=True, check=False)
    assert again.returncode == 0
    assert again.stderr.endswith(b"(42 runs, 0 failed)\n")


# ASCII is what a machine has where nobody set a locale: UTF-8 is written there.
@pytest.mark.parametrize(("encoding", "written"), [("ascii", "utf-8"), ("latin-1", "latin-1")])
def test_an_output_that_lacks_letters_gets_what_it_can_hold(encoding: str, written: str) -> None:
    environment = {"PYTHONIOENCODING": encoding}
    for words in (("demo",), ("daa", "verify", "--help")):
        done = program(*words, environment=environment)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode(written)
    done = program("demo", "--json", environment=environment)
    told = json.loads(done.stdout.decode(written))
    assert told == json.loads(program("demo", "--json").stdout)
