"""Real boots: stages, entries and commands to the TPM under IMA policies and HMAC sessions."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import polars as pl
import pytest

from excise.cost.boot import BootRow, boot_rows
from excise.cost.extend import extend_rows
from excise.cost.predict_boots import boots_of
from excise.errors import EffectError, HostError
from excise.events.load import load_capture
from excise.lab import Machine, kernels, preset, run_guest
from excise.lab.boots import boot_arms, boot_machine, run_boots
from excise.lab.cache import cache_root
from excise.lab.hmac import hmac_modes, run_hmac
from excise.lab.plan import Plan
from excise.lab.tpm_trace import GraphTrace, trace_of
from excise.lab.workloads import distinct_files

pytestmark = pytest.mark.lab


def _rows(path: Path) -> dict[str, BootRow]:
    return {row.configuration: row for row in boot_rows(load_capture(path))}


def test_boots_under_policies_are_a_capture_that_goes_on(lab_cache: Path, tmp_path: Path) -> None:
    arms = boot_arms(kernels=["6.12"], policies=["off", "tcb"], files=[30])
    machine = boot_machine(Machine(accelerator="tcg"), root="initramfs")
    path = tmp_path / "boots.excise"
    for boots in (1, 2):
        failed = run_boots(arms, machine=machine, boots=boots, output=path, title="boots")
        assert failed == []
    dataset = load_capture(path)
    assert [session.state for session in dataset.sessions] == [
        *("started", "finished"),
        *("resumed", "finished"),
    ]
    rows = _rows(path)
    assert [row.n for row in rows.values()] == [2, 2]
    off, tcb = rows["off"], rows["tcb"]
    assert off.entries is not None
    assert tcb.entries is not None
    assert (off.entries.median, off.commands) == (1, None)
    assert 31 <= tcb.entries.median <= 34  # with the boot aggregate, and what init itself opened
    assert tcb.commands is not None
    # What was extended before the kprobe was there, the boot aggregate, is not counted.
    assert tcb.commands["PCR_Extend"].median == tcb.entries.median - 1
    assert {effect.outcome for effect in dataset.effects} == {"PASSED"}
    for row in rows.values():
        assert list(row.stages) == ["shutdown", "firmware", "kernel", "initrd"]
        assert row.total is not None
    assert {boot.entries for boot in boots_of(dataset)} == {1, round(tcb.entries.median)}
    assert {boot.mode for boot in boots_of(dataset)} == {"none"}
    raw = list((path / "raw").glob("*.facts.json"))
    assert len(raw) == 4
    for facts in raw:  # by what is present the mode is known
        assert "suspend_pcr" in json.loads(facts.read_text())["facts"]["tpm_parameters"]


def test_a_debian_boots_by_stage(lab_cache: Path, tmp_path: Path) -> None:
    arms = boot_arms(kernels=["6.12"], policies=["few"])
    path = tmp_path / "boots.excise"
    failed = run_boots(
        arms,
        machine=boot_machine(Machine(accelerator="tcg")),
        boots=1,
        output=path,
        title="boots",
    )
    assert failed == []
    (row,) = _rows(path).values()
    assert list(row.stages) == ["shutdown", "firmware", "kernel", "initrd", "userspace"]
    assert row.total is not None
    assert row.total.median == pytest.approx(
        sum(each.median for name, each in row.stages.items() if name != "shutdown")
    )
    assert row.entries is not None
    assert 10 <= row.entries.median <= 150
    assert row.commands is not None
    # Some programs were measured before the count was read, some between the two readings.
    assert row.commands["PCR_Extend"].median == pytest.approx(row.entries.median, abs=6)
    units = load_capture(path).events.filter(layer="unit")
    assert units.height > 10


def traced_entries(count: int, *, trace: GraphTrace) -> Plan:
    """Return the plan that reads new files while their measurement by IMA is traced."""
    plan = distinct_files(count)
    (step,) = plan.steps
    return Plan(steps=trace.around(shlex.join(step.command)), files=plan.files)


def test_extends_of_a_distributions_kernel_are_traced(lab_cache: Path) -> None:
    from excise.formats.function_graph import read_function_graph

    result = run_guest(
        Machine(kernel="6.1", mode="tpm", accelerator="tcg"),
        preset=preset("ima-measure"),
        plan=traced_entries(4, trace=GraphTrace(options=("funcgraph-abstime",))),
    )
    found = trace_of(result)
    assert found.lost == 0
    assert found.set_up.split() == ["function_graph", "[mono]", "tpm2_pcr_extend"]
    graph = read_function_graph(found.text)
    calls = dict(graph.by().select("function", "calls").iter_rows())
    assert calls["tpm2_pcr_extend"] == 4
    assert calls["tpm_transmit"] == 4


def test_a_function_that_cannot_be_traced_ends_in_one_message(lab_cache: Path) -> None:
    trace = GraphTrace(roots=("no_such_function",))
    with pytest.raises(HostError, match="the kernel cannot trace no_such_function"):
        run_guest(
            Machine(kernel="6.12", mode="tpm", accelerator="tcg"),
            preset=preset("ima-measure"),
            plan=traced_entries(1, trace=trace),
        )


def test_a_trace_without_calls_is_no_result(lab_cache: Path) -> None:
    result = run_guest(
        Machine(kernel="6.12", mode="tpm", accelerator="tcg"),
        preset=preset("ima-off"),
        plan=traced_entries(1, trace=GraphTrace()),
    )
    with pytest.raises(EffectError, match="the trace is empty"):
        trace_of(result)


@pytest.fixture
def own_kernels(lab_cache: Path) -> None:
    """Have the lab's own kernels in the cache of these tests; nothing else needs them."""
    before = os.environ.pop("EXCISE_LAB_CACHE")
    try:
        shared = cache_root() / "own-kernels"
    finally:
        os.environ["EXCISE_LAB_CACHE"] = before
    link = lab_cache / "own-kernels"
    if shared.is_dir() and not link.exists():
        link.symlink_to(shared)
    for name in ("own", "own:no-hmac"):
        try:
            kernels.resolve(name)
        except HostError as error:
            # Optional for everybody: also where no other test may be skipped.
            pytest.skip(str(error))


