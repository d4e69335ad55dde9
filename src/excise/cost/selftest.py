"""What self-tests cost: per start, per test, per algorithm, at first use; and does caching help?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from excise.cost.compared import Comparison
from excise.cost.comparison import compare_configurations
from excise.errors import UsageError
from excise.events.dataset import Dataset

LAYER: Final = "self-test"
STEP: Final = "step"
OPERATION: Final = "operation"
AGAIN: Final = "run self-tests again"
_KDF = re.compile(r"KDF|PRF")
_FAMILIES: Final = {
    "RSA_Encrypt": "RSA",
    "RSA_Decrypt": "RSA",
    "DetECDSA": "ECDSA",
    "KEM_Encap": "ML-KEM",
    "KEM_Decap": "ML-KEM",
    "KEM_Decap_Reject": "ML-KEM",
}
_TYPES: Final = {
    "Module_Integrity": "integrity",
    "Install_Integrity": "integrity",
    "KAT_Integrity": "integrity",
    "KAT_Cipher": "ciphers",
    "KAT_Digest": "digests",
    "DRBG": "DRBG",
    # libgcrypt's words
    "cipher": "ciphers",
    "digest": "digests",
    "mac": "MACs",
    "kdf": "KDFs",
    "random": "DRBG",
}


def family_of(event: str) -> str:
    """Return the algorithm family of a self-test named `TYPE DESCRIPTION`."""
    kind, _, what = event.partition(" ")
    if kind in _TYPES:
        return _TYPES[kind]
    what = what.partition(" (")[0]  # libgcrypt puts the algorithm's number behind it
    return "KDFs" if _KDF.search(what) else _FAMILIES.get(what, what or kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCost:
    """One start under one configuration; times are medians over the counted runs, in ns.

    Attributes:
        n: Counted runs.
        tests: Self-tests in one start.
        tests_ns: Time in self-tests.
        steps_ns: Time in the steps before the one that runs the tests.
        remainder_ns: Time in neither.
        remainder_share: Remainder over the start, the largest run's not counted more than others.
        before_ns: Part of the remainder before the first test: dlopen and the module's entry.
        between_ns: Part of it between tests.
        after_ns: Part of it after the last test.
    """

    task: str
    configuration: str
    n: int
    total_ns: float
    tests: int
    tests_ns: float
    steps_ns: float
    remainder_ns: float
    remainder_share: float
    before_ns: float
    between_ns: float
    after_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCost:
    """One self-test under one configuration; times are medians of the sum per start, in ns.

    Attributes:
        count: How often it runs in one start.
        share: Of the start.
        again_ns: What it takes when all tests are run a second time in the same process; None
            where they were not.
        first_use_ns: What the first run takes beyond that: tables, seeding, page faults.
    """

    task: str
    configuration: str
    event: str
    family: str
    count: int
    load_ns: float
    share: float
    again_ns: float | None

    @property
    def first_use_ns(self) -> float | None:
        """Return what the first run takes beyond a repeated one."""
        return None if self.again_ns is None else self.load_ns - self.again_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCost:
    """All self-tests of one algorithm family; the share is the median over starts."""

    task: str
    configuration: str
    family: str
    tests: int
    load_ns: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCost:
    """One operation after the start: its first and its second use, medians in ns.

    Attributes:
        tests: Self-tests that ran within the first use: deferred or conditional ones.
        again: Self-tests that ran within the second use: conditional ones run every time.
    """

    configuration: str
    operation: str
    first_ns: float
    second_ns: float
    tests: tuple[str, ...]
    again: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    """Does the cached status help?

    Attributes:
        helps: Whether fewer tests run; None where it cannot be told.
        tests: Self-tests of a start with them run on load.
        cached_tests: Self-tests of a start with cached status.
        ratio: Start with cached status over one without.
    """

    task: str
    helps: bool | None
    tests: int
    cached_tests: int
    ratio: Comparison | None


def _counted(dataset: Dataset) -> pl.DataFrame:
    return dataset.runs.filter(
        (pl.col("phase") == "measured") & pl.col("ok").fill_null(True)
    ).select(
        "sequence",
        "start_ns",
        "wall_ns",
        pl.col("task").cast(pl.String),
        pl.col("configuration").cast(pl.String),
    )


def _tests(dataset: Dataset) -> pl.DataFrame:
    """Return self-tests of counted runs: one row a test, with its run."""
    return (
        dataset.events.filter(pl.col("layer") == LAYER)
        .with_columns(pl.col("event").cast(pl.String))
        .join(_counted(dataset), on="sequence", suffix="_run")
    )


def start_costs(dataset: Dataset) -> list[StartCost]:
    """Return what each start costs under each configuration, in the order of the campaign."""
    events = dataset.events.with_columns(pl.col("layer").cast(pl.String))
    own = events.group_by("sequence").agg(
        tests=(pl.col("layer") == LAYER).sum(),
        tests_ns=pl.col("value").filter(pl.col("layer") == LAYER).sum(),
        steps_ns=pl.col("value").filter(pl.col("layer") == STEP).sum(),
        first_ns=pl.col("start_ns").filter(pl.col("layer") == LAYER).min(),
        last_ns=(pl.col("start_ns") + pl.col("value")).filter(pl.col("layer") == LAYER).max(),
    )
    runs = (
        _counted(dataset)
        .filter(~pl.col("task").str.contains(r" use, |^" + AGAIN))
        .join(own, on="sequence", how="left")
        .with_columns(pl.col("tests", "tests_ns", "steps_ns").fill_null(0))
        .with_columns(
            remainder_ns=pl.col("wall_ns") - pl.col("tests_ns") - pl.col("steps_ns"),
            before_ns=pl.col("first_ns") - pl.col("start_ns") - pl.col("steps_ns"),
            after_ns=pl.col("start_ns") + pl.col("wall_ns") - pl.col("last_ns"),
        )
        .with_columns(
            between_ns=pl.col("remainder_ns") - pl.col("before_ns") - pl.col("after_ns"),
            share=pl.col("remainder_ns") / pl.col("wall_ns"),
        )
        .with_columns(pl.col("before_ns", "between_ns", "after_ns").fill_null(0))
    )
    names = ["total_ns", "tests_ns", "steps_ns", "remainder_ns", "before_ns", "between_ns"]
    found = runs.rename({"wall_ns": "total_ns"}).group_by("task", "configuration")
    rows = found.agg(
        n=pl.len(),
        tests=pl.col("tests").median(),
        remainder_share=pl.col("share").median(),
        **{name: pl.col(name).cast(pl.Float64).median() for name in [*names, "after_ns"]},
    )
    by_key = {(row["task"], row["configuration"]): row for row in rows.iter_rows(named=True)}
    return [
        StartCost(**{**by_key[key], "tests": int(by_key[key]["tests"])})
        for key in _keys(dataset)
        if key in by_key
    ]


def _keys(dataset: Dataset) -> Iterator[tuple[str, str]]:
    for task in dataset.tasks:
        for configuration in dataset.configurations:
            yield task, configuration


def test_costs(dataset: Dataset) -> list[TestCost]:
    """Return what each self-test costs in a start, the dearest first, and when run again."""
    per_run = (
        _tests(dataset)
        .filter(pl.col("parent").is_null())
        .group_by("sequence", "task", "configuration", "event", "wall_ns")
        .agg(count=pl.len(), value=pl.col("value").sum())
        .with_columns(share=pl.col("value") / pl.col("wall_ns"))
        .group_by("task", "configuration", "event")
        .agg(
            count=pl.col("count").median(),
            load_ns=pl.col("value").median(),
            share=pl.col("share").median(),
        )
    )
    repeats = {
        (row["task"].rpartition(", ")[2], row["configuration"], row["event"]): row["load_ns"]
        for row in per_run.iter_rows(named=True)
        if row["task"].startswith(AGAIN)
    }
    rows = per_run.filter(~pl.col("task").str.starts_with(AGAIN)).sort("load_ns", descending=True)
    return [
        TestCost(
            task=row["task"],
            configuration=row["configuration"],
            event=row["event"],
            family=family_of(row["event"]),
            count=int(row["count"]),
            load_ns=row["load_ns"],
            share=row["share"],
            again_ns=repeats.get(
                (row["task"].rpartition(", ")[2], row["configuration"], row["event"])
            )
            if row["task"].startswith("load provider")
            else None,
        )
        for row in rows.iter_rows(named=True)
    ]


def family_costs(dataset: Dataset) -> list[FamilyCost]:
    """Return the share of each algorithm family in a start, the largest first."""
    tests = _tests(dataset).filter(
        pl.col("parent").is_null() & ~pl.col("task").str.starts_with(AGAIN)
    )
    families = {event: family_of(event) for event in tests.get_column("event").unique().to_list()}
    if not families:
        return []
    rows = (
        tests.with_columns(family=pl.col("event").replace_strict(families))
        .group_by("sequence", "task", "configuration", "family", "wall_ns")
        .agg(tests=pl.len(), value=pl.col("value").sum())
        .with_columns(share=pl.col("value") / pl.col("wall_ns"))
        .group_by("task", "configuration", "family")
        .agg(
            tests=pl.col("tests").median(),
            load_ns=pl.col("value").median(),
            share=pl.col("share").median(),
        )
        .sort("share", descending=True)
    )
    return [FamilyCost(**{**row, "tests": int(row["tests"])}) for row in rows.iter_rows(named=True)]


def use_costs(dataset: Dataset) -> list[UseCost]:
    """Return what each operation takes at its first and its second use after a start."""
    runs = _counted(dataset)
    operations = (
        dataset.events.filter(pl.col("layer") == OPERATION)
        .with_columns(pl.col("event").cast(pl.String))
        .join(runs, on="sequence", suffix="_run")
        .with_columns(first=pl.col("task").str.starts_with("first use"))
    )
    rows = operations.group_by("configuration", "event", "first", maintain_order=True).agg(
        pl.col("value").median()
    )
    times = {
        (row["configuration"], row["event"], row["first"]): row["value"]
        for row in rows.iter_rows(named=True)
    }
    tests = _tests(dataset).filter(pl.col("parent").is_not_null())
    within: dict[tuple[str, str, bool], list[str]] = {}
    for row in tests.unique(["configuration", "task", "parent", "event"]).iter_rows(named=True):
        operation = str(row["parent"]).partition("|")[2]
        key = (row["configuration"], operation, row["task"].startswith("first use"))
        within.setdefault(key, []).append(row["event"])
    return [
        UseCost(
            configuration=configuration,
            operation=operation,
            first_ns=value,
            second_ns=times[configuration, operation, False],
            tests=tuple(sorted(within.get((configuration, operation, True), []))),
            again=tuple(sorted(within.get((configuration, operation, False), []))),
        )
        for (configuration, operation, first), value in times.items()
        if first and (configuration, operation, False) in times
    ]


def cached_answers(dataset: Dataset, *, on: str, cached: str) -> list[CachedAnswer]:
    """Return, for each start that has both, whether a cached status saves its self-tests.

    Args:
        dataset: Starts.
        on: Configuration with self-tests run on load.
        cached: Configuration with the status of an earlier run cached.
    """
    starts = {(each.task, each.configuration): each for each in start_costs(dataset)}
    try:
        rows = compare_configurations(dataset, baseline=on).rows
    except UsageError:
        rows = ()
    answers = []
    for task in dataset.tasks:
        one, two = starts.get((task, on)), starts.get((task, cached))
        if one is None or two is None:
            continue
        ratio = next(
            (r for r in rows if r.task == task and r.configuration == cached and not r.event), None
        )
        answers.append(
            CachedAnswer(
                task=task,
                helps=two.tests < one.tests if one.tests else None,
                tests=one.tests,
                cached_tests=two.tests,
                ratio=ratio,
            )
        )
    return answers
