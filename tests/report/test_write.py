"""Outputs: opened before the work, replaced in one step, refused with a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from excise.errors import UsageError
from excise.report.model import Report, Section
from excise.report.write import (
    FORMATS,
    export_tables,
    format_of,
    open_folder,
    open_output,
    open_outputs,
    render,
)

pytest_plugins = ("report_fixtures",)


def test_the_ending_tells_the_format_unless_one_is_named() -> None:
    assert format_of("a/report.HTML") == "html"
    assert format_of("t.tex") == "latex"
    assert format_of("-") == "text"
    assert format_of("-", name="json") == "json"
    assert format_of("report.html", name="markdown") == "markdown"


def test_an_ending_that_tells_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"report.xyz: the ending '.xyz' tells no format"):
        format_of("report.xyz")
    with pytest.raises(UsageError, match="report: no ending tells the format"):
        format_of("report")
    with pytest.raises(UsageError, match=r"unknown format 'docx'.*text, markdown, csv, json"):
        format_of("report.html", name="docx")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_renders_the_example(example: Report, name: str) -> None:
    text = render(example, format=format_of("-", name=name))
    assert "landlock" in text


def test_one_table_is_asked_of_csv_and_latex_alone(example: Report) -> None:
    assert render(example, format="csv", table="checks").startswith("id,outcome,expected,got\r\n")
    assert render(example, format="latex", table="checks").startswith(r"\begin{tabular}")
    with pytest.raises(UsageError, match="as csv or latex, not as html"):
        render(example, format="html", table="checks")


def test_csv_of_a_report_without_tables_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Tables: none"):
        render(Report(title="t", sections=[Section(heading="s", blocks=[])]), format="csv")


def test_a_write_replaces_the_file_in_one_step_and_leaves_nothing_beside_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "report.txt"
    path.write_text("before")
    path.chmod(0o640)
    with open_output(path) as output:
        assert path.read_text() == "before"
        output.write("first\n")
        assert path.read_text() == "first\n"
        with path.open() as reader:
            output.write("second, longer\n")
            assert reader.read() == "first\n"
    assert path.read_text() == "second, longer\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_gets_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with open_output(tmp_path / "report.txt") as output:
        output.write("x")
    assert (tmp_path / "report.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def work_that_fails(path: Path) -> None:
    with open_output(path):
        raise RuntimeError("the work failed")


def test_work_that_fails_leaves_the_old_file_and_no_new_one(tmp_path: Path) -> None:
    old = tmp_path / "old.txt"
    old.write_text("old")
    for path in (old, tmp_path / "new.txt"):
        with pytest.raises(RuntimeError, match="the work failed"):
            work_that_fails(path)
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_text() == "old"


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "report.txt"
    link.symlink_to(tmp_path / "there" / "real.txt")
    with open_output(link) as output:
        output.write("x")
    assert link.is_symlink()
    assert (tmp_path / "there" / "real.txt").read_text() == "x"


def test_a_device_is_written_and_not_replaced() -> None:
    with open_output("/dev/null") as output:
        output.write("x")
    assert Path("/dev/null").is_char_device()


def test_standard_output_takes_text_and_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with open_output("-") as output:
        output.write("µs\n")
        output.write(b"\x00\xff")
    assert capfdbinary.readouterr().out == "µs\n".encode() + b"\x00\xff"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "is a folder, not a file"),
        ("missing/report.txt", "its folder does not exist"),
        ("file/report.txt", r"cannot be written \(Not a directory\)"),
        ("x" * 300, r"cannot be written \(File name too long\)"),
    ],
)
def test_a_path_that_cannot_work_is_refused_at_once(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=reason):
        open_output(tmp_path / name).__enter__()


def test_a_file_or_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.txt"
    path.touch(0o444)
    real = os.access
    # Root may write anywhere, so the kernel's answer for another user is given by hand.
    monkeypatch.setattr(
        os, "access", lambda p, mode: Path(p) not in {path, tmp_path} and real(p, mode)
    )
    with pytest.raises(UsageError, match=r"report.txt: cannot be written \(Permission denied\)"):
        open_output(path).__enter__()
    with pytest.raises(UsageError, match="is a folder that cannot be written"):
        open_folder(tmp_path)


def test_several_outputs_are_opened_all_or_none(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.txt", tmp_path / "no" / "b.txt"
    with pytest.raises(UsageError, match="its folder does not exist"):
        open_outputs([good, bad]).__enter__()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="named twice as an output"):
        open_outputs([good, tmp_path / "." / "a.txt"]).__enter__()
    with open_outputs([good, tmp_path / "b.txt"]) as outputs:
        for output in outputs:
            output.write("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_every_table_is_exported_to_a_file_of_its_name(example: Report, tmp_path: Path) -> None:
    written = export_tables(example, tmp_path / "tables")
    assert [path.name for path in written] == [
        "comparison.csv",
        "attribution.csv",
        "checks.csv",
    ]
    assert (
        (tmp_path / "tables" / "checks.csv").read_bytes().startswith(b"id,outcome,expected,got\r\n")
    )
    with pytest.raises(UsageError, match="is a file, not a folder"):
        export_tables(example, tmp_path / "tables" / "checks.csv")
