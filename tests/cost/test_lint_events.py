"""Identities over RA_PERF iterations, within the clocks' steps; like wholes compared alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.cost.comparison import compare_configurations
from excise.cost.lint import lint_dataset, read_rules
from excise.events.dataset import Dataset
from excise.events.imports import Imported, import_readings
from excise.events.load import load_capture
from excise.evidence.checks import Check, Outcome
from excise.formats.model import Options
from excise.formats.registry import read
from excise.reference import load
from excise.stats import Verdict
from foreign_inputs import ATTESTATION, ra_perf_iteration, ra_perf_start, text


def _dataset(tmp_path: Path, *iterations: dict[str, int]) -> Dataset:
    lines = ra_perf_start("plain")
    for times in iterations:
        lines += ra_perf_iteration("plain", times=times)
    return _imported(tmp_path, lines)


def _imported(tmp_path: Path, lines: list[str]) -> Dataset:
    data = text(lines)
    reading = read(data, options=Options(source="uart.log"), format_name="ra-perf")
    path = tmp_path / "c.excise"
    import_readings(path, [Imported(name="uart.log", data=data, reading=reading)])
    return load_capture(path)


def _checks(dataset: Dataset) -> dict[str, Check]:
    (result,) = lint_dataset(dataset, read_rules())
    return {check.id.removeprefix("lint.identity.ra-perf."): check for check in result.checks}


def _without_verification(times: dict[str, int]) -> dict[str, int]:
    verify_us = times["pta|sign_verify"]
    wholes = ("pta|cose_sign1", "pta|cmd_total")
    kept = {name: value for name, value in times.items() if name != "pta|sign_verify"}
    return kept | {name: kept[name] - verify_us for name in wholes}


def _consistent(**changes_us: int) -> dict[str, int]:
    """Times whose sums are right to the microsecond."""
    times = ATTESTATION | changes_us
    signing = [f"pta|sign_{step}" for step in ("key_setup", "tbs_hash", "ecdsa", "verify")]
    times["pta|cose_sign1"] = sum(times[name] for name in signing)
    steps = ("ocotp_srk", "ocotp_lifecycle", "instance_id", "hash_ta", "hash_tee", "cbor_encode")
    times["pta|cmd_total"] = times["pta|cose_sign1"] + sum(times[f"pta|{s}"] for s in steps)
    host = [name for name in times if name.startswith("host|") and name != "host|total"]
    times["host|total"] = sum(times[name] for name in host)
    return times


def test_identities_of_a_sound_log_pass_and_name_the_remainders(tmp_path: Path) -> None:
    checks = _checks(_dataset(tmp_path, *[_consistent()] * 4))
    assert {check.outcome for check in checks.values()} == {Outcome.PASSED}
    assert checks["dispatch"].got.startswith("4 of 4 runs; dispatch ")
    assert checks["cose_sign1"].got == "4 of 4 runs; COSE encoding between the steps 0 us (0 to 0)"


def test_a_sum_that_is_off_in_one_run_names_it(tmp_path: Path) -> None:
    wrong = _consistent() | {"pta|cose_sign1": _consistent()["pta|cose_sign1"] + 900}
    check = _checks(_dataset(tmp_path, _consistent(), wrong, _consistent()))["cose_sign1"]
    assert (check.outcome, check.got[:6]) == (Outcome.FAILED, "2 of 3")
    assert "900 us beside the parts" in check.detail


@pytest.mark.parametrize(("short_us", "outcome"), [(900, Outcome.PASSED), (3000, Outcome.FAILED)])
def test_a_coarse_clock_allows_a_whole_below_its_parts_by_its_step(
    tmp_path: Path, short_us: int, outcome: Outcome
) -> None:
    # The application's clock steps by 1 ms: its call may seem shorter than what lies within it.
    times = _consistent()
    inside_us = times["pta|cmd_total"] + times["pta|perf_flush"]
    times["ta|pta_invoke"] = inside_us - short_us
    assert _checks(_dataset(tmp_path, *[times] * 3))["dispatch"].outcome is outcome


def test_an_identity_whose_parts_are_missing_is_not_covered(tmp_path: Path) -> None:
    times = {name: value for name, value in _consistent().items() if name != "pta|sign_ecdsa"}
    check = _checks(_dataset(tmp_path, *[times] * 3))["cose_sign1"]
    assert (check.outcome, check.got) == (Outcome.NOT_COVERED, "no run has all of these events")


def test_a_users_identity_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[identity]]\nid = "ra-perf.dispatch"\ntotal = "ta|pta_invoke"\n'
        'parts = ["pta|cmd_total"]\nremainder = "dispatch and printing"\ntolerance = "90%"\n'
    )
    dataset = _dataset(tmp_path, *[_consistent()] * 3)
    (result,) = lint_dataset(dataset, read_rules([path]))
    (check,) = [c for c in result.checks if c.id == "lint.identity.ra-perf.dispatch"]
    assert "dispatch and printing" in check.got


def test_parts_that_explain_too_much_of_a_published_difference_are_named() -> None:
    (result,) = lint_dataset(load("lsmpmon-2008"), read_rules())
    (check,) = result.checks
    assert (check.id, check.outcome, check.got) == ("lint.explained", Outcome.FAILED, "23 of 24")
    assert check.detail == "10K create, TOMOYO − None: 134.7%"


def test_wholes_with_other_parts_are_not_compared_and_their_like_parts_are(tmp_path: Path) -> None:
    lines = []
    for key in ("embedded", "black"):
        times = _consistent()
        lines += ra_perf_start(key)
        for more_us in range(12):
            one = _consistent(**{"pta|sign_ecdsa": times["pta|sign_ecdsa"] + more_us})
            lines += ra_perf_iteration(
                key, times=one if key == "embedded" else _without_verification(one)
            )
    rows = compare_configurations(_imported(tmp_path, lines), baseline="embedded").rows
    found = {f"{row.layer}|{row.event}": row for row in rows if row.task == "attestation"}
    for whole in ("pta|cose_sign1", "pta|cmd_total", "ta|pta_invoke", "host|evidence_get"):
        assert found[whole].verdict is Verdict.NOT_COMPARABLE
        assert found[whole].notes == ("its parts differ: pta|sign_verify only in the baseline",)
    assert found["pta|sign_ecdsa"].verdict is not Verdict.NOT_COMPARABLE
    total = found["task|"]
    assert total.verdict is not Verdict.NOT_COMPARABLE
    assert "its parts differ: pta|sign_verify only in the baseline" in total.notes
