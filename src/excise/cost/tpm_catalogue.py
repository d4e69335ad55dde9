"""TPMs whose costs are known: published medians by maker and firmware, and records of users.

Every TPM keeps the source of its figures. Names of commands are those of `excise tpm bench`;
published tables are translated to them where they measured the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final

import numpy as np

from excise.cost.predict import UnitCost, UnitCosts
from excise.cost.tpm_record import EXTEND, Command, TpmRecord, decode_record
from excise.errors import UsageError
from excise.reference import PREFIX, published
from excise.units import counted

TRACE: Final = "tpm-hmac-2024"
TRACED_TPM: Final = "Infineon SLB9670, traced in Linux 6.11-rc2"
PROXY_TPM: Final = "Infineon SLB9670 7.85.17.51968"
"""The TPM of the trace as the proxies know it: the same model."""

HASH: Final = "Hash (256 B)"
HMAC: Final = "HMAC (256 B)"
SIGN: Final = "Sign ECDSA P256"
RANDOM: Final = "GetRandom (32 B)"
ZGEN: Final = "ECDH_ZGen P256"
ECDAA: Final = "ECDAA Commit and Sign"
_NAMES: Final = {
    "ECDSA P256 sign": SIGN,
    "RSA2048 sign": "Sign RSASSA 2048",
    "HMAC": HMAC,
    "Hash(256 B)": HASH,
    "GetRandom": RANDOM,
    "Create P256": "Create P256",
    "Create RSA2048": "Create RSA2048",
    "ECDH_ZGen": ZGEN,
    "ZGen": ZGEN,
}
_MS: Final = 1e6
_US: Final = 1e3
_DISTURBED: Final = 1.2
"""A mean this many times its median is that of a loaded host."""
_P95_SD: Final = 1.645
"""Standard deviations from the median to the 95th percentile of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueTpm:
    """One TPM whose costs are known.

    Attributes:
        name: Maker, model and firmware.
        source: `reference:NAME`, or the file of a record.
        medians_ns: Median by command; a mode other than `none` follows the name after a comma.
        units: Cost of a PCR extend by mode, measured or by proxy.
    """

    name: str
    source: str
    medians_ns: Mapping[str, float]
    units: UnitCosts

    @property
    def identifier(self) -> str:
        """Return what finds this TPM again: `reference:NAME/TPM`."""
        return f"{self.source}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Where one command of one TPM stands among the others.

    Attributes:
        command: The command, and its mode where it has one.
        value_ns: This TPM's median.
        rank: 1 where no other is faster.
        of: How many TPMs have a value, this one included.
        typical_ns: Median of the others.
        fastest: Name and median of the fastest other.
        slowest: Name and median of the slowest other.
    """

    command: str
    value_ns: float
    rank: int
    of: int
    typical_ns: float
    fastest: tuple[str, float]
    slowest: tuple[str, float]

    @property
    def ratio(self) -> float:
        """Return this TPM's median over the median of the others."""
        return self.value_ns / self.typical_ns


def label(name: str, mode: str) -> str:
    """Return how a command in a mode is called: the mode only where there is a protected one."""
    return name if mode == "none" else f"{name}, {mode}"


@cache
def catalogue() -> tuple[CatalogueTpm, ...]:
    """Return every TPM that ships with excise: traced, published, and records of users."""
    traced = _traced()
    found = [*_published("tpmscan-firmware"), *_published("tpmscan")]
    errors = _proxy_errors(traced, next(tpm for tpm in found if tpm.name == PROXY_TPM))
    scanned = [_with_proxies(tpm, errors, traced) for tpm in found]
    return (traced, *_records(), *scanned, *_ecdaa())


def of_record(record: TpmRecord, *, source: str) -> CatalogueTpm:
    """Return a record as a TPM of the catalogue."""
    medians = {label(c.name, c.mode): c.median_ns for c in record.commands}
    extends = [command for command in record.commands if command.name == EXTEND]
    costs: dict[str, UnitCost] = {command.mode: _measured(command) for command in extends}
    return CatalogueTpm(
        name=record.title,
        source=source,
        medians_ns=MappingProxyType(medians),
        units=UnitCosts(
            name=record.title, costs=costs, bank_ns=record.bank_ns, banks=record.tpm.banks
        ),
    )


