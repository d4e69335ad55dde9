"""Captures of self-tests of two versions: tasks that name the version, put side by side.

`excise selftest bench` names the version in each task, as one capture may hold several. Of two
captures the versions are the question: a task is then the same one without its version, and what
differs of the libraries is told and no reason to refuse the comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import polars as pl

from excise.capture.manifest import Fact, Manifest
from excise.events.dataset import Dataset

_LIBRARY: Final = "library."
_VERSION: Final = ".version"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Two datasets whose tasks have one name where they are of the same thing.

    Attributes:
        differences: One line for each fact of the libraries that differs.
    """

    first: Dataset
    second: Dataset
    differences: tuple[str, ...] = ()


def side_by_side(first: Dataset, second: Dataset) -> SideBySide:
    """Return two datasets as they are, or, of self-tests, with tasks that name no version."""
    if not (_is_of_self_tests(first) and _is_of_self_tests(second)):
        return SideBySide(first=first, second=second)
    ours, theirs = _without_version(first), _without_version(second)
    shared = {*ours.values()} & {*theirs.values()}
    differing = _differing(first.manifest, second.manifest)
    lines = [
        f"{name.removeprefix(_LIBRARY)}: {_shown(first.manifest, name)} against "
        f"{_shown(second.manifest, name)}"
        for name in differing
    ]
    return SideBySide(
        first=_named(first, ours, shared, differing),
        second=_named(second, theirs, shared, differing),
        differences=tuple(lines),
    )


def _is_of_self_tests(dataset: Dataset) -> bool:
    return dataset.manifest.campaign.get("selftest") == "bench"


def _without_version(dataset: Dataset) -> dict[str, str]:
    """Return the tasks' names without the version they end in, as far as they stay apart."""
    versions = {
        str(fact.value)
        for fact in dataset.manifest.host_facts
        if fact.name.startswith(_LIBRARY) and fact.name.endswith(_VERSION)
    }
    found = {task: _stem(task, versions) for task in dataset.tasks}
    number = Counter(found.values())
    return {task: stem for task, stem in found.items() if number[stem] == 1}


def _stem(task: str, versions: Iterable[str]) -> str:
    ends = [version for version in versions if task.endswith(f" {version}")]
    return task.removesuffix(max(ends, key=len)).rstrip(" ,") if ends else task


def _differing(first: Manifest, second: Manifest) -> list[str]:
    ours, theirs = _library_facts(first), _library_facts(second)
    return sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))


def _library_facts(manifest: Manifest) -> dict[str, list[Fact]]:
    found: dict[str, list[Fact]] = {}
    for fact in manifest.host_facts:
        if fact.name.startswith(_LIBRARY):
            found.setdefault(fact.name, []).append(fact)
    return found


def _shown(manifest: Manifest, name: str) -> str:
    values = [str(fact.value)[:16] for fact in _library_facts(manifest).get(name, [])]
    return " and ".join(values) or "not recorded"


def _named(
    dataset: Dataset, names: dict[str, str], shared: set[str], differing: Iterable[str]
) -> Dataset:
    """Return a dataset with the tasks' shared names, its libraries no longer a condition."""
    changed = {task: stem for task, stem in names.items() if stem in shared and stem != task}
    set_aside = {*differing}
    manifest = dataset.manifest
    facts = [
        msgspec.structs.replace(fact, must_agree=False) if fact.name in set_aside else fact
        for fact in manifest.host_facts
    ]
    planned = [
        {**task, "name": changed.get(task["name"], task["name"])}
        for task in manifest.campaign.get("tasks", ())
    ]
    return replace(
        dataset,
        manifest=msgspec.structs.replace(
            manifest, host_facts=facts, campaign={**manifest.campaign, "tasks": planned}
        ),
        runs=_renamed(dataset.runs, changed),
        aggregates=_renamed(dataset.aggregates, changed),
    )


def _renamed(table: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    kind = table.schema["task"]
    task = pl.col("task").cast(pl.String).replace(names).cast(kind)
    return table.with_columns(task.alias("task"))
