"""`excise fleet` and `excise verify eventlog` as users call them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from eventlog_builder import agile_log, boot, registers_after
from excise.cli.main import main
from fleet_builder import Attested, entries_of, pcr_text, write_fleet, write_host
from ima_builder import ng


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def checksums(path: Path, names: list[str]) -> Path:
    lines = []
    for host in names:
        for entry in entries_of(host):
            digest, name = entry.values["d-ng"], entry.values["n-ng"]
            assert isinstance(digest, bytes)
            assert isinstance(name, bytes)
            lines.append(f"{digest[-32:].hex()}  {name[:-1].decode()}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_fleet_is_verified_kept_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = write_fleet(tmp_path / "fleet", 3)
    policy = checksums(tmp_path / "sums", names)
    write_host(tmp_path / "fleet", "host-002", [*entries_of("host-002"), ng("/opt/x", b"x")])
    state, results, page = (str(tmp_path / n) for n in ("s.sqlite", "results", "page.html"))
    words = ["fleet", "verify", str(tmp_path / "fleet"), "--policy", str(policy), "--workers", "0"]
    code, out, err = call(
        capsys, *words, "--state", state, "--results", results, "--report", page,
        "--candidates", str(tmp_path / "new"),
    )  # fmt: skip
    assert code == 1
    assert "2 of 3 hosts passed, 1 failed" in out
    assert "Wrote hosts.parquet" in err
    assert pl.read_parquet(f"{results}/hosts.parquet")["verdict"].to_list() == [
        "PASSED",
        "PASSED",
        "FAILED",
    ]
    assert "/opt/x" in Path(page).read_text()
    assert "/opt/x" in (tmp_path / "new").read_text()
    code, out, _ = call(capsys, "fleet", "show", state, "--policy", str(policy), "--json")
    shown = json.loads(out)
    assert code == 1
    assert [row["name"] for row in shown["unknown_digests"]] == ["/opt/x"]
    assert [row["host"] for row in shown["not_verified"]] == ["host-002"]
    policy.write_text(policy.read_text() + (tmp_path / "new").read_text())
    code, out, _ = call(capsys, *words, "--state", state, "--json")
    assert code == 0
    assert json.loads(out)["round"]["done"] == 3


def test_a_host_that_was_not_verified_lately_is_an_answer_of_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fleet(tmp_path / "fleet", 2)
    state = str(tmp_path / "states")
    call(capsys, "fleet", "verify", str(tmp_path / "fleet"), "--workers", "0", "--state", state)
    assert call(capsys, "fleet", "show", state, "--not-verified-since", "1h")[0] == 0
    code, out, _ = call(capsys, "fleet", "show", state, "--not-verified-since", "2100-01-01")
    assert code == 1
    assert "Hosts not verified since 2100-01-01" in out


def test_quotes_are_checked_by_the_keys_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = Attested("a")
    host.write(tmp_path / "fleet")
    words = ["fleet", "verify", str(tmp_path / "fleet"), "--workers", "0", "--json"]
    assert call(capsys, *words)[0] == 1
    host.write_key(tmp_path / "keys")
    assert call(capsys, *words, "--keys", str(tmp_path / "keys"), "--require", "quote,ima")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--violations", "maybe"], "'--violations': 'maybe' is not one of 'fail', 'report'"),
        (["--require", "ima,dreams"], "'--require': 'dreams' is unknown"),
        (["--scheduler", "tcp://x:1", "--workers", "2"], "--workers is of the pool"),
        (["--reference", "a", "--policy", "b"], "--reference takes the place"),
        (["--not-verified-since", "soon"], "is no time"),
        (["--state", "/proc/none/s.sqlite"], "cannot be opened"),
        (["--results", "/proc/none"], "cannot be written"),
        (["--report", "page.unknown"], "tells no format"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    write_host(tmp_path, "a")
    code, out, err = call(capsys, "fleet", "verify", str(tmp_path), *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_boot_log_is_verified_against_values_a_quote_and_rtmrs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, pcrs = tmp_path / "log", tmp_path / "pcrs"
    log.write_bytes(agile_log(boot(), "sha256"))
    values = registers_after(boot(), "sha256")
    pcrs.write_text(pcr_text(values))
    code, out, _ = call(capsys, "verify", "eventlog", str(log), "--pcrs", str(pcrs))
    assert code == 0
    assert "eventlog.pcr.sha256" in out
    wrong = f"sha256:0={'00' * 32}"
    assert call(capsys, "verify", "eventlog", str(log), "--pcr", wrong)[0] == 1
    assert call(capsys, "verify", "eventlog", str(log))[0] == 1
    folder = Attested("a").write(tmp_path)
    quote = {n: str(folder / f"quote.{n}") for n in ("attest", "signature", "public", "pcrs")}
    code, out, _ = call(
        capsys, "verify", "eventlog", str(folder / "binary_bios_measurements"),
        "--quote", quote["attest"], "--signature", quote["signature"], "--key", quote["public"],
        "--nonce", b"the verifier's nonce".hex(), "--pcrs", quote["pcrs"], "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["verdict"] == "PASSED"
    guest = [event for event in boot(first_pcr=1) if event.pcr <= 4]
    log.write_bytes(agile_log(guest, "sha384", register=1))
    rtmrs = registers_after(guest, "sha384")["sha384"]
    given = [w for i in range(3) for w in ("--rtmr", f"{i}={rtmrs[i + 1].hex()}")]
    assert call(capsys, "verify", "eventlog", str(log), *given)[0] == 0
    assert call(capsys, "verify", "eventlog", str(log), "--rtmr", "7=00")[0] == 2


def test_the_bar_tells_rate_entries_failures_and_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from excise.cli.fleet_progress import fleet_progress
    from excise.fleet.rounds import Progress

    with fleet_progress(400, shown=True) as update:
        assert update is not None
        update(Progress(done=100, total=400, failed=3, entries=8_000, rate=12.5, left_s=24.0))
    out, err = capsys.readouterr()
    assert out == ""
    words = " ".join(err.split())
    for part in ("100/400", "12.5 hosts/s", "8,000 entries", "24 s left", "3 failed"):
        assert part in words
    with fleet_progress(400, shown=False) as update:
        assert update is None
