"""The `boot_aggregate` entry, recomputed from the PCRs of the boot.

IMA's first entry holds a hash over the boot's PCRs: 0 to 7 of the SHA-1 bank, or 0 to 9 of another
bank (Linux, `ima_crypto.c`, `ima_calc_boot_aggregate_tfm`). Kernels before 5.8 always used SHA-1;
the first 5.8 kernels left out PCRs 8 and 9. Without a TPM when IMA starts, the digest is zero, 20
bytes long or as long as the algorithm's, whatever algorithm the entry names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from excise import _core
from excise.evidence.checks import Check, Outcome
from excise.evidence.ima.replay import REPLAYED_BANKS, BootAggregate

CLAUSE: Final = "Linux security/integrity/ima/ima_crypto.c, ima_calc_boot_aggregate_tfm"
CHECK_ID: Final = "ima.boot_aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to compute the aggregate: the bank, its PCRs 0 to `last_pcr`, and the digest."""

    bank: str
    last_pcr: int
    digest: bytes


def bank_of_entry(entry: BootAggregate) -> str:
    """Return the bank that an entry's algorithm names; the old template's is SHA-1."""
    if not entry.algorithm:
        return "sha1"
    return "sm3_256" if entry.algorithm in ("sm3", "sm3-256") else entry.algorithm


def candidates(bank: str, values: Mapping[int, bytes]) -> tuple[Candidate, ...]:
    """Return the aggregates that a bank's PCRs give; none when a PCR of them is missing.

    Args:
        bank: The bank; its hash is used.
        values: PCR values by index.
    """
    if bank not in REPLAYED_BANKS:
        return ()
    ranges = (7,) if bank == "sha1" else (9, 7)
    found = []
    for last_pcr in ranges:
        if all(index in values for index in range(last_pcr + 1)):
            message = b"".join(values[index] for index in range(last_pcr + 1))
            digest = _core.ima_digest(bank, message)
            found.append(Candidate(bank=bank, last_pcr=last_pcr, digest=digest))
    return tuple(found)


def check(
    entries: tuple[BootAggregate, ...],
    pcrs: Mapping[str, Mapping[int, bytes]],
    *,
    resumed: bool,
) -> Check:
    """Check every boot_aggregate entry of a list against the PCRs of the boot.

    Args:
        entries: The entries found; one more follows each kexec.
        pcrs: PCR values by bank and index.
        resumed: Whether the entries are only those after a checkpoint.

    Returns:
        One check: FAILED if an entry differs, PASSED if all agree, NOT_COVERED otherwise.
    """
    if not entries:
        where = "There is none among the new entries" if resumed else "The list has none"
        return _check(Outcome.NOT_COVERED, detail=f"{where}.")
    checks = [_check_entry(entry, pcrs) for entry in entries]
    worst = next((c for c in checks if c.outcome is Outcome.FAILED), None)
    worst = worst or next((c for c in checks if c.outcome is Outcome.NOT_COVERED), None)
    return worst or checks[0]


def _check_entry(entry: BootAggregate, pcrs: Mapping[str, Mapping[int, bytes]]) -> Check:
    bank = bank_of_entry(entry)
    values = pcrs.get(bank, {})
    computed = candidates(bank, values)
    got = f"{entry.algorithm}:{entry.digest.hex()}" if entry.algorithm else entry.digest.hex()
    absent = not any(entry.digest)
    named = f"{entry.place}: " if entry.place.index else ""
    if absent and not computed:
        return _check(
            Outcome.NOT_COVERED,
            got=got,
            detail=f"{named}All zero: no TPM was there when IMA started (TPM bypass).",
        )
    if not computed:
        last = 7 if bank == "sha1" else 9
        missing = [index for index in range(last + 1) if index not in values]
        lacks = ", ".join(map(str, missing)) if values else f"0 to {last}"
        detail = f"{named}PCRs {lacks} of the {bank} bank were not given."
        if not missing:
            detail = f"{named}No bank has the hash {bank}."
        return _check(Outcome.NOT_COVERED, got=got, detail=detail)
    for candidate in computed:
        if candidate.digest == entry.digest:
            detail = f"{named}PCRs 0 to {candidate.last_pcr} of the {bank} bank give it."
            return _check(Outcome.PASSED, expected=candidate.digest.hex(), got=got, detail=detail)
    if not any(any(values[index]) for index in range(computed[0].last_pcr + 1)):
        # A platform that measures nothing has kernels hash the zeros; this value is another's.
        why = "no TPM was there when IMA started" if absent else "they cannot confirm the entry"
        detail = f"{named}The PCRs of the boot are all zero: {why}."
        expected = computed[0].digest.hex()
        return _check(Outcome.NOT_COVERED, expected=expected, got=got, detail=detail)
    why = (
        "All zero: no TPM was there when IMA started, yet PCRs were given."
        if absent
        else "The list is from another boot than the PCRs, or its first entry was changed."
    )
    return _check(
        Outcome.FAILED, expected=computed[0].digest.hex(), got=got, detail=f"{named}{why}"
    )


def _check(outcome: Outcome, *, expected: str = "", got: str = "", detail: str) -> Check:
    return Check(
        id=CHECK_ID, outcome=outcome, expected=expected, got=got, clause=CLAUSE, detail=detail
    )
