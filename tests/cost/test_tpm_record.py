"""Records of TPMs, the catalogue, and the grid of a polling driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from excise.cost.predict import predict_added
from excise.cost.tpm_catalogue import (
    PROXY_TPM,
    TRACED_TPM,
    catalogue,
    find_tpm,
    of_record,
    place,
    proxy_units,
)
from excise.cost.tpm_polling import find_polling
from excise.cost.tpm_record import (
    EXTEND,
    Command,
    TpmRecord,
    decode_record,
    encode_record,
    record_of,
)
from excise.errors import FormatError, UsageError
from excise.reference import load
from excise.stats import summarise
from tpm_datasets import SECRETS, bench_dataset

MS = 1e6


@pytest.fixture(scope="module")
def record() -> TpmRecord:
    return record_of(bench_dataset())


def test_a_record_has_the_benchs_figures(record: TpmRecord) -> None:
    assert record.title == "IFX SLB9999 9.9"
    assert record.date == "2026-01-02"
    assert record.floor.command == "ReadClock"
    assert record.floor.median_ns == pytest.approx(2.04 * MS)
    hmac = record.command("PCR_Extend", mode="hmac")
    assert hmac is not None
    assert (hmac.sends, hmac.n, hmac.client_ns) == (2, 9, 100e3)
    assert hmac.parts_ns["ContextLoad"] == pytest.approx(30.6 * MS)
    assert hmac.compute_ns(record.floor) == pytest.approx((51 - 2 * 2.04) * MS)
    assert record.bank_ns == pytest.approx(1.02 * MS)
    assert all(command.mode != "none (A/A)" for command in record.commands)


def test_a_record_names_neither_host_nor_owner(record: TpmRecord) -> None:
    text = encode_record(record)
    assert len(text) < 20_000
    for secret in SECRETS:
        assert secret not in text


def test_a_record_reads_back_as_it_was_written(record: TpmRecord) -> None:
    again = decode_record(encode_record(record).encode(), source="r.json")
    assert encode_record(again) == encode_record(record)
    assert again.command("PCR_Read") is not None


def changed(record: TpmRecord, change: Any) -> bytes:
    data = json.loads(encode_record(record))
    change(data)
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("tpm"), "missing required field `tpm`"),
        (lambda d: d.update(serial="1"), "unknown field `serial`"),
        (lambda d: d.update(schema="excise-tpm-record-9"), r"Invalid enum value"),
        (lambda d: d["commands"][0].update(median_ns=-1), r"median_ns"),
        (lambda d: d["commands"][0].update(median_ns="1"), r"commands\[0\].median_ns"),
        (lambda d: d["commands"][0].update(min_ns=1e14), "not in order"),
        (lambda d: d["commands"].append(d["commands"][0]), "is there twice"),
        (lambda d: d["floor"].update(command="Nothing"), "'Nothing' is not among the commands"),
        (lambda d: d["tpm"].update(vendor_string="a\x1b[2J"), "vendor_string"),
        (lambda d: d.update(commands=[]), "length >= 1"),
        (lambda d: d.update(date="yesterday"), "date"),
    ],
)
def test_a_record_that_is_wrong_is_refused(record: TpmRecord, change: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        decode_record(changed(record, change), source="r.json")
    assert str(caught.value).startswith("r.json: ")


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"x" * 300_000])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="record"):
        decode_record(data, source="r.json")


def test_other_captures_have_no_record() -> None:
    with pytest.raises(UsageError, match=r"is no capture of a TPM.*excise tpm bench"):
        record_of(load("tpm-hmac-2024"))


def test_the_catalogue_holds_published_tpms_by_firmware() -> None:
    tpms = {tpm.name: tpm for tpm in catalogue()}
    assert len(tpms) == len(catalogue())
    assert tpms[PROXY_TPM].medians_ns["Sign ECDSA P256"] == pytest.approx(71 * MS, rel=0.01)
    assert tpms["Nuvoton 1.3.0.1"].medians_ns["Sign ECDSA P256"] == pytest.approx(
        196 * MS, rel=0.01
    )
    assert tpms["Nuvoton NPCT75x6 7.2.0.1"].medians_ns["Sign ECDSA P256"] < 21 * MS
    slow = next(tpm for name, tpm in tpms.items() if "5.61.10" in name)
    assert slow.medians_ns["GetRandom (32 B)"] == pytest.approx(188 * MS, rel=0.01)
    assert tpms[TRACED_TPM].medians_ns["PCR_Extend, hmac"] == pytest.approx(151.171 * MS)


def test_vendor_medians_follow_from_those_by_firmware() -> None:
    """Medians of two tables that were made apart, from the same data set, agree in size."""
    tpms = {tpm.name: tpm for tpm in catalogue()}
    for vendor in ("AMD fTPM", "Infineon", "Intel PTT", "Nuvoton"):
        whole = tpms[f"{vendor} (all firmware)"].medians_ns["GetRandom (32 B)"]
        own = [
            tpm.medians_ns["GetRandom (32 B)"]
            for name, tpm in tpms.items()
            if name.startswith(vendor) and "(" not in name and "GetRandom (32 B)" in tpm.medians_ns
        ]
        assert min(own) <= whole <= max(own)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("reference:tpm-hmac-2024", TRACED_TPM),
        (f"reference:tpmscan-firmware/{PROXY_TPM}", PROXY_TPM),
        ("reference:infineon 7.85.17", PROXY_TPM),
        ("reference:TPMSCAN/amd ftpm (all firmware)", "AMD fTPM (all firmware)"),
        ("reference:tpmscan-firmware/infineon slb9670 7.61", "Infineon SLB9670 7.61.10.57600"),
    ],
)
def test_a_tpm_is_found_by_any_of_its_names(name: str, found: str) -> None:
    assert find_tpm(name).name == found


def test_a_name_that_fits_several_or_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"TPMs fit 'reference:intel'.*One of .*and \d+ more"):
        find_tpm("reference:intel")
    with pytest.raises(UsageError, match=r"no TPM .*'reference:none such'.*--list"):
        find_tpm("reference:none such")


def test_a_proxy_tells_its_error_on_the_tpm_where_both_are_known() -> None:
    published = next(tpm for tpm in catalogue() if tpm.name == TRACED_TPM).units
    for mode, bound in (("none", 0.15), ("lazy", 0.18), ("hmac", 0.24)):
        proxy = next(tpm for tpm in catalogue() if tpm.name == PROXY_TPM).units.costs[mode]
        true_ns = published.costs[mode].mean_ns
        assert abs(proxy.mean_ns - true_ns) / true_ns < bound
        assert proxy.error_ratio is not None
        assert proxy.mean_ns * (1 - proxy.error_ratio) < true_ns
        assert true_ns < proxy.mean_ns * (1 + proxy.error_ratio)
    assert proxy_units("x", {"Hash (256 B)": 1.0}).costs.keys() == {"none"}


@pytest.mark.parametrize("waited", [0, 5])
def test_a_bench_on_a_loaded_host_predicts_a_boot_as_a_quiet_one(
    record: TpmRecord, waited: int
) -> None:
    values = np.random.default_rng(7).normal(1e6, 2e4, size=100)
    values[:waited] = 30e6
    found = summarise(values)
    extend = Command(
        name=EXTEND, n=found.n, min_ns=found.min, median_ns=found.median, mean_ns=found.mean,
        p95_ns=float(np.quantile(values, 0.95)), max_ns=found.max, sd_ns=found.sd,
    )  # fmt: skip
    units = of_record(msgspec.structs.replace(record, commands=[extend]), source="r").units
    cost = units.of("none")
    assert ("the host was loaded" in cost.basis) == bool(waited)
    prediction = predict_added(units, entries=10_000, mode="none")
    assert prediction.predicted_ns == pytest.approx(10.0e9, rel=0.02)
    assert prediction.low_ns is not None
    assert prediction.low_ns < 10.0e9 * values[waited:].mean() / 1e6 < prediction.high_ns


def test_a_tpm_is_placed_among_the_others(record: TpmRecord) -> None:
    own = of_record(record, source="r.json")
    placings = {each.command: each for each in place(own, catalogue())}
    extend = placings["PCR_Extend"]
    shipped = sum("PCR_Extend" in tpm.medians_ns for tpm in catalogue())
    assert extend.of == shipped + 1
    assert extend.slowest[0] == TRACED_TPM
    assert extend.rank == shipped
    assert "ReadClock" not in placings or placings["ReadClock"].of > 1
    assert place(own, []) == []


def test_every_shipped_record_is_one(tmp_path: Path) -> None:
    from importlib import resources

    folder = resources.files("excise.reference") / "tpm_records"
    files = [file for file in folder.iterdir() if file.name.endswith(".json")]
    assert files
    for file in files:
        found = decode_record(file.read_bytes(), source=file.name)
        assert encode_record(found).encode() == file.read_bytes()
        assert msgspec.json.decode(file.read_bytes())["schema"] == "excise-tpm-record-1"


def test_a_grid_of_polls_is_found_whatever_the_tpm_computes() -> None:
    random = np.random.default_rng(3)
    for tick in (1.0 * MS, 3.0 * MS, 5.0 * MS):
        times = {}
        for number in range(20):
            work = random.uniform(0.2, 14) * tick * np.ones(30) * random.normal(1, 0.02, 30)
            polled = np.ceil(work / tick) * tick + 40e3 + random.normal(0, 15e3, 30)
            polled[::10] += random.exponential(0.4 * tick, 3)  # held up elsewhere
            times[f"c{number}"] = polled.tolist()
        assert find_polling(times).step_ns == pytest.approx(tick, rel=0.01)


def test_no_grid_is_found_where_there_is_none() -> None:
    for seed in range(15):
        random = np.random.default_rng(seed)
        times = {
            f"c{number}": random.lognormal(
                np.log(10 ** random.uniform(4.5, 7.5)), random.uniform(0.01, 0.6), 30
            ).tolist()
            for number in range(25)
        }
        assert find_polling(times).step_ns is None, seed
    assert "too few times" in find_polling({}).evidence