@pytest.mark.usefixtures("own_kernels")
def test_the_kernels_hmac_sessions_show_in_each_extend(tmp_path: Path) -> None:
    path = tmp_path / "hmac.excise"
    machine = boot_machine(Machine(accelerator="tcg"), root="initramfs")
    assert run_hmac(hmac_modes(), machine=machine, boots=0, entries=6, output=path) == []
    dataset = load_capture(path)
    assert {effect.outcome for effect in dataset.effects} == {"PASSED"}
    rows = {row.configuration: row for row in extend_rows(dataset)}
    assert [row.n for row in rows.values()] == [5, 5, 5, 5]
    each, kept = rows["HMAC, session each"].steps_ns, rows["HMAC, session kept"].steps_ns
    session = {"ContextLoad", "salt", "StartAuthSession", "FlushContext"}
    assert session <= each.keys()
    assert not session & kept.keys()
    inside = dataset.events.filter(pl.col("parent").cast(pl.String) == "kernel|start_auth_session")
    whole = dataset.events.filter(pl.col("event").cast(pl.String) == "start_auth_session")
    sums = dict(inside.group_by("sequence").agg(pl.col("value").sum()).iter_rows())
    assert len(sums) >= 6
    for sequence, value in whole.select("sequence", "value").iter_rows():
        assert sums.get(sequence, 0.0) <= value
    for name in ("no HMAC", "HMAC, disable_pcr_integrity"):
        assert rows[name].steps_ns.keys() & {"start_auth_session", "fill", "check"} == set()
    assert rows["HMAC, session each"].total.median > rows["HMAC, session kept"].total.median
    for row in rows.values():
        assert row.unattributed_ns < 0.2 * row.total.median
