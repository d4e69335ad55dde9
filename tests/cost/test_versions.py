"""Self-tests of two versions of a library, each in a capture: what the new one costs."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.campaign.selftest_bench import run_bench
from excise.campaign.selftest_subjects import Part, Subject
from excise.capture.journal import Event
from excise.capture.manifest import Fact
from excise.collect.selftest.openssl import OFF, ON
from in_process import Program

CACHED = "FIPS, KATs at install"
US = 1000


def subject(version: str, library: str = "openssl", **costs_us: int) -> Subject:
    """Return a provider whose loads take so many microseconds, by arm, give or take a few."""
    jitter = itertools.cycle((0, 3, 1, 4, 2))
    arms = {"off": OFF, "on": ON, "cached": CACHED}
    task = f"load provider, {version}" if library == "openssl" else f"start {library}, {version}"

    def load(cost_us: int, arm: str) -> Callable[[], list[Part]]:
        def measure() -> list[Part]:
            wall_ns = (cost_us + next(jitter)) * US
            test = Event(sequence=0, layer="self-test", event="HMAC", start_ns=1, value=wall_ns / 2)
            events = () if arm == OFF else (test,)
            parts = [Part(task=task, wall_ns=wall_ns, start_ns=0, events=events, ok=True)]
            if arm == ON and library == "openssl":
                again = f"run self-tests again, {version}"
                part = Part(task=again, wall_ns=wall_ns, start_ns=0, events=events, ok=True)
                parts.append(part)
            return parts

        return measure

    return Subject(
        name=task,
        library=library,
        version=version,
        method="a callback",
        measure={arms[arm]: load(cost, arms[arm]) for arm, cost in costs_us.items()},
        facts=[
            Fact(name=f"library.{library}.version", value=version, must_agree=True),
            Fact(name=f"library.{library}.fips.sha256", value=f"{version}-digest", must_agree=True),
        ],
    )


def bench(path: Path, *subjects: Subject) -> Path:
    return run_bench(subjects, path, blocks=20)


@pytest.mark.parametrize(("on_us", "code"), [(10_000, 0), (15_000, 1)])
def test_the_gate_compares_two_versions_and_says_which(
    tmp_path: Path, excise: Program, on_us: int, code: int
) -> None:
    old = bench(tmp_path / "old", subject("1.0", off=1000, on=10_000))
    new = bench(tmp_path / "new", subject("1.1", off=1000, on=on_us))
    done = excise("gate", new, "--baseline", old, "--max-regression", "5%")
    assert done.returncode == code
    assert "openssl.version: 1.0 against 1.1" in done.stdout
    assert "not measured" not in done.stdout
    for task in ("load provider", "run self-tests again"):
        (line,) = (each for each in done.stdout.splitlines() if f"{task}  " in each and ON in each)
        assert line.startswith("FAIL" if code else "ok")
        assert ("+50.0 %" in line) == bool(code)
    answer = json.loads(excise("gate", new, "--baseline", old, "--json").stdout)
    assert answer["passed"] == (not code)
    assert "openssl.version: 1.0 against 1.1" in answer["differences"]


def test_what_one_version_lacks_fails_and_what_it_adds_is_named(
    tmp_path: Path, excise: Program
) -> None:
    first = subject("1.0", off=1000, on=10_000, cached=2000)
    gone = subject("3.7", "gnutls", off=500, on=600)
    second = subject("1.1", off=1000, on=10_000)
    added = subject("1.9", "libgcrypt", off=300, on=400)
    old, new = bench(tmp_path / "old", first, gone), bench(tmp_path / "new", second, added)
    done = excise("gate", new, "--baseline", old)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    for text in (
        f"load provider under {CACHED}: not measured",
        f"start gnutls, 3.7 under {OFF}: not measured",
        f"start gnutls, 3.7 under {ON}: not measured",
    ):
        assert f"FAIL  {text}" in lines
    for arm in (OFF, ON):
        assert any(
            line.startswith("-") and f"start libgcrypt, 1.9 under {arm}: not in the" in line
            for line in lines
        )
    assert any("gnutls.version: 3.7 against not recorded" in line for line in lines)


def test_other_conditions_than_the_library_still_refuse(tmp_path: Path, excise: Program) -> None:
    old = bench(tmp_path / "old", subject("1.0", off=1000, on=10_000))
    new = bench(tmp_path / "new", subject("1.1", off=1000, on=10_000))
    manifest = new / "manifest.json"
    facts = json.loads(manifest.read_text())
    for fact in facts["host_facts"]:
        if fact["name"] == "kernel.release":
            fact["value"] = "9.9"
    manifest.write_text(json.dumps(facts))
    done = excise("gate", new, "--baseline", old)
    assert done.returncode == 1
    assert "kernel.release" in done.stderr
    assert "openssl" not in done.stderr
    forced = excise("gate", new, "--baseline", old, "--max-regression", "5%", "--force")
    assert forced.returncode == 0


def test_two_versions_in_one_capture_stay_apart(tmp_path: Path, excise: Program) -> None:
    """Nothing says which of them the other capture's version is to stand beside."""
    pair = [subject(version, off=1000, on=10_000) for version in ("1.0", "2.0")]
    both = bench(tmp_path / "both", *pair)
    new = bench(tmp_path / "new", subject("1.0", off=1000, on=10_000))
    done = excise("gate", new, "--baseline", both)
    assert "ok    load provider, 1.0" in done.stdout
    assert f"FAIL  load provider, 2.0 under {ON}: not measured" in done.stdout


def test_compare_sets_two_versions_side_by_side(tmp_path: Path, excise: Program) -> None:
    old = bench(tmp_path / "old", subject("1.0", off=1000, on=10_000))
    renamed = dataclasses.replace(subject("1.1", off=1000, on=20_000), notes=["a note"])
    new = bench(tmp_path / "new", renamed)
    done = excise("compare", old, new, "--json")
    assert done.returncode == 0, done.stderr
    assert "openssl.version: 1.0 against 1.1" in done.stdout
    (load,) = (
        line
        for line in excise("compare", old, new, "--brief").stdout.splitlines()
        if "provider  " in line and ON in line
    )
    assert "load provider, 1" not in load
