"""What is computed from starts: sums, shares, remainders, first use, the cached status."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from excise.campaign.selftest_bench import TWIN, require_place_or_unfinished, run_bench
from excise.campaign.selftest_subjects import library_subject
from excise.capture.journal import Event, Record, Run
from excise.capture.manifest import Manifest
from excise.collect.selftest.libraries import LIBRARIES, look_for
from excise.collect.selftest.openssl import CACHED, OFF, ON
from excise.cost.attribution import run_attributions
from excise.cost.selftest import (
    cached_answers,
    family_costs,
    family_of,
    start_costs,
    use_costs,
)
from excise.cost.selftest import (
    test_costs as costs_of_tests,
)
from excise.cost.selftest_commands import command_costs, half_width, more_blocks
from excise.errors import OutputError
from excise.events.dataset import Dataset
from excise.events.load import from_records, load_capture
from excise.report.selftest import build_bench
from excise.report.text import render_text
from skips import skip

pytest_plugins = ("selftest_programs",)
TASK = "load provider, 3.5.9"


def manifest(*arms: str) -> Manifest:
    return Manifest(
        id="x",
        created="2026-11-30T00:00:00+00:00",
        title="built",
        origin="measured",
        baseline=arms[0],
        paired=True,
        campaign={"configurations": [{"name": arm} for arm in arms], "tasks": [{"name": TASK}]},
    )


def built(*, cached_tests: bool = True, blocks: int = 12) -> Dataset:
    """Return loads whose parts are known: 100 configuration, 700 and 150 tests, 50 between."""
    numbers = itertools.count()
    records: list[Record] = []

    def run(task: str, arm: str, block: int, wall: int, events: list[tuple]) -> None:
        sequence = next(numbers)
        phase = "first" if block == 0 else "measured"
        records.append(
            Run(
                sequence=sequence,
                block=block,
                task=task,
                configuration=arm,
                run=block,
                phase=phase,
                start_ns=1000,
                wall_ns=wall,
            )
        )
        records.extend(
            Event(
                sequence=sequence,
                layer=layer,
                event=name,
                start_ns=start,
                value=value,
                parent=parent,
            )
            for layer, name, start, value, parent in events
        )

    tests = [
        ("step", "configuration", 1000, 100, None),
        ("self-test", "KAT_Signature SLH-DSA", 1120, 700, None),
        ("self-test", "KAT_KDF HKDF", 1830, 150, None),
    ]
    for block in range(blocks + 1):
        run(TASK, OFF, block, 120, tests[:1])
        run(TASK, ON, block, 1000, tests)
        run(
            TASK, CACHED, block, 1000 if cached_tests else 150, tests if cached_tests else tests[:1]
        )
        again = [("self-test", "KAT_Signature SLH-DSA", 3000, 500, None)]
        run("run self-tests again, 3.5.9", ON, block, 520, again)
        operation = ("operation", "EC keygen", 5000, 90, None)
        within = ("self-test", "Conditional_PCT ECDSA", 5010, 40, "operation|EC keygen")
        run("first use, 3.5.9", ON, block, 90, [operation, within])
        run("second use, 3.5.9", ON, block, 60, [("operation", "EC keygen", 6000, 60, None)])
    return from_records(records, name="built", manifest=manifest(OFF, ON, CACHED))


def test_parts_of_a_start_sum_to_the_whole() -> None:
    found = {each.configuration: each for each in start_costs(built())}
    on = found[ON]
    assert (on.tests, on.tests_ns, on.steps_ns, on.total_ns) == (2, 850, 100, 1000)
    assert on.remainder_ns == 50
    assert on.remainder_share == pytest.approx(0.05)
    assert (on.before_ns, on.between_ns, on.after_ns) == (20, 10, 20)
    assert found[OFF].tests == 0
    assert found[OFF].remainder_ns == 20


def test_first_use_is_what_a_repeated_test_does_not_take() -> None:
    found = {each.event: each for each in costs_of_tests(built()) if each.configuration == ON}
    assert found["KAT_Signature SLH-DSA"].again_ns == 500
    assert found["KAT_Signature SLH-DSA"].first_use_ns == 200
    assert found["KAT_KDF HKDF"].first_use_ns is None
    assert "Conditional_PCT ECDSA" not in found


def test_families_gather_tests_of_one_algorithm() -> None:
    found = {each.family: each for each in family_costs(built()) if each.configuration == ON}
    assert found["SLH-DSA"].share == pytest.approx(0.7)
    assert found["KDFs"].load_ns == 150


@pytest.mark.parametrize(
    ("event", "family"),
    [
        ("Module_Integrity HMAC", "integrity"),
        ("KAT_AsymmetricCipher RSA_Decrypt", "RSA"),
        ("KAT_KEM KEM_Encap", "ML-KEM"),
        ("KAT_KDF TLS12_PRF", "KDFs"),
        ("DRBG HMAC", "DRBG"),
        ("pubkey RSA (1)", "RSA"),
        ("digest SHA1 (2)", "digests"),
        ("KAT_KA ECDH", "ECDH"),
    ],
)
def test_names_of_both_libraries_have_a_family(event: str, family: str) -> None:
    assert family_of(event) == family


def test_conditional_tests_are_told_by_the_use_they_ran_in() -> None:
    (use,) = use_costs(built())
    assert (use.operation, use.first_ns, use.second_ns) == ("EC keygen", 90, 60)
    assert use.tests == ("Conditional_PCT ECDSA",)
    assert use.again == ()


def test_a_cached_status_helps_where_fewer_tests_run() -> None:
    (no,) = cached_answers(built(), on=ON, cached=CACHED)
    assert no.helps is False
    (yes,) = cached_answers(built(cached_tests=False), on=ON, cached=CACHED)
    assert yes.helps is True
    assert (yes.tests, yes.cached_tests) == (2, 0)
    assert yes.ratio is not None
    assert yes.ratio.ratio == pytest.approx(0.15)


def test_the_report_answers_and_prints_published_rows_beside() -> None:
    from excise.reference import load

    dataset = built()
    report = build_bench(dataset, on=ON, cached=CACHED, beside=[load("fips-2016")])
    answers = report.paragraphs("result")
    assert any("Does the cached status help" in each and "no:" in each for each in answers)
    text = render_text(report, width=80)
    assert "1ubuntu4.1" in text
    assert report.data is not None
    assert report.data["cached"][0]["helps"] is False


def test_a_measurement_in_ns_stands_beside_a_published_table_in_ms() -> None:
    from excise.cost.comparison import compare_datasets
    from excise.reference import load

    found = compare_datasets(built(), load("fips-today"))
    (row,) = (each for each in found.rows if each.task == TASK and not each.event)
    assert row.configuration == ON
    assert (row.baseline_value, row.value, row.unit) == (1000, 391e6, "ns")
    assert row.order == "published values"


def test_cost_per_day_and_lifetime_follow_from_the_extra_of_a_start() -> None:
    dataset = built(blocks=20)
    costs = command_costs(dataset, baselines={ON: OFF}, starts_per_day=1000, share=0.01)
    cost = next(each for each in costs if each.comparison.task == TASK)
    assert cost.extra_ns == 880
    assert cost.per_day_ns == 880_000
    assert cost.lifetime_ns == pytest.approx(88_000)
    assert cost.half_width == 0
    assert cost.more_blocks == 0
    assert cost.comparison.ratio == pytest.approx(1000 / 120)


def test_more_blocks_are_asked_for_until_the_interval_is_narrow() -> None:
    assert half_width(None, 2.0) is None
    assert half_width(0.9, 1.1) == pytest.approx(0.1055, abs=1e-3)
    assert more_blocks(0.1, n=20, target=0.05) == 60
    assert more_blocks(0.05, n=20, target=0.05) == 0
    assert more_blocks(None, n=3, target=0.05) == 3


def test_starts_of_libgcrypt_are_explained_by_its_own_log(tmp_path: Path) -> None:
    switch = LIBRARIES[0]
    found = look_for(switch)
    if found.state != "measured":
        skip(f"libgcrypt cannot be measured here: {found.note}")
    subject = library_subject(switch, version=found.version)
    calls: list[tuple[int, int, str]] = []
    run_bench(
        [subject],
        tmp_path / "bench",
        blocks=3,
        on_step=lambda task, done, total: calls.append((done, total, task)),
    )
    assert calls[-1][:2] == (12, 12)
    dataset = load_capture(tmp_path / "bench")
    assert dataset.manifest.twin == TWIN
    costs = {each.configuration: each for each in start_costs(dataset)}
    assert costs[OFF].tests == 0
    assert costs[ON].tests > 5
    assert costs[ON].remainder_share < 0.1
    assert costs[ON].total_ns > 10 * costs[OFF].total_ns
    for each in run_attributions(dataset, task=subject.name):
        top = sum(part.value for part in each.parts if part.depth == 0)
        assert top == pytest.approx(each.total)


def test_an_interrupted_bench_goes_on_and_makes_no_start_twice(tmp_path: Path) -> None:
    switch = LIBRARIES[0]
    found = look_for(switch)
    if found.state != "measured":
        skip(f"libgcrypt cannot be measured here: {found.note}")
    subject = library_subject(switch, version=found.version)

    def interrupt(_task: str, done: int, _total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    path = tmp_path / "bench"
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        run_bench([subject], path, blocks=2, on_step=interrupt)
    left = load_capture(path)
    assert (left.runs.height, left.sessions[-1].state) == (4, "interrupted")
    require_place_or_unfinished(path, hint="")
    with pytest.raises(OutputError, match="other libraries or configurations"):
        run_bench([dataclasses.replace(subject, name="other")], path, blocks=2)
    with pytest.raises(OutputError, match="is of another library, host or seed: seed"):
        run_bench([subject], path, blocks=2, seed=2)
    run_bench([subject], path, blocks=2)
    whole = load_capture(path)
    starts = whole.runs.select("task", "configuration", "block").rows()
    assert len(starts) == len(set(starts)) == 9
    assert whole.runs["sequence"].to_list() == list(range(9))
    assert [each.state for each in whole.sessions][-2:] == ["resumed", "finished"]
    with pytest.raises(OutputError, match="already exists and is complete"):
        require_place_or_unfinished(path, hint="")


def test_a_library_that_is_absent_or_ignores_its_switch_is_named() -> None:
    for switch in LIBRARIES:
        found = look_for(switch)
        assert found.state in ("measured", "present", "absent")
        assert found.note
        assert bool(found.method) == (found.state == "measured")
