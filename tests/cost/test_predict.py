"""Predictions: known boots, known coefficients, and what cannot be told."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.capture.journal import Event, Run
from excise.capture.manifest import Manifest
from excise.cost.predict import (
    Boot,
    UnitCost,
    UnitCosts,
    entries_left,
    fit_boots,
    predict_added,
)
from excise.cost.predict_boots import boots_of, mode_of
from excise.cost.predict_known import known_cases
from excise.cost.tpm_catalogue import find_tpm
from excise.cost.what_if import WhatIf
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.events.load import from_records
from excise.reference import load
from excise.report.model import Paragraph
from excise.report.predict import build_prediction
from excise.report.text import render_text

MS = 1e6
S = 1e9


def units(**costs: UnitCost) -> UnitCosts:
    return UnitCosts(name="a TPM", costs=costs, bank_ns=1 * MS, banks=2)


def plain(ns: float, **more: float) -> UnitCost:
    return UnitCost(mode="none", mean_ns=ns, **more)  # type: ignore[arg-type]


def boot(mode: str, entries: int, total_ns: float, **stages_ns: float) -> Boot:
    return Boot(
        name=f"{mode} {entries}", mode=mode, entries=entries, total_ns=total_ns, stages_ns=stages_ns
    )


def test_the_published_boots_with_218_entries_follow_from_those_with_444() -> None:
    known = known_cases()
    assert known.model.boots == 2
    assert known.model.overlap == pytest.approx(0.847, abs=0.001)
    found = {each.mode: each for each in known.boots}
    assert found["none"].predicted_ns == pytest.approx(16.466 * S, rel=1e-3)
    assert found["none"].measured_ns == pytest.approx(17.644 * S)
    assert found["none"].error_ratio == pytest.approx(-0.067, abs=0.001)
    assert found["hmac"].predicted_ns == pytest.approx(43.189 * S, rel=1e-3)
    assert found["hmac"].measured_ns == pytest.approx(43.491 * S)
    assert found["hmac"].error_ratio == pytest.approx(-0.007, abs=0.001)


def test_the_published_long_runs_are_predicted_from_one_extend() -> None:
    found = {each.mode: each for each in known_cases().long_runs}
    errors = {mode: each.error_ratio for mode, each in found.items()}
    assert errors == {
        "none": pytest.approx(-0.232, abs=0.001),
        "hmac": pytest.approx(-0.041, abs=0.001),
        "lazy": pytest.approx(-0.258, abs=0.001),
    }
    assert found["hmac"].predicted_ns == pytest.approx(12_313 * 151.171 * MS)
    assert all(each.low_ns is None for each in found.values())


def test_an_entrys_own_work_makes_the_long_runs_better() -> None:
    known = known_cases()
    assert known.entry_work_ns == pytest.approx(1.93 * MS, rel=0.01)
    without = {each.mode: each.error_ns for each in known.long_runs}
    for each in known.with_work:
        assert abs(each.error_ns or 0) < abs(without[each.mode] or 0)


@settings(max_examples=40, deadline=None)
@given(
    base=st.floats(1e9, 1e11),
    none=st.floats(1e3, 1e8),
    hmac=st.floats(1e3, 1e9),
    counts=st.lists(st.integers(1, 20_000), min_size=2, max_size=6, unique=True),
)
def test_exact_boots_give_exact_coefficients(
    base: float, none: float, hmac: float, counts: list[int]
) -> None:
    boots = [
        boot(mode, n, base + n * unit)
        for n in counts
        for mode, unit in (("none", none), ("hmac", hmac))
    ]
    model = fit_boots(boots)
    assert model.base_ns == pytest.approx(base, rel=1e-6)
    assert model.unit_ns["none"] == pytest.approx(none, rel=1e-3, abs=base * 1e-9)
    assert model.unit_ns["hmac"] == pytest.approx(hmac, rel=1e-3, abs=base * 1e-9)
    assert model.degrees == len(boots) - 3
    assert sum(each.error_ns or 0.0 for each in model.known) == pytest.approx(0, abs=base * 1e-6)


def test_an_interval_holds_as_many_new_boots_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        boots = [
            boot("none", n, 10 * S + n * 5 * MS + random.normal(0, 0.3 * S))
            for n in (50, 100, 200, 400, 800)
        ]
        found = fit_boots(boots).predict(entries=600, mode="none")
        truth = 10 * S + 600 * 5 * MS + random.normal(0, 0.3 * S)
        assert found.low_ns is not None
        assert found.high_ns is not None
        held += found.low_ns <= truth <= found.high_ns
    assert 0.92 <= held / 400 <= 0.98


def test_the_interval_of_a_bench_holds_the_sum_of_new_extends() -> None:
    random = np.random.default_rng(8)
    held = 0
    for _ in range(400):
        measured = random.normal(6 * MS, 1 * MS, 30)
        cost = plain(measured.mean(), sd_ns=measured.std(ddof=1), n=30)
        found = predict_added(units(none=cost), entries=500, mode="none")
        truth = random.normal(6 * MS, 1 * MS, 500).sum()
        assert found.low_ns is not None
        assert found.high_ns is not None
        held += found.low_ns <= truth <= found.high_ns
    assert 0.92 <= held / 400 <= 0.98


def test_an_interval_of_what_is_added_does_not_go_below_nothing() -> None:
    wild = units(none=plain(1 * MS, sd_ns=50 * MS, n=5))
    found = predict_added(wild, entries=10, mode="none")
    assert found.low_ns == 0.0
    assert found.high_ns is not None
    assert found.high_ns > 2 * found.predicted_ns


def test_a_stage_is_fitted_by_itself() -> None:
    boots = [b for b in boots_of(load("tpm-hmac-2024")) if b.stages_ns]
    model = fit_boots(boots, stage="userspace")
    assert set(model.unit_ns) == {"none", "hmac"}
    assert model.unit_ns["hmac"] == pytest.approx(127 * MS, rel=0.05)
    with pytest.raises(UsageError, match=r"has no stage 'shutdown'.*total, kernel, initrd"):
        fit_boots(boots, stage="shutdown")


def test_boots_that_do_not_differ_determine_nothing() -> None:
    same = [boot("none", 444, 17 * S), boot("hmac", 444, 72 * S)]
    with pytest.raises(UsageError, match=r"2 boots do not determine .*another number of entries"):
        fit_boots(same)
    with pytest.raises(UsageError, match=r"3 boots do not determine .*another number of entries"):
        fit_boots([*same, boot("none", 444, 18 * S)])
    with pytest.raises(UsageError, match="no boots to fit"):
        fit_boots([])
    with pytest.raises(UsageError, match=r"mode 'hmac' is not known.*excise tpm bench"):
        fit_boots(same, units=units(none=plain(MS)))
    model = fit_boots([boot("none", 1, S), boot("none", 3, 2 * S)])
    with pytest.raises(UsageError, match="tell nothing of mode 'lazy'"):
        model.predict(entries=1, mode="lazy")


def test_two_boots_leave_no_interval_and_say_so() -> None:
    model = fit_boots([boot("none", 100, 2 * S), boot("none", 300, 3 * S)])
    found = model.predict(entries=200, mode="none")
    assert (found.low_ns, found.high_ns) == (None, None)
    assert found.predicted_ns == pytest.approx(2.5 * S)
    assert "no interval" in model.notes[0]


def test_a_share_or_a_cost_that_may_be_possible_is_noted_and_keeps_its_interval() -> None:
    noisy = [boot("none", n, 10 * S + x * S) for n, x in ((100, 0.5), (200, -0.5), (300, 0.2))]
    for model in (fit_boots(noisy, units=units(none=plain(MS))), fit_boots(noisy)):
        assert model.doubts == ()
        assert model.predict(entries=150, mode="none").low_ns is not None
    (left_open,) = fit_boots(noisy, units=FAST).notes
    assert left_open.startswith("The boots leave open what share of an extend lengthens them: ")
    near = [boot("none", n, 10 * S + n * 1.03 * MS) for n in (100, 200, 300)]
    (note,) = fit_boots(near, units=units(none=plain(MS))).notes
    assert "not within 0 and 1" in note
    assert any("no more so than the boots differ" in note for note in fit_boots(noisy).notes)


FAST = units(none=plain(0.05 * MS), hmac=plain(0.5 * MS))
BOOTS = [
    boot(mode, 444, base + x)
    for mode, base in (("none", 23 * S), ("hmac", 78 * S))
    for x in (0.0, 0.1 * S, 0.2 * S, 0.3 * S)
]


@pytest.mark.parametrize("boots", [BOOTS, BOOTS[::4]], ids=["eight", "two"])
def test_a_tpm_that_the_boots_hardly_had_is_named_and_nothing_gets_an_interval(
    boots: list[Boot],
) -> None:
    model = fit_boots(boots, units=FAST)
    (doubt,) = model.doubts
    assert doubt.startswith("27,5")
    assert "this is hardly the TPM that the boots had. Give theirs with --tpm" in doubt
    other = UnitCosts(name="other", costs={"none": plain(MS)})
    for found in (
        model.predict(entries=2000, mode="hmac"),
        model.predict(entries=2000, mode="none", units=other),
        *model.known,
    ):
        assert (found.low_ns, found.high_ns, found.interval) == (None, None, "")
        assert found.doubtful
    own = fit_boots(boots, units=units(none=plain(6 * MS), hmac=plain(140 * MS)))
    assert own.doubts == ()
    assert not own.predict(entries=2000, mode="hmac").doubtful


def test_costlier_extends_that_shorten_a_boot_are_those_of_another_tpm() -> None:
    turned = units(none=plain(9 * MS), hmac=plain(MS))
    (doubt,) = fit_boots(BOOTS, units=turned).doubts
    assert doubt.startswith("-1,5")
    assert "hardly the TPM" in doubt


def test_an_entry_that_costs_somewhat_more_than_its_extend_leaves_two_ways_open() -> None:
    boots = [boot("none", n, 10 * S + n * 1.5 * MS + n % 7 * MS) for n in range(100, 2000, 100)]
    model = fit_boots(boots, units=units(none=plain(MS)))
    assert any("or an entry takes much besides its extend" in doubt for doubt in model.doubts)
    # All of an extend, as exact as can be, is no doubt.
    exact = [boot("none", n, 10 * S + n * MS) for n in (100, 200, 300)]
    assert fit_boots(exact, units=units(none=plain(MS))).doubts == ()


def test_costs_below_nothing_leave_no_interval() -> None:
    fewer = [boot("none", n, 3 * S - n * 5 * MS + n % 3 * MS) for n in (100, 200, 300, 400)]
    model = fit_boots(fewer)
    assert any("an entry costs less than nothing" in doubt for doubt in model.doubts)
    assert model.predict(entries=150, mode="none").interval == ""
    steep = [boot("none", n, n * 9 * MS - 0.8 * S + n % 3 * MS) for n in (100, 200, 300, 400)]
    (doubt,) = fit_boots(steep).doubts
    assert "A boot without any entry would take less than nothing" in doubt
    two = fit_boots([boot("none", 100, 2 * S), boot("none", 300, 1 * S)])
    assert any("less than nothing" in doubt for doubt in two.doubts)


def test_a_report_says_a_fit_cannot_be_before_what_comes_from_it() -> None:
    model = fit_boots(BOOTS, units=FAST)
    found = WhatIf(entries=[2000]).from_boots(model)
    report = build_prediction(found, model=model, units=[FAST])
    first, *rest = report.sections[0].blocks
    assert isinstance(first, Paragraph)
    assert (first.kind, "hardly the TPM" in first.text) == ("warning", True)
    assert not any(isinstance(each, Paragraph) and each.kind == "result" for each in rest)
    text = render_text(report)
    assert "(no interval: the fit cannot be)" in " ".join(text.split())
    assert text.count("hardly") == 1
    assert "of an extend's cost would lengthen it" in " ".join(text.split())
    assert report.data["model"]["doubts"] == list(model.doubts)
    assert report.data["model"]["overlap_interval"] == [model.share.low, model.share.high]  # type: ignore[union-attr]
    alone = render_text(build_prediction([], model=model, units=[FAST]))
    assert alone.count("hardly") == 1


def test_every_knob_turns_what_it_says() -> None:
    costs = units(none=plain(10 * MS))
    whole = predict_added(costs, entries=100, mode="none")
    assert whole.predicted_ns == pytest.approx(S)
    half = predict_added(costs, entries=100, mode="none", overlap=0.5)
    assert half.predicted_ns == pytest.approx(0.5 * S)
    more = predict_added(costs, entries=100, mode="none", banks=4)
    assert more.predicted_ns == pytest.approx(1.2 * S)
    busy = predict_added(costs, entries=100, mode="none", entry_work_ns=MS, base_ns=5 * S)
    assert busy.predicted_ns == pytest.approx(6.1 * S)
    assert entries_left(444, kept_ratio=218 / 444) == 218


def test_fitted_boots_are_predicted_with_another_tpm_and_other_banks() -> None:
    own = units(none=plain(10 * MS))
    # 1 s and, for each entry, eight tenths of its extend.
    boots = [boot("none", each, S + each * 8 * MS) for each in (100, 200, 400)]
    model = fit_boots(boots, units=own)
    slow = UnitCosts(name="slow", costs={"none": plain(30 * MS)})
    there = model.predict(entries=100, mode="none", units=slow)
    assert there.predicted_ns == pytest.approx(S + 100 * 0.8 * 30 * MS)
    assert there.interval == "95 % of the fit"
    assert "slow" in there.basis
    # Two banks were measured, each further one takes a millisecond.
    four = model.predict(entries=100, mode="none", banks=4)
    assert four.predicted_ns == pytest.approx(S + 100 * 0.8 * 12 * MS)
    same = model.predict(entries=100, mode="none", banks=2)
    assert same.predicted_ns == pytest.approx(model.predict(entries=100, mode="none").predicted_ns)
    both = WhatIf(entries=[100, 200], modes=["none"]).from_boots(model, others=[slow])
    assert [each.name for each in both] == [
        "100 entries, none",
        "200 entries, none",
        "100 entries, none, slow",
        "200 entries, none, slow",
    ]
    assert both[2].predicted_ns == there.predicted_ns


def test_how_well_another_tpms_extend_is_known_is_in_the_interval() -> None:
    own = units(none=plain(10 * MS))
    random = np.random.default_rng(3)
    counts = [100, 200, 400] * 4
    boots = [boot("none", n, S + n * 8 * MS + random.normal(0, 20 * MS)) for n in counts]
    model = fit_boots(boots, units=own)

    def half_of(cost: UnitCost) -> tuple[float, str]:
        other = UnitCosts(name="other", costs={"none": cost})
        found = model.predict(entries=400, mode="none", units=other)
        assert found.low_ns is not None
        assert found.high_ns is not None
        assert found.predicted_ns == pytest.approx((found.low_ns + found.high_ns) / 2)
        return (found.high_ns - found.low_ns) / 2, found.interval

    fit, only = half_of(plain(10 * MS))
    assert only == "95 % of the fit"
    # A proxy that was 24 % off is so in each of the 400 extends, of which the overlap counts.
    proxy, words = half_of(plain(10 * MS, error_ratio=0.24))
    assert proxy == pytest.approx(fit + 0.24 * 10 * MS * 400 * (model.overlap or 0))
    assert words == "95 % of the fit and largest known error"
    # A bench has a spread, which does not depend on that of the boots.
    bench, words = half_of(plain(10 * MS, sd_ns=1 * MS, n=30))
    alone = 2.0452 * 1 * MS * math.sqrt(400 + 400**2 / 30) * (model.overlap or 0)
    assert bench == pytest.approx(math.hypot(fit, alone), rel=1e-3)
    assert words == "95 %"


def test_a_prediction_far_beyond_the_boots_says_how_far() -> None:
    boots = [boot("none", n, S + n * 8 * MS) for n in (100, 200, 1200, 1200)]
    model = fit_boots(boots)
    near = render_text(build_prediction([model.predict(entries=2400, mode="none")], model=model))
    assert "that any boot had" not in near
    far = build_prediction([model.predict(entries=12_313, mode="none")], model=model)
    assert "12,313 entries are 10 times the 1,200 that any boot had" in render_text(far, width=200)


def test_another_tpm_or_banks_need_the_costs_of_the_boots_own_and_entries() -> None:
    boots = [boot("none", each, S + each * 8 * MS) for each in (100, 200, 400)]
    free = fit_boots(boots)
    with pytest.raises(UsageError, match="without the costs of a TPM"):
        free.predict(entries=1, mode="none", banks=4)
    with pytest.raises(UsageError, match="without the costs of a TPM"):
        free.predict(entries=1, mode="none", units=units(none=plain(MS)))
    fitted = fit_boots(boots, units=units(none=plain(MS)))
    with pytest.raises(UsageError, match="mode 'hmac' is not known"):
        fitted.predict(entries=1, mode="hmac", units=units(none=plain(MS)))
    with pytest.raises(UsageError, match="no boot to predict with it"):
        WhatIf(banks=4).from_boots(fitted)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"entries": -1}, "fewer than none"),
        ({"overlap": 1.5}, "not within 0 and 1"),
        ({"banks": 0}, "make no extend"),
        ({"mode": "hmac"}, "mode 'hmac' is not known"),
    ],
)
def test_a_knob_out_of_range_is_refused(wrong: dict[str, object], message: str) -> None:
    given_ = {"entries": 1, "mode": "none", **wrong}
    with pytest.raises(UsageError, match=message):
        predict_added(units(none=plain(MS)), **given_)  # type: ignore[arg-type]


def test_what_a_bank_costs_must_be_known() -> None:
    unknown = dataclasses.replace(units(none=plain(MS)), bank_ns=None)
    with pytest.raises(UsageError, match="what a PCR bank costs is not known"):
        predict_added(unknown, entries=1, mode="none", banks=4)
    assert predict_added(unknown, entries=1, mode="none", banks=2).predicted_ns == MS


def test_fewer_banks_take_their_share_of_the_whole_at_least() -> None:
    # On a loaded host a bank may seem to take longer than a whole extend of two.
    loaded = dataclasses.replace(units(none=plain(MS)), bank_ns=5 * MS, banks=4)
    assert predict_added(loaded, entries=100, mode="none", banks=1).unit_ns == MS / 4
    assert predict_added(loaded, entries=100, mode="none", banks=5).unit_ns == 6 * MS
    quiet = dataclasses.replace(loaded, bank_ns=0.1 * MS)
    fewer = predict_added(quiet, entries=100, mode="none", banks=1)
    assert fewer.unit_ns == pytest.approx(0.7 * MS)


def test_a_published_cost_has_the_error_it_was_seen_to_have() -> None:
    published = find_tpm("reference:tpm-hmac-2024").units
    for mode, measured_s in (("none", 102.8), ("hmac", 1941.71), ("lazy", 404.4)):
        found = predict_added(published, entries=12_313, mode=mode)
        assert found.interval == "largest known error"
        assert found.low_ns is not None
        assert found.high_ns is not None
        assert found.low_ns < measured_s * S <= found.high_ns * 1.001


@pytest.mark.parametrize(
    ("configuration", "mode"),
    [
        ("no HMAC", "none"),
        ("no HMAC + IDC", "none"),
        ("HMAC", "hmac"),
        ("HMAC, lazy flush", "lazy"),
        ("own kernel, tpm.disable_pcr_integrity=1", "none"),
        ("ima-tcb", "none"),
        ("saved", "saved"),
    ],
)
def test_a_configurations_name_tells_its_mode(configuration: str, mode: str) -> None:
    assert mode_of(configuration) == mode


def boots_dataset(*, label: str = "mode=hmac") -> Dataset:
    records: list[Run | Event] = []
    for number, (arm, entries) in enumerate([("tcb", 400), ("off", 1), ("tcb", 402)]):
        records.append(
            Run(
                sequence=number, block=number, task="boot", configuration=arm, run=number,
                phase="measured", wall_ns=(10 + number) * 1_000_000_000,
            )
        )  # fmt: skip
        records += [
            Event(sequence=number, layer="stage", event="kernel", value=2e9),
            Event(sequence=number, layer="stage", event="userspace", value=8e9),
            Event(
                sequence=number, layer="stage", event="initcall", value=1e9, parent="stage|kernel"
            ),
            Event(
                sequence=number, layer="ima", event="ima_entries", value=entries, unit="1",
                labels=label,
            ),
        ]  # fmt: skip
    manifest = Manifest(id="x", created="", title="boots", origin="measured")
    return from_records(records, name="boots", manifest=manifest)


def test_boots_of_a_capture_have_stages_entries_and_mode() -> None:
    found = boots_of(boots_dataset())
    assert [(b.name, b.mode, b.entries) for b in found] == [
        ("tcb #0", "hmac", 400),
        ("off", "hmac", 1),
        ("tcb #2", "hmac", 402),
    ]
    assert found[0].stages_ns == {"kernel": 2e9, "userspace": 8e9}
    assert found[2].total_ns == 12e9
    assert [b.mode for b in boots_of(boots_dataset(), modes={"off": "none"})][1] == "none"


def test_a_capture_without_boots_and_an_unknown_mode_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no boot that tells its entries.*ima_entries"):
        boots_of(load("lsmpmon-2008"))
    with pytest.raises(UsageError, match="mode 'some' is not known"):
        boots_of(boots_dataset(label="mode=some"))