def _measured(command: Command) -> UnitCost:
    """Return the unit cost of a measured extend: its mean, which sums add up to.

    A TPM's extends hardly vary: the mean of a quiet bench is at most a tenth above the median. On a
    loaded host some wait for a processor, which the boot does not. The median stands for them then,
    and the spread is that of the lower 95 %, as if it were normal.
    """
    basis = f"measured, {counted(command.n, 'extend')}"
    mean_ns, sd_ns = command.mean_ns, command.sd_ns
    if mean_ns > _DISTURBED * command.median_ns:
        times = mean_ns / command.median_ns
        basis += f"; the median, as the host was loaded: their mean is {times:.1f} times it"
        mean_ns = command.median_ns
        sd_ns = (command.p95_ns - command.median_ns) / _P95_SD
    return UnitCost(mode=command.mode, mean_ns=mean_ns, sd_ns=sd_ns, n=command.n, basis=basis)


def find_tpm(name: str) -> CatalogueTpm:
    """Return the TPM of the catalogue that a user names.

    Args:
        name: `reference:SET/TPM`, `reference:SET` where the set has one, or any part of a name that
            fits one TPM alone; case does not matter.

    Raises:
        UsageError: None fits, or several do; those that come near are in the hint.
    """
    wanted = name.removeprefix(PREFIX).lower()
    tpms = catalogue()
    for fits in (
        [tpm for tpm in tpms if tpm.identifier.removeprefix(PREFIX).lower() == wanted],
        [tpm for tpm in tpms if tpm.source.removeprefix(PREFIX).lower() == wanted],
        [tpm for tpm in tpms if tpm.name.lower() == wanted],
        [tpm for tpm in tpms if all(word in tpm.identifier.lower() for word in wanted.split())],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            names = "; ".join(tpm.identifier for tpm in fits[:8])
            more = f" and {len(fits) - 8} more" if len(fits) > 8 else ""
            raise UsageError(f"{len(fits)} TPMs fit {name!r}", hint=f"One of {names}{more}")
    raise UsageError(
        f"no TPM of the catalogue is called {name!r}", hint="`excise tpm compare --list` has all"
    )


def place(tpm: CatalogueTpm, others: Sequence[CatalogueTpm]) -> list[Placing]:
    """Return where each command of a TPM stands among other TPMs that have a value for it."""
    placings = []
    for command, value_ns in tpm.medians_ns.items():
        known = [
            (other.name, other.medians_ns[command])
            for other in others
            if command in other.medians_ns and other is not tpm
        ]
        if not known:
            continue
        values = [held for _, held in known]
        placings.append(
            Placing(
                command=command,
                value_ns=value_ns,
                rank=1 + sum(held < value_ns for held in values),
                of=len(known) + 1,
                typical_ns=float(np.median(values)),
                fastest=min(known, key=lambda pair: pair[1]),
                slowest=max(known, key=lambda pair: pair[1]),
            )
        )
    return placings


def proxy_units(name: str, medians_ns: Mapping[str, float]) -> UnitCosts:
    """Return what an extend may cost on a TPM of which only other commands are known.

    A plain extend is like a hash; a protected one like an HMAC and a hash, which is also what
    loading a context takes; the start of a salted session is like one multiplication on the curve,
    as in a signature. What that is off by on the TPM where both are known is `error_ratio`.
    """
    known = medians_ns
    point_ns = known.get(SIGN, known.get(ZGEN))
    costs: dict[str, UnitCost] = {}
    if HASH in known:
        costs["none"] = UnitCost(mode="none", mean_ns=known[HASH], basis="proxy: Hash")
    if HASH in known and HMAC in known:
        lazy_ns = known[HASH] + known[HMAC]
        costs["lazy"] = UnitCost(mode="lazy", mean_ns=lazy_ns, basis="proxy: HMAC + Hash")
        if point_ns is not None and RANDOM in known:
            costs["hmac"] = UnitCost(
                mode="hmac",
                mean_ns=2 * lazy_ns + point_ns + known[RANDOM],
                basis="proxy: 2 (HMAC + Hash) + ECDSA signature + GetRandom",
            )
    return UnitCosts(name=name, costs=costs)


def _traced() -> CatalogueTpm:
    """Return the TPM of the published traces of tpm2_pcr_extend."""
    totals: dict[str, float] = {}
    parts: dict[str, float] = {}
    for trace in published(TRACE).trace:
        if trace.task != "tpm2_pcr_extend":
            continue
        mode = "none" if trace.configuration == "no HMAC" else "hmac"
        totals[mode] = trace.total * _US
        if mode == "hmac":
            parts = {child.event: child.value * _US for child in trace.children}
    lazy_ns = sum(parts[event] for event in ("append", "fill", "transmit", "check"))
    saved_ns = parts["ContextLoad"] + lazy_ns
    basis = {
        "none": "published trace",
        "hmac": "published trace",
        "lazy": "published trace, without the start of a session",
        "saved": "published trace, ContextLoad and the extend; without ContextSave",
    }
    values = {"none": totals["none"], "lazy": lazy_ns, "saved": saved_ns, "hmac": totals["hmac"]}
    errors = _trace_errors(values)
    costs: dict[str, UnitCost] = {
        mode: UnitCost(
            mode=mode,
            mean_ns=value,
            n=1,
            error_ratio=errors.get(mode, max(errors.values())),
            basis=basis[mode],
        )
        for mode, value in values.items()
    }
    medians = {label(EXTEND, mode): value for mode, value in values.items()}
    return CatalogueTpm(
        name=TRACED_TPM,
        source=f"{PREFIX}{TRACE}",
        medians_ns=MappingProxyType(medians),
        units=UnitCosts(name=TRACED_TPM, costs=costs),
    )


def _trace_errors(values_ns: Mapping[str, float]) -> dict[str, float]:
    """Return what one traced extend is off by, against the mean of an entry of the long runs."""
    modes = {"no HMAC": "none", "HMAC": "hmac", "HMAC, lazy flush": "lazy"}
    errors = {}
    for table in published(TRACE).table:
        if table.metric != "duration_per_entry":
            continue
        for configuration, value in zip(table.configurations, table.row[0].values, strict=True):
            mode = modes[configuration]
            if value != "n/a":
                errors[mode] = abs(value * _MS - values_ns[mode]) / values_ns[mode]
    return errors


def _records() -> list[CatalogueTpm]:
    """Return the records that ship with excise."""
    folder = resources.files("excise.reference") / "tpm_records"
    found = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".json"):
            name = file.name.removesuffix(".json")
            record = decode_record(file.read_bytes(), source=file.name)
            found.append(of_record(record, source=f"{PREFIX}tpm-records/{name}"))
    return found


