"""Boots in captures and references: their stages, their entries, and how extends were protected.

A boot is a run of a task whose name begins with `boot`, or of the one the caller names. Its stages
are the run's child events of layer `stage`; its entries are an event, the run's own metric, or an
aggregate called `ima_entries`; its mode is an event label `mode=...`, else read from the
configuration's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from excise.cost.predict import MODES, Boot, require_mode
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.formats.trace_rows import labels_of

BOOT: Final = "boot"
STAGE: Final = "stage"
ENTRIES: Final = "ima_entries"


def boots_of(
    dataset: Dataset, *, task: str | None = None, modes: Mapping[str, str] | None = None
) -> list[Boot]:
    """Return every boot of a dataset that was measured and tells its entries, in order.

    Args:
        dataset: A capture of boots, or published ones.
        task: Only this task; by default those whose names begin with `boot`.
        modes: Mode by configuration, where names do not tell it.

    Raises:
        UsageError: If there is no such boot, or a mode is not known.
    """
    made = dataset.runs.filter(
        pl.col("ok").fill_null(True)
        & (pl.col("phase") != "warmup")
        & (
            pl.col("task").cast(pl.String) == task
            if task is not None
            else pl.col("task").cast(pl.String).str.starts_with(BOOT)
        )
    )
    # One whose end nothing tells is no boot to learn from.
    runs = made.filter(pl.col("wall_ns").is_not_null())
    # A boot is a first run in any case: firsts are left out only where there are others.
    later = runs.filter(pl.col("phase") == "measured")
    counted = later if later.height else runs
    repeated = Counter(counted.select("task", "configuration").iter_rows())
    events = _events_by_run(dataset)
    published = published_entries(dataset)
    found = []
    for row in counted.iter_rows(named=True):
        own = events.get(row["sequence"], {})
        candidates = (
            own.get(ENTRIES),
            row[ENTRIES],
            published.get((row["task"], row["configuration"])),
        )
        entries = next((each for each in candidates if each is not None), None)
        if entries is None:
            continue
        found.append(
            Boot(
                name=_name(row, several=repeated[row["task"], row["configuration"]] > 1),
                configuration=row["configuration"],
                mode=_mode(row["configuration"], own, modes or {}),
                entries=int(entries),
                total_ns=float(row["wall_ns"]),
                stages_ns={
                    name.removeprefix(f"{STAGE}|"): value
                    for name, value in own.items()
                    if name.startswith(f"{STAGE}|")
                },
            )
        )
    cut = (pl.col("task").cast(pl.String) == (task or BOOT)) & pl.col("wall_ns").is_null()
    if not found and (incomplete := made.filter(cut).height):
        raise UsageError(
            f"has no boot that tells entries and when it was ready; {incomplete} are incomplete",
            source=dataset.name,
            hint="Import systemd-analyze time or systemctl show of each boot, with --entries",
        )
    if not found:
        raise UsageError(
            "has no boot that tells its entries",
            source=dataset.name,
            hint=f"A boot needs an event or an aggregate called {ENTRIES}",
        )
    return found


def mode_of(configuration: str) -> str:
    """Return the mode that a configuration's name tells; `none` where it names no protection.

    Examples:
        >>> mode_of("HMAC, lazy flush"), mode_of("no HMAC + IDC"), mode_of("hmac")
        ('lazy', 'none', 'hmac')
    """
    text = configuration.lower()
    if text in MODES:
        return text
    if "no hmac" in text or "hmac off" in text or "disable_pcr_integrity" in text:
        return "none"
    if "lazy" in text:
        return "lazy"
    if "saved" in text:
        return "saved"
    return "hmac" if "hmac" in text else "none"


def _events_by_run(dataset: Dataset) -> dict[int, dict[str, Any]]:
    """Return, for each run, its stages in ns, its entries, and its mode where a label tells it."""
    found: dict[int, dict[str, Any]] = {}
    wanted = (pl.col("layer").cast(pl.String) == STAGE) | (
        pl.col("event").cast(pl.String) == ENTRIES
    )
    for row in dataset.events.filter(wanted).iter_rows(named=True):
        own = found.setdefault(row["sequence"], {})
        labels = labels_of(row["labels"])
        if "mode" in labels:
            own["mode"] = labels["mode"]
        if row["event"] == ENTRIES:
            own[ENTRIES] = row["value"]
        elif row["parent"] is None:
            own[f"{STAGE}|{row['event']}"] = row["value"]
    return found


def published_entries(dataset: Dataset) -> dict[tuple[str, str], float]:
    """Return the entries that a table beside published boots gives, by task and configuration."""
    found = {}
    for row in dataset.aggregates.filter(pl.col("metric") == ENTRIES).iter_rows(named=True):
        value = next((row[k] for k in ("median", "mean", "min") if row[k] is not None), None)
        if value is not None:
            found[row["task"], row["configuration"]] = float(value)
    return found


def _mode(configuration: str, own: Mapping[str, Any], modes: Mapping[str, str]) -> str:
    mode = modes.get(configuration) or own.get("mode") or mode_of(configuration)
    return require_mode(str(mode), source=f"configuration {configuration!r}")


def _name(row: Mapping[str, Any], *, several: bool) -> str:
    return f"{row['configuration']} #{row['run']}" if several else str(row["configuration"])
