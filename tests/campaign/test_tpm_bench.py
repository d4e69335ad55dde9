"""The bench of a TPM, on a real software TPM, alone and behind a proxy that interferes."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from ended import PATIENCE_S, ended, wait_until
from excise.campaign.tpm_bench import CLIENT, TWIN, run_tpm_bench
from excise.collect.tpm import tasks, wire
from excise.collect.tpm.codes import COMMANDS
from excise.collect.tpm.sessions import HmacMismatchError
from excise.cost.tpm_record import record_of
from excise.errors import HostError, OutputError, UsageError
from excise.events.dataset import Dataset
from excise.events.load import load_capture
from software_tpm import SoftwareTpm, new_tpm, require
from tpm_proxy import Proxy, code_of, error, tpm_proxy

require("tpm2_pytss")

KINDS = ("transient", "loaded-session", "saved-session", "persistent", "nv-index")


@pytest.fixture
def proxy(swtpm: SoftwareTpm) -> Iterator[Proxy]:
    with tpm_proxy(swtpm) as p:
        yield p


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dataset, SoftwareTpm, str]]:
    """Measure everything once; give the capture, the TPM, and its state before."""
    with new_tpm() as tpm:
        before = state(tpm)
        path = tmp_path_factory.mktemp("bench") / "tpm.excise"
        done = run_tpm_bench(tpm.tcti, path, blocks=6, budget_ns=10**9, allow_persistent=True)
        assert not done.left
        assert not done.interrupted
        assert done.skipped == ()
        yield load_capture(path), tpm, before


def state(tpm: SoftwareTpm) -> str:
    """Return handles of every kind and all PCRs, as tpm2-tools tell them."""
    handles = [f"{kind}: {tpm.tool('tpm2_getcap', f'handles-{kind}')}" for kind in KINDS]
    return "\n".join([*handles, tpm.tool("tpm2_pcrread")])


def test_nothing_is_left_in_the_tpm(bench: tuple[Dataset, SoftwareTpm, str]) -> None:
    dataset, tpm, before = bench
    assert state(tpm) == before
    proof = dataset.effects[-1]
    assert (proof.configuration, proof.outcome, proof.got) == ("all", "PASSED", "the same")


def test_every_command_is_measured_and_its_sequence_told_apart(
    bench: tuple[Dataset, SoftwareTpm, str],
) -> None:
    dataset, _, _ = bench
    record = record_of(dataset)
    known = {task.name for task in (*tasks.TASKS, tasks.NV_READ)}
    assert known <= {command.name for command in record.commands}
    for command in record.commands:
        assert command.n >= 3
        assert command.first_ns is not None
        assert 0 < command.min_ns <= command.median_ns <= command.p95_ns <= command.max_ns
    hmac = record.command("PCR_Extend", mode="hmac")
    assert hmac is not None
    assert list(hmac.parts_ns) == ["ContextLoad", "StartAuthSession", "FlushContext", "PCR_Extend"]
    saved = record.command("PCR_Extend", mode="saved")
    assert saved is not None
    assert list(saved.parts_ns) == ["ContextLoad", "PCR_Extend", "ContextSave"]


def test_modes_are_ordered_as_on_hardware(bench: tuple[Dataset, SoftwareTpm, str]) -> None:
    """By the fastest of all runs, which other load on the machine lengthens least."""
    dataset, _, _ = bench
    extends = dataset.runs.filter(pl.col("task").cast(pl.String) == "PCR_Extend")
    fastest = {
        str(mode): float(rows["wall_ns"].min())
        for (mode,), rows in extends.partition_by("configuration", as_dict=True).items()
    }
    assert fastest["hmac"] > fastest["saved"] > min(fastest["none"], fastest["lazy"])
    each = dataset.events.join(
        extends.filter(pl.col("configuration").cast(pl.String) == "hmac").select("sequence"),
        on="sequence",
    ).select(pl.col("event").cast(pl.String), "value")
    parts = {
        name: rows["value"].min()
        for (name,), rows in each.partition_by("event", as_dict=True).items()
    }
    assert max(parts, key=lambda name: parts[name]) == "StartAuthSession"
    assert min(parts, key=lambda name: parts[name]) in ("FlushContext", "PCR_Extend")


def test_the_clients_work_is_no_part_of_the_tpms_time(
    bench: tuple[Dataset, SoftwareTpm, str],
) -> None:
    dataset, _, _ = bench
    runs = dataset.runs.with_columns(pl.col("task", "configuration").cast(pl.String))
    events = dataset.events.with_columns(pl.col("layer").cast(pl.String))
    client = runs.filter(runs["task"] == CLIENT)
    assert set(client["configuration"]) == {"lazy", "saved", "hmac"}
    for task, layer in (("PCR_Extend", "tpm"), (CLIENT, "client")):
        for row in runs.filter(runs["task"] == task).iter_rows(named=True):
            own = events.filter(events["sequence"] == row["sequence"])
            assert set(own["layer"]) == {layer}
            assert own["value"].sum() == row["wall_ns"]


def test_modes_are_paired_in_blocks_with_a_twin(bench: tuple[Dataset, SoftwareTpm, str]) -> None:
    from excise.cost.comparison import compare_configurations

    dataset, _, _ = bench
    found = compare_configurations(dataset, margin_ratio=0.01)
    assert dataset.manifest.twin == TWIN
    assert "PCR_Extend" in found.aa
    whole = {row.configuration: row for row in found.rows if not row.event}
    assert set(whole) == {"lazy", "saved", "hmac"}
    assert whole["hmac"].order == "paired blocks"
    assert whole["hmac"].ratio > 2


def test_each_mode_is_proven_by_the_pcrs_value(bench: tuple[Dataset, SoftwareTpm, str]) -> None:
    dataset, _, _ = bench
    modes = {each.configuration: each for each in dataset.effects[:-1]}
    assert list(modes) == ["none", "lazy", "saved", "hmac"]
    assert all(each.outcome == "PASSED" for each in modes.values())
    assert "HMAC" not in modes["none"].got
    assert all("HMAC of the answer right" in modes[m].got for m in ("lazy", "saved", "hmac"))


@pytest.mark.parametrize("mode", ["lazy", "saved", "hmac"])
@pytest.mark.parametrize("place", [14 + 2, -34 - 1, -1], ids=["nonce", "attributes", "hmac"])
def test_one_altered_byte_of_an_answer_fails_the_bench(
    swtpm: SoftwareTpm, proxy: Proxy, tmp_path: Path, mode: str, place: int
) -> None:
    before = state(swtpm)
    left = {"lazy": 1, "saved": 2, "hmac": 3}[mode]
    protected: list[bytes] = []

    def alter(command: bytes, response: bytes) -> bytes:
        if code_of(command) != COMMANDS["PCR_Extend"] or command[18:22] == b"\x40\x00\x00\x09":
            return response
        protected.append(command)
        if len(protected) != left:
            return response
        changed = bytearray(response)
        changed[place] ^= 0x01
        return bytes(changed)

    proxy.after = alter
    path = tmp_path / "tpm.excise"
    with pytest.raises(HmacMismatchError, match="HMAC of the TPM's answer to a protected PCR_Ext"):
        run_tpm_bench(proxy.tcti, path, blocks=1, only=["PCR_Extend"])
    assert len(protected) >= left
    proxy.after = lambda _command, response: response
    assert state(swtpm) == before
    sessions = load_capture(path).sessions
    assert sessions[-1].state == "interrupted"


def test_an_answer_without_an_hmac_fails_the_bench(
    swtpm: SoftwareTpm, proxy: Proxy, tmp_path: Path
) -> None:
    before = state(swtpm)

    def strip(command: bytes, response: bytes) -> bytes:
        if code_of(command) != COMMANDS["PCR_Extend"] or command[18:22] == b"\x40\x00\x00\x09":
            return response
        return error(0)

    proxy.after = strip
    with pytest.raises(HostError, match="too short"):
        run_tpm_bench(proxy.tcti, tmp_path / "tpm.excise", blocks=1, only=["PCR_Extend"])
    proxy.after = lambda _command, response: response
    assert state(swtpm) == before


def test_a_tpm_that_asks_to_try_again_is_asked_again(
    swtpm: SoftwareTpm, proxy: Proxy, tmp_path: Path
) -> None:
    busy = iter([True, True, False] * 10_000)

    def later(command: bytes) -> bytes | None:
        return error(0x922) if code_of(command) == COMMANDS["PCR_Read"] and next(busy) else None

    proxy.before = later
    done = run_tpm_bench(proxy.tcti, tmp_path / "tpm.excise", blocks=3, only=["PCR_Read"])
    assert done.retries >= 2 * 4
    dataset = load_capture(tmp_path / "tpm.excise")
    assert any("times to send a command again" in note for note in dataset.manifest.notes)
    # Neither the pauses nor the refusals are part of a command's time.
    assert max(dataset.runs["wall_ns"]) < 2_000_000_000


def test_a_tpm_that_stays_busy_is_told_of_clearly(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PATIENCE_S", 0.05)
    proxy.before = lambda _command: error(0x922)
    with pytest.raises(HostError, match="kept asking to try again: it is busy at GetCapability"):
        run_tpm_bench(proxy.tcti, tmp_path / "tpm.excise", blocks=1)


def test_a_missing_curve_is_noted_and_the_rest_measured(
    swtpm: SoftwareTpm, proxy: Proxy, tmp_path: Path
) -> None:
    def refuse(command: bytes) -> bytes | None:
        # TPM_RC_CURVE of the second parameter, as TPMs without BN_P256 answer.
        made = code_of(command) == COMMANDS["Create"] and b"\x00\x1a\x00\x0b\x00\x00" in command
        return error(0x2E6) if made else None

    proxy.before = refuse
    done = run_tpm_bench(proxy.tcti, tmp_path / "t", blocks=2, only=["ECDAA", "ReadClock"])
    assert done.skipped == (
        "ECDAA Commit and Sign: the TPM refuses a curve it does not have (TPM_RC_CURVE) at Create.",
    )
    record = record_of(load_capture(tmp_path / "t"))
    assert [command.name for command in record.commands] == ["ReadClock"]
    assert any("TPM_RC_CURVE" in note for note in record.notes)


def test_a_full_tpm_is_told_of_clearly(swtpm: SoftwareTpm, tmp_path: Path) -> None:
    for number in range(3):
        swtpm.tool("tpm2_createprimary", "-Q", "-C", "n", "-G", "ecc", "-c", f"k{number}.ctx")
    before = state(swtpm)
    try:
        with pytest.raises(HostError, match=r"no room for another object .*resource manager"):
            run_tpm_bench(swtpm.tcti, tmp_path / "tpm.excise", blocks=1)
        assert state(swtpm) == before
    finally:
        swtpm.flush()


def test_a_tpm_in_lockout_is_not_measured(tmp_path: Path) -> None:
    with new_tpm() as tpm:
        tpm.tool("tpm2_dictionarylockout", "-s", "-n", "1", "-t", "1000", "-l", "1000")
        tpm.tool("tpm2_createprimary", "-Q", "-C", "o", "-p", "right", "-c", "p.ctx")
        tpm.flush()
        with pytest.raises(AssertionError, match="authorization HMAC check failed"):
            tpm.tool("tpm2_create", "-C", "p.ctx", "-P", "wrong", "-u", "u", "-r", "r")
        tpm.flush()
        with pytest.raises(HostError, match=r"in lockout .*tpm2_dictionarylockout -c"):
            run_tpm_bench(tpm.tcti, tmp_path / "tpm.excise", blocks=1)


@pytest.mark.lab
@pytest.mark.long  # times steps of milliseconds: on a loaded machine there are none to see
def test_a_polling_driver_is_found(swtpm: SoftwareTpm, proxy: Proxy, tmp_path: Path) -> None:
    """On a machine with other load the poll must be long against what the load adds."""
    found = {}
    for tick_s in (0.004, 0.012, 0.036):
        poll_every(proxy, tick_s)
        path = tmp_path / f"{tick_s}.excise"
        words = ["Get", "ReadClock", "PCR_Read", "Hash (", "ZGen", "Sign ECDSA", "HMAC", "P256"]
        run_tpm_bench(proxy.tcti, path, blocks=4, only=words)
        found[tick_s] = record_of(load_capture(path)).polling_step_ns
        if found[tick_s] is not None:
            assert found[tick_s] == pytest.approx(tick_s * 1e9, rel=0.05)
            return
    pytest.fail(f"no polling is found: {found}")


def poll_every(proxy: Proxy, tick_s: float) -> None:
    """Have the proxy answer as a driver that polls: each command after its number of polls."""
    polls = {COMMANDS[name]: 1 + place % 9 for place, name in enumerate(COMMANDS)}
    started = [0.0]

    def start(_command: bytes) -> bytes | None:
        started[0] = time.monotonic()
        return None

    def answer(command: bytes, response: bytes) -> bytes:
        until = started[0] + tick_s * polls[code_of(command)]
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(left_s / 2)
        return response

    proxy.before, proxy.after = start, answer


def test_a_used_pcr_is_left_alone(tmp_path: Path) -> None:
    with new_tpm() as tpm:
        tpm.tool("tpm2_pcrextend", f"16:sha256={'ab' * 32}")
        before = state(tpm)
        run_tpm_bench(tpm.tcti, tmp_path / "a", blocks=1, only=["PCR_Extend"])
        assert "PCR 23" in load_capture(tmp_path / "a").manifest.notes[0]
        assert state(tpm) == before
        tpm.tool("tpm2_pcrextend", f"23:sha256={'ab' * 32}")
        with pytest.raises(HostError, match="PCR 16 and PCR 23 both hold a value"):
            run_tpm_bench(tpm.tcti, tmp_path / "b", blocks=1, only=["PCR_Extend"])
        assert not (tmp_path / "b").exists()
        done = run_tpm_bench(tpm.tcti, tmp_path / "c", blocks=1, only=["PCR_Extend"], pcr=16)
        assert done.left == ()
        assert "not reset" in load_capture(tmp_path / "c").manifest.notes[0]


@pytest.mark.parametrize("pcr", [0, 10, 15, 17, 24])
def test_no_other_pcr_is_extended(swtpm: SoftwareTpm, tmp_path: Path, pcr: int) -> None:
    with pytest.raises(UsageError, match="cannot be reset"):
        run_tpm_bench(swtpm.tcti, tmp_path / "tpm.excise", pcr=pcr)


def test_without_leave_no_nv_index_is_defined(
    swtpm: SoftwareTpm, proxy: Proxy, tmp_path: Path
) -> None:
    done = run_tpm_bench(proxy.tcti, tmp_path / "tpm.excise", blocks=1, only=["NV", "ReadClock"])
    assert "--allow-persistent" in done.skipped[0]
    writing = {COMMANDS[name] for name in ("NV_DefineSpace", "NV_Write", "NV_UndefineSpace")}
    assert not writing & set(proxy.seen)


def test_an_unknown_command_is_refused(swtpm: SoftwareTpm, tmp_path: Path) -> None:
    before = state(swtpm)
    with pytest.raises(UsageError, match=r"no command is called NoSuch.*PCR_Extend"):
        run_tpm_bench(swtpm.tcti, tmp_path / "tpm.excise", only=["NoSuch"])
    assert state(swtpm) == before


def test_an_interrupted_bench_keeps_what_it_measured_and_leaves_nothing(
    swtpm: SoftwareTpm, tmp_path: Path
) -> None:
    before = state(swtpm)
    path = tmp_path / "tpm.excise"
    program = "from excise.cli.main import main; main()"
    words = ["tpm", "bench", "-T", swtpm.tcti, "--blocks", "100000", "-o", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    journal = path / "journal.jsonl"
    with ended(process):
        wait_until(
            lambda: journal.exists() and journal.read_bytes().count(b'"PCR_Extend"') >= 20,
            beside=process,
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "stopped, what was measured is kept" in err
    assert "A PCR extend takes" in out
    assert state(swtpm) == before
    dataset = load_capture(path)
    assert dataset.runs.height > 20
    assert dataset.sessions[-1].state == "interrupted"
    assert not dataset.losses


def test_an_interrupted_bench_is_gone_on_with_by_the_same_command(
    swtpm: SoftwareTpm, tmp_path: Path
) -> None:
    path, only = tmp_path / "t", ["PCR_Extend", "ReadClock"]
    stopped = iter(range(30))

    def stop(_text: str, _done: int, _total: int) -> None:
        if next(stopped) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    first = run_tpm_bench(swtpm.tcti, path, blocks=6, only=only, on_step=stop)
    assert first.interrupted
    with (path / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"kind": "run", "sequ')  # a power cut besides
    second = run_tpm_bench(swtpm.tcti, path, blocks=6, only=only)
    assert not second.interrupted
    dataset = load_capture(path)
    assert [each.state for each in dataset.sessions] == [
        "started", "interrupted", "resumed", "finished",
    ]  # fmt: skip
    keys = dataset.runs.select("task", "configuration", "block")
    assert keys.is_unique().all()
    assert dataset.runs["sequence"].is_unique().all()
    for (task, arm), rows in dataset.runs.partition_by(
        "task", "configuration", as_dict=True
    ).items():
        assert sorted(rows["block"]) == list(range(7)), (task, arm)
    assert second.verified > first.verified
    assert dataset.losses[0].reason.startswith("torn last line")
    with pytest.raises(OutputError, match="already exists and is complete"):
        run_tpm_bench(swtpm.tcti, path, blocks=6, only=only)


def test_another_tpms_capture_is_not_gone_on_with(swtpm: SoftwareTpm, tmp_path: Path) -> None:
    path = tmp_path / "t"

    def stop(_text: str, _done: int, _total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    run_tpm_bench(swtpm.tcti, path, blocks=2, only=["ReadClock"], on_step=stop)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"SW TPM"', '"SLB9670"'))
    with pytest.raises(OutputError, match=r"another TPM.*SLB9670 against SW TPM"):
        run_tpm_bench(swtpm.tcti, path, blocks=2, only=["ReadClock"])


def test_what_others_do_with_the_tpm_is_no_fault_of_the_bench(
    swtpm: SoftwareTpm, proxy: Proxy, tmp_path: Path
) -> None:
    area = wire.PASSWORD
    digest = wire.u32(1) + wire.u16(0x000B) + bytes(range(32))
    body = wire.u32(10) + wire.u32(len(area)) + area + digest
    extend = struct.pack(">HII", 0x8002, 10 + len(body), COMMANDS["PCR_Extend"]) + body

    def measure(command: bytes) -> bytes | None:
        if code_of(command) == COMMANDS["ReadClock"]:
            assert proxy.exchange(extend)[6:10] == bytes(4)  # as IMA would
        return None

    proxy.before = measure
    done = run_tpm_bench(proxy.tcti, tmp_path / "t", blocks=1, only=["ReadClock"])
    assert done.left == ()
    assert any("PCR 10 of SHA256 changed" in text for text in done.skipped)
