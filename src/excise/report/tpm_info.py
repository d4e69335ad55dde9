"""The report of one TPM: who made it, what it has, and what this kernel does with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from excise.report.model import Block, Cell, Column, Paragraph, Report, Section, Table

if TYPE_CHECKING:
    from excise.collect.tpm.info import TpmInfo

_KNOWN = {None: "not known", True: "yes", False: "no"}
_MODES = {
    "none": "This kernel's PCR extends are not protected by a session.",
    "lazy": "This kernel protects PCR extends, in one session until user space needs the TPM.",
    "hmac": "This kernel protects PCR extends with a session for each.",
    None: "Whether this kernel protects PCR extends cannot be told from here.",
}


def build_info(info: TpmInfo) -> Report:
    """Return what is known of a TPM as a report."""
    blocks: list[Block] = [Paragraph(text=_MODES[info.kernel.mode], kind="result")]
    if info.null_name_agrees is False:
        text = (
            "The kernel's null primary is not this TPM's: it was reset, or something sits between. "
            "Protected extends of this boot prove nothing."
        )
        blocks.append(Paragraph(text=text, kind="warning"))
    if info.in_lockout:
        text = "The TPM is in lockout after failed authorisations."
        blocks.append(Paragraph(text=text, kind="warning"))
    blocks.append(_table("tpm", _tpm_rows(info), "What the TPM says of itself"))
    kernel = info.kernel
    rows = [
        ("kernel", kernel.release),
        ("sessions built in", _KNOWN[kernel.hmac]),
        ("lazy flush", _KNOWN[kernel.lazy_flush]),
        ("PCR extends protected", _KNOWN[kernel.pcr_integrity]),
        ("driver", info.driver or "none of this host"),
        ("interface", info.interface or "not told by the kernel"),
        ("null_name agrees", _KNOWN[info.null_name_agrees]),
    ]
    blocks.append(_table("kernel", rows, "What the kernel does with it"))
    blocks += [Paragraph(text=text) for text in (*kernel.reasons, *info.notes)]
    return Report(
        title=" ".join(filter(None, [info.maker or info.manufacturer, info.vendor_string])),
        sections=[Section(heading="TPM", blocks=blocks)],
        data=dataclasses.asdict(info),
    )


def _tpm_rows(info: TpmInfo) -> list[tuple[str, str]]:
    banks = [f"{bank}: {_ranges(indices)}" for bank, indices in info.banks.items()]
    has_bn = "yes" if "BN_P256" in info.curves else "no: it makes no ECDAA signature"
    return [
        ("maker", f"{info.maker or 'not known'} ({info.manufacturer})"),
        ("vendor string", info.vendor_string or "–"),
        ("model", f"type {info.vendor_type}" if info.vendor_type else "–"),
        ("firmware", info.firmware),
        ("type", info.kind),
        ("specification", f"{info.family} revision {info.revision}, {info.year} day {info.day}"),
        ("algorithms", ", ".join(info.algorithms)),
        ("curves", ", ".join(info.curves)),
        ("BN_P256", has_bn),
        ("commands", str(info.commands)),
        ("PCR banks in use", "; ".join(banks)),
        ("transient objects", f"at least {info.transient_slots}"),
        ("null primary's name", info.null_name or "none"),
    ]


def _table(name: str, rows: list[tuple[str, str]], caption: str) -> Table:
    return Table(
        name=name,
        columns=[
            Column(name="what", heading="What", align="left"),
            Column(name="value", heading="Value", align="left"),
        ],
        rows=[[Cell(text=key, value=key), Cell(text=value, value=value)] for key, value in rows],
        caption=caption,
    )


def _ranges(indices: Sequence[int]) -> str:
    """Return indices as ranges: 0-23."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)
