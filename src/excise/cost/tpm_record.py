"""The record of one TPM: what its bench found, in one small file without anything that names it.

A record holds medians and their like, the maker, model and firmware, and the kind of host. It has
no serial number, key, certificate, host name or path. What is read back is checked against the same
types, their limits, and against itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from excise.capture.manifest import Manifest
from excise.cost.series import Series, event_series_of, series_of
from excise.cost.tpm_polling import find_polling
from excise.errors import FormatError, UsageError
from excise.events.dataset import Dataset
from excise.stats import summarise

SCHEMA: Final = "excise-tpm-record-1"
EXTEND: Final = "PCR_Extend"
CLIENT: Final = "PCR_Extend, client's work"
MOST_BYTES: Final = 256 * 1024
_TRIVIAL: Final = ("GetTestResult", "GetCapability", "ReadClock", "GetRandom (32 B)", "PCR_Read")

Text = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Time = Annotated[float, Meta(ge=0, le=3.6e15)]


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which TPM it is, by kind and not by copy."""

    manufacturer: Text
    vendor_string: Text
    firmware: Text
    type: Literal["discrete", "firmware", "software", "unknown"]
    revision: Text = ""
    interface: Text = ""
    driver: Text = ""
    banks: Annotated[int, Meta(ge=1, le=16)] = 1


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the TPM is in, by kind."""

    machine: Text = ""
    cpu: Text = ""
    kernel: Text = ""
    virtualisation: Text = ""
    kernel_extend_mode: Literal["none", "lazy", "hmac"] | None = None


class Floor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The transport's floor: the command that computes least and is answered first.

    Attributes:
        command: Its name.
        median_ns: Its median: what a command costs before it computes anything.
        min_ns: Its fastest answer.
    """

    command: Text
    median_ns: Time
    min_ns: Time


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command or sequence in one mode; all times are the TPM's, seen at the transport.

    Attributes:
        mode: How it is protected: `none`, `lazy`, `saved`, `hmac`.
        n: Runs behind the figures; the first is not among them.
        sends: Commands that one run sends.
        parts_ns: Median of each command of a sequence.
        client_ns: Median processor time of the client's own work, where it had any.
    """

    name: Text
    mode: Literal["none", "lazy", "saved", "hmac"] = "none"
    n: Annotated[int, Meta(ge=1)]
    first_ns: Time | None = None
    min_ns: Time
    median_ns: Time
    mean_ns: Time
    p95_ns: Time
    max_ns: Time
    sd_ns: Time
    sends: Annotated[int, Meta(ge=1, le=100)] = 1
    parts_ns: dict[Text, Time] = {}
    client_ns: Time | None = None

    def compute_ns(self, floor: Floor) -> float:
        """Return the median less the floor of every command sent, not below zero."""
        return max(0.0, self.median_ns - self.sends * floor.median_ns)


class TpmRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `excise tpm record` writes.

    Attributes:
        date: Day of the bench, without the time.
        clock: Clock of the times, and its resolution.
        polling_step_ns: Step of the grid that a polling driver puts all times on, or None.
        polling_evidence: How that was found, in words.
        bank_ns: What one more PCR bank adds to a plain extend; 0 where more banks took no longer,
            None where there is one bank only.
        notes: What was not measured, and why.
    """

    schema: Literal["excise-tpm-record-1"] = "excise-tpm-record-1"
    tpm: Identity
    host: Host
    date: Annotated[str, Meta(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""
    excise_version: Text = ""
    clock: Text
    clock_resolution_ns: Time | None = None
    floor: Floor
    polling_step_ns: Time | None = None
    polling_evidence: Text = ""
    bank_ns: Time | None = None
    commands: Annotated[list[Command], Meta(min_length=1, max_length=200)]
    notes: Annotated[list[Text], Meta(max_length=50)] = []

    @property
    def title(self) -> str:
        """Return what the TPM is called: maker, model, firmware."""
        return " ".join(
            filter(None, [self.tpm.manufacturer, self.tpm.vendor_string, self.tpm.firmware])
        )

    def command(self, name: str, *, mode: str = "none") -> Command | None:
        """Return one command's figures, or None."""
        return next((c for c in self.commands if c.name == name and c.mode == mode), None)


def is_bench(manifest: Manifest) -> bool:
    """Return whether a capture is one of `excise tpm bench`."""
    return manifest.campaign.get("tpm") == "bench"


def record_of(dataset: Dataset) -> TpmRecord:
    """Return the record of a TPM's bench.

    Args:
        dataset: The bench's capture.

    Raises:
        UsageError: If it is no capture of a TPM's bench, or holds no trivial command.
    """
    manifest = dataset.manifest
    if not is_bench(manifest):
        raise UsageError(
            "is no capture of a TPM",
            source=dataset.name,
            hint="Make one with `excise tpm bench -o FILE`",
        )
    series = [each for each in series_of(dataset) if each.values.size]
    counted = [each for each in series if each.configuration != manifest.twin]
    parts = [each for each in event_series_of(dataset) if each.values.size]
    commands = [_command(each, parts, counted) for each in counted if each.task != CLIENT]
    floor = _floor(commands, source=dataset.name)
    polling = find_polling(
        {f"{s.task} {s.configuration}": s.values.tolist() for s in counted if s.task != CLIENT}
    )
    clock = manifest.clocks[0]
    return TpmRecord(
        tpm=_identity(manifest),
        host=_host(manifest),
        date=manifest.created[:10],
        excise_version=manifest.excise_version,
        clock=clock.name,
        clock_resolution_ns=clock.resolution_ns,
        floor=floor,
        polling_step_ns=polling.step_ns,
        polling_evidence=polling.evidence,
        bank_ns=_bank_ns(commands),
        commands=commands,
        notes=[note[:200] for note in manifest.notes],
    )


def encode_record(record: TpmRecord) -> str:
    """Return a record as JSON text, one member a line, times to the nanosecond."""
    data = msgspec.json.encode(_rounded(record))
    return msgspec.json.format(data, indent=1).decode() + "\n"


def decode_record(data: bytes, *, source: str) -> TpmRecord:
    """Return the record that JSON text holds.

    Args:
        data: The text.
        source: What it is called in errors.

    Raises:
        FormatError: If it is too long, not of the schema, or contradicts itself.
    """
    if len(data) > MOST_BYTES:
        raise FormatError(f"{len(data):,} bytes are more than a record has", source=source)
    try:
        record = msgspec.json.decode(data, type=TpmRecord)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(
            f"is no record of a TPM: {error}",
            source=source,
            hint="Records are written by `excise tpm record`",
        ) from error
    _check(record, source)
    return record


def _check(record: TpmRecord, source: str) -> None:
    seen: set[tuple[str, str]] = set()
    for command in record.commands:
        label = f"{command.name}, {command.mode}"
        if (command.name, command.mode) in seen:
            raise FormatError("is there twice", source=source, field=label)
        seen.add((command.name, command.mode))
        ordered = [command.min_ns, command.median_ns, command.p95_ns, command.max_ns]
        if ordered != sorted(ordered) or not command.min_ns <= command.mean_ns <= command.max_ns:
            raise FormatError(
                "minimum, median, p95 and maximum are not in order", source=source, field=label
            )
    if all(command.name != record.floor.command for command in record.commands):
        raise FormatError(
            f"{record.floor.command!r} is not among the commands", source=source, field="floor"
        )


def _command(series: Series, parts: Sequence[Series], all_series: Sequence[Series]) -> Command:
    found = summarise(series.values)
    own = [p for p in parts if (p.task, p.configuration) == (series.task, series.configuration)]
    client = next(
        (s for s in all_series if (s.task, s.configuration) == (CLIENT, series.configuration)), None
    )
    several = len(own) > 1
    return Command(
        name=series.task,
        mode=series.configuration,  # type: ignore[arg-type]
        n=found.n,
        first_ns=series.first,
        min_ns=found.min,
        median_ns=found.median,
        mean_ns=found.mean,
        p95_ns=found.p95,
        max_ns=found.max,
        sd_ns=found.sd,
        sends=max(1, len(own)),
        parts_ns={part.event: float(np.median(part.values)) for part in own} if several else {},
        client_ns=float(np.median(client.values))
        if client is not None and series.task == EXTEND
        else None,
    )


def _floor(commands: Sequence[Command], *, source: str) -> Floor:
    trivial = [c for c in commands if c.name in _TRIVIAL] or [c for c in commands if c.sends == 1]
    if not trivial:
        raise UsageError("has no single command that was measured", source=source)
    fastest = min(trivial, key=lambda command: command.median_ns)
    return Floor(command=fastest.name, median_ns=fastest.median_ns, min_ns=fastest.min_ns)


def _bank_ns(commands: Sequence[Command]) -> float | None:
    """Return the slope of a plain extend's median over the number of banks, not below zero."""
    points = [
        (int(command.name.removeprefix(f"{EXTEND}, ").split()[0]), command.median_ns)
        for command in commands
        if command.name.startswith(f"{EXTEND}, ") and command.name.endswith("banks")
    ]
    if len(points) < 2:
        return None
    counts, medians = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    centred = counts - counts.mean()
    return max(0.0, float(centred @ (medians - medians.mean()) / (centred @ centred)))


def _identity(manifest: Manifest) -> Identity:
    facts = {fact.name: fact.value for fact in manifest.host_facts}

    def text(name: str) -> str:
        return str(facts.get(f"tpm.{name}") or "")[:200]

    return Identity(
        manufacturer=text("manufacturer"),
        vendor_string=text("vendor_string"),
        firmware=text("firmware"),
        type=text("type"),  # type: ignore[arg-type]
        revision=text("revision"),
        interface=text("interface"),
        driver=text("driver"),
        banks=int(manifest.campaign.get("banks", 1)),
    )


def _host(manifest: Manifest) -> Host:
    facts = {fact.name: fact.value for fact in manifest.host_facts if not fact.private}
    return Host(
        machine=str(facts.get("machine") or ""),
        cpu=str(facts.get("cpu.model") or "")[:200],
        kernel=str(facts.get("kernel.release") or "")[:200],
        virtualisation=str(facts.get("virtualisation") or "")[:200],
        kernel_extend_mode=facts.get("kernel.tpm.extend_mode"),  # type: ignore[arg-type]
    )


def _rounded(record: TpmRecord) -> dict[str, object]:
    """Return the record as plain values, times rounded to a tenth of a nanosecond."""

    def plain(value: object) -> object:
        if isinstance(value, float):
            return round(value, 1)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return {key: plain(value) for key, value in msgspec.to_builtins(record).items()}
