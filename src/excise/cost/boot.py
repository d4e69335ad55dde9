"""Boots as the stages of one table: from firmware to user space, and the shutdown before it.

Sources name stages as they see them: systemd-analyze firmware, loader, kernel, initrd, userspace; a
camera the passphrase prompt; the lab QEMU's start. `STAGES` puts them in one order, with the stage
of the published table that each belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from excise.cost.predict_boots import BOOT, ENTRIES, published_entries
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.stats import Summary, summarise

SHUTDOWN: Final = "shutdown"
UNITS: Final = "boot-units"
_STAGE: Final = "stage"
_TASKS: Final = (BOOT, "reboot")
_DECRYPT: Final = "systemd-cryptsetup@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a boot.

    Attributes:
        name: As `systemd-analyze` and the lab call it.
        group: The stage of the thesis's table that it is part of.
    """

    name: str
    group: str


STAGES: Final = (
    Stage(name="shutdown", group="shutdown"),
    Stage(name="firmware", group="boot to disk decryption"),
    Stage(name="loader", group="boot to disk decryption"),
    Stage(name="kernel", group="boot to disk decryption"),
    Stage(name="initrd", group="boot to disk decryption"),
    Stage(name="boot to disk decryption", group="boot to disk decryption"),
    Stage(name="decrypt disk", group="decrypt disk"),
    Stage(name="soft_reboot", group="boot with disk"),
    Stage(name="userspace", group="boot with disk"),
    Stage(name="boot with disk", group="boot with disk"),
)
GROUPS: Final = tuple(dict.fromkeys(stage.group for stage in STAGES))


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRow:
    """The boots of one configuration.

    Attributes:
        source: Name of the capture or reference.
        task: Its task: `boot`, or that of a published table.
        n: Boots.
        stages: Nanoseconds by stage, the shutdown among them; summaries over the boots.
        groups: Nanoseconds by stage of the thesis's table, of medians.
        total: Nanoseconds of the whole boot, without the shutdown; of the boots that are complete.
        complete_ns: Median of the boot with the median of the shutdown; None where one is unknown.
        entries: Entries of the IMA list at the end of the boot.
        commands: Commands to the TPM by name: summaries of their number over the boots.
        sent_bytes: Median of the bytes of all those commands, None where not counted.
        mode: How PCR extends were protected, where that is known.
        published: Whether the figures are somebody's table.
    """

    source: str
    task: str
    configuration: str
    n: int
    stages: Mapping[str, Summary]
    groups: Mapping[str, float]
    total: Summary | None
    complete_ns: float | None
    entries: Summary | None = None
    commands: Mapping[str, Summary] | None = None
    sent_bytes: float | None = None
    mode: str | None = None
    published: bool = False

    @property
    def incomplete(self) -> int:
        """Return how many boots have no total, since nothing tells when they were ready."""
        return 0 if self.published else self.n - (self.total.n if self.total else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootPart:
    """Something inside boots: a unit, a link of the critical chain, an initcall, a quiet time.

    Attributes:
        start_ns: Median start, from where its source counts; None where it gives none.
        duration: Over the boots that have it.
    """

    configuration: str
    layer: str
    name: str
    start_ns: float | None
    duration: Summary


def boot_rows(dataset: Dataset) -> list[BootRow]:
    """Return the boots of a dataset by configuration.

    Raises:
        UsageError: If it holds no boot with stages.
    """
    found = [*_measured(dataset), *_published(dataset)]
    if not found:
        raise UsageError(
            "holds no boot",
            source=dataset.name,
            hint="Make one with `excise lab boot`, or import systemd-analyze or dmesg",
        )
    return found


def boot_parts(dataset: Dataset) -> list[BootPart]:
    """Return what is inside the boots of a dataset, but stages and counts; the longest first."""
    runs = _runs(dataset, tasks=(BOOT, UNITS, "boot-kernel", *_TASKS))
    events = (
        dataset.events.filter(
            (pl.col("unit") == "ns") & (pl.col("layer").cast(pl.String) != _STAGE)
        )
        .with_columns(pl.col("layer", "event").cast(pl.String))
        .join(runs.select("sequence", "configuration"), on="sequence")
    )
    found = []
    keys = ["configuration", "layer", "event"]
    for key, part in events.partition_by(keys, maintain_order=True, as_dict=True).items():
        each = part.group_by("sequence", maintain_order=True).agg(
            pl.col("value").sum(), pl.col("start_ns").min()
        )
        start = each.get_column("start_ns").median()
        configuration, layer, name = map(str, key)
        found.append(
            BootPart(
                configuration=configuration,
                layer=layer,
                name=name,
                start_ns=None if start is None else float(start),  # type: ignore[arg-type]
                duration=_summary(each.get_column("value")),
            )
        )
    return sorted(found, key=lambda part: (-part.duration.median, part.layer, part.name))


def _runs(dataset: Dataset, *, tasks: Sequence[str]) -> pl.DataFrame:
    return dataset.runs.filter(
        pl.col("task").cast(pl.String).is_in(list(tasks))
        & pl.col("ok").fill_null(True)
        & (pl.col("phase").cast(pl.String) != "warmup")
    ).with_columns(pl.col("task", "configuration").cast(pl.String))


def _summary(values: pl.Series) -> Summary:
    return summarise(values.to_numpy(), assume_independent=True)


def _measured(dataset: Dataset) -> Iterator[BootRow]:
    boots = _runs(dataset, tasks=_TASKS)
    downs = _runs(dataset, tasks=(SHUTDOWN,))
    units = _runs(dataset, tasks=(UNITS,))
    events = dataset.events.with_columns(pl.col("layer", "event", "labels").cast(pl.String))
    published = published_entries(dataset)
    for (configuration,), part in boots.partition_by(
        "configuration", maintain_order=True, as_dict=True
    ).items():
        own = events.join(part.select("sequence"), on="sequence")
        if not own.filter(pl.col("layer") == _STAGE).height and part["wall_ns"].is_null().all():
            continue
        stages = _stages(own)
        down = downs.filter(pl.col("configuration") == configuration).get_column("wall_ns")
        if down.drop_nulls().len():
            stages = {"shutdown": _summary(down.drop_nulls().cast(pl.Float64)), **stages}
        decrypt = _decryption(dataset, units.filter(pl.col("configuration") == configuration))
        walls = part.get_column("wall_ns").drop_nulls()
        total = _summary(walls.cast(pl.Float64)) if walls.len() else None
        yield BootRow(
            source=dataset.name,
            task=BOOT,
            configuration=str(configuration),
            n=part.height,
            stages=stages,
            groups=_groups({name: each.median for name, each in stages.items()}, decrypt),
            total=total,
            complete_ns=_complete(total, stages),
            entries=_entries(own, published=published.get((BOOT, str(configuration)))),
            commands=_commands(own),
            sent_bytes=_sent(own, boots=part.height),
            mode=_mode(own),
        )


def _complete(total: Summary | None, stages: Mapping[str, Summary]) -> float | None:
    if total is None:
        return None
    return total.median + (stages["shutdown"].median if "shutdown" in stages else 0.0)


def _stages(events: pl.DataFrame) -> dict[str, Summary]:
    rows = events.filter((pl.col("layer") == _STAGE) & (pl.col("unit") == "ns"))
    order = {stage.name: place for place, stage in enumerate(STAGES)}
    found = {
        str(name): _summary(part.get_column("value"))
        for (name,), part in rows.partition_by("event", maintain_order=True, as_dict=True).items()
    }
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


def _groups(stages: Mapping[str, float], decrypt_ns: float | None) -> dict[str, float]:
    """Return the thesis's stages: unlocking a disk is inside the initrd, and apart there."""
    known = {stage.name: stage.group for stage in STAGES}
    found: dict[str, float] = {}
    for name, value in stages.items():
        group = known.get(name, name)
        found[group] = found.get(group, 0.0) + value
    if decrypt_ns is not None and "initrd" in stages:
        found["decrypt disk"] = decrypt_ns
        found["boot to disk decryption"] -= min(decrypt_ns, stages["initrd"])
    return found


def _decryption(dataset: Dataset, units: pl.DataFrame) -> float | None:
    """Return the median time of the units that unlock disks, None where there are none."""
    rows = (
        dataset.events.join(units.select("sequence"), on="sequence")
        .filter(pl.col("event").cast(pl.String).str.starts_with(_DECRYPT))
        .group_by("sequence")
        .agg(pl.col("value").sum())
    )
    return float(rows["value"].median()) if rows.height else None  # type: ignore[arg-type]


def _entries(events: pl.DataFrame, *, published: float | None) -> Summary | None:
    """Return the entries that the boots tell, else those of a table beside them."""
    values = events.filter(pl.col("event") == ENTRIES).get_column("value")
    if values.len():
        return _summary(values)
    return None if published is None else summarise([published], assume_independent=True)


def _commands(events: pl.DataFrame) -> dict[str, Summary] | None:
    rows = events.filter((pl.col("layer") == "tpm") & (pl.col("unit") == "1"))
    if not rows.height:
        return None
    return {
        str(name): _summary(part.get_column("value"))
        for (name,), part in rows.partition_by("event", maintain_order=True, as_dict=True).items()
    }


def _sent(events: pl.DataFrame, *, boots: int) -> float | None:
    rows = events.filter((pl.col("layer") == "tpm") & (pl.col("unit") == "B"))
    return float(rows["value"].sum()) / boots if rows.height else None


def _mode(events: pl.DataFrame) -> str | None:
    labels = events.filter(pl.col("event") == ENTRIES).get_column("labels").to_list()
    modes = {part.removeprefix("mode=") for each in labels for part in each.split(",") if part}
    return modes.pop() if len(modes) == 1 else None


def _published(dataset: Dataset) -> Iterator[BootRow]:
    """Yield rows of published tables of stages: their means, without a spread."""
    rows = dataset.aggregates.filter(
        pl.col("metric") == "duration",
        pl.col("task").is_in(
            dataset.aggregates.filter(pl.col("layer") == _STAGE)
            .get_column("task")
            .unique()
            .to_list()
        ),
    )
    keys = ["task", "configuration"]
    for (task, configuration), part in rows.partition_by(
        keys, maintain_order=True, as_dict=True
    ).items():
        stages: dict[str, Summary] = {}
        total = None
        for row in part.iter_rows(named=True):
            value = next((row[k] for k in ("median", "mean") if row[k] is not None), None)
            if value is None:
                continue
            summary = summarise([_in_ns(value, row["unit"])], assume_independent=True)
            if row["layer"] == _STAGE:
                stages[row["event"]] = summary
            elif row["layer"] == "task":
                total = summary
        down = stages["shutdown"].median if "shutdown" in stages else 0.0
        whole = None if total is None else total.median
        yield BootRow(
            source=dataset.name,
            task=str(task),
            configuration=str(configuration),
            n=int(part["count"].drop_nulls().max() or 1),  # type: ignore[arg-type]
            stages=stages,
            groups=_groups({name: each.median for name, each in stages.items()}, None),
            total=None if whole is None else summarise([whole - down], assume_independent=True),
            complete_ns=whole,
            published=True,
        )


def _in_ns(value: float, unit: str) -> float:
    return float(value) * {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