def _published(name: str) -> list[CatalogueTpm]:
    """Return the TPMs of a table with one column a TPM, in milliseconds."""
    medians: dict[str, dict[str, float]] = {}
    for table in published(name).table:
        for row in table.row:
            command = _NAMES.get(row.task)
            for tpm, value in zip(table.configurations, row.values, strict=True):
                if command is not None and value != "n/a":
                    medians.setdefault(tpm, {})[command] = value * _MS
    return [
        CatalogueTpm(
            name=tpm if name != "tpmscan" else f"{tpm} (all firmware)",
            source=f"{PREFIX}{name}",
            medians_ns=MappingProxyType(held),
            units=proxy_units(tpm, held),
        )
        for tpm, held in medians.items()
    ]


def _ecdaa() -> list[CatalogueTpm]:
    """Return the TPMs of which an ECDAA signature is known: Commit and Sign together."""
    sums: dict[str, float] = {}
    for table in published("tpmscan-ecdaa").table:
        for row in table.row:
            for tpm, value in zip(table.configurations, row.values, strict=True):
                if value != "n/a":
                    sums[tpm] = sums.get(tpm, 0.0) + value * _MS
    return [
        CatalogueTpm(
            name=f"{tpm} (ECDAA)",
            source=f"{PREFIX}tpmscan-ecdaa",
            medians_ns=MappingProxyType({ECDAA: value}),
            units=UnitCosts(name=tpm, costs={}),
        )
        for tpm, value in sums.items()
    ]


def _proxy_errors(traced: CatalogueTpm, proxied: CatalogueTpm) -> dict[str, float]:
    """Return the relative error of each proxy on the TPM where both are known."""
    return {
        mode: (cost.mean_ns - traced.units.costs[mode].mean_ns) / traced.units.costs[mode].mean_ns
        for mode, cost in proxied.units.costs.items()
        if mode in traced.units.costs
    }


def _with_proxies(
    tpm: CatalogueTpm, errors: Mapping[str, float], traced: CatalogueTpm
) -> CatalogueTpm:
    """Return a TPM whose proxies tell what they are off by: the trace's own error comes on top."""
    costs: dict[str, UnitCost] = {}
    for mode, cost in tpm.units.costs.items():
        if mode not in errors:
            continue
        own = abs(errors[mode]) / (1.0 + min(errors[mode], 0.0))
        of_trace = traced.units.costs[mode].error_ratio or 0.0
        costs[mode] = replace(
            cost,
            error_ratio=(1.0 + own) * (1.0 + of_trace) - 1.0,
            basis=f"{cost.basis} ({errors[mode]:+.0%} where both are known)",
        )
    notes = ("By proxy: no extend of this TPM was measured.",)
    return replace(tpm, units=replace(tpm.units, costs=costs, notes=notes))
