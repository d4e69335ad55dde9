"""What a guest's evidence says: its IMA list replayed against its PCRs, its quote checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from excise.capture.store import RAW
from excise.errors import FormatError, UsageError

if TYPE_CHECKING:
    from excise.evidence.checks import AppraisalResult, Check, Outcome
    from excise.evidence.ima.verify import ImaAppraisal
    from excise.evidence.quote import QuoteAppraisal
    from excise.lab.result import GuestResult


_LIST: Final = "binary_runtime_measurements"
_PCRS: Final = "pcrs.txt"
_CLAUSES: Final = {
    "guest.ima": "Linux, security/integrity/ima",
    "guest.quote": "TPM 2.0 Library, Part 3, TPM2_Quote",
}


def verify_ima(result: GuestResult) -> ImaAppraisal:
    """Return whether the guest's IMA list leads to its PCR 10 in every bank.

    Args:
        result: A guest that ran in TPM mode.

    Raises:
        UsageError: If the guest had no TPM or no list.
        FormatError: If the list or the PCRs cannot be read.
    """
    from excise.evidence.ima.verify import verify_list
    from excise.evidence.pcr import read_pcr_bytes

    pcrs = result.evidence.get(_PCRS)
    listed = result.evidence.get(_LIST)
    if pcrs is None or listed is None:
        missing = "PCRs" if pcrs is None else _LIST
        raise UsageError(
            f"the guest {result.configuration} brought back no {missing}",
            hint='Run it with mode = "tpm" and a preset that measures',
        )
    return verify_list(listed, pcrs=read_pcr_bytes(pcrs, source=f"{result.configuration}/{_PCRS}"))


def verify_guest_quote(result: GuestResult, *, qualifying_data: bytes) -> QuoteAppraisal:
    """Return whether the quote that the guest's TPM gave is sound and fits its PCRs.

    Args:
        result: A guest that ran with `quote_script`.
        qualifying_data: What the quote had to sign.

    Raises:
        UsageError: If there is no quote.
        FormatError: If the TPM's answers cannot be read.
    """
    from excise.lab.quote import read_quote

    return read_quote(result.evidence, qualifying_data=qualifying_data)


def verify_guests(capture: Path) -> AppraisalResult | None:
    """Return what the evidence of a capture's guests proves: a check for each list and quote.

    Args:
        capture: Folder of a capture.

    Returns:
        None where no guest brought back PCRs: in count mode there is no TPM.
    """
    from excise.evidence.checks import AppraisalResult

    raw = capture / RAW
    guests = sorted(path.name.removesuffix(f".{_PCRS}") for path in raw.glob(f"*.{_PCRS}"))
    checks = tuple(check for guest in guests for check in _guest_checks(raw, guest))
    if not checks:
        return None
    return AppraisalResult(subject="guests", checks=checks, facts={"guests": len(guests)})


def _guest_checks(raw: Path, guest: str) -> Iterator[Check]:
    listed, answer = raw / f"{guest}.{_LIST}", raw / f"{guest}.quote.response"
    if listed.is_file():
        yield _check_of("guest.ima", guest, "the list leads to PCR 10 of every bank", _ima, listed)
    if answer.is_file():
        yield _check_of("guest.quote", guest, "a quote over the PCRs, fresh", _quote, answer)


def _check_of(
    check_id: str,
    guest: str,
    expected: str,
    appraise: Callable[[Path], tuple[str, Outcome]],
    path: Path,
) -> Check:
    """Return one guest's check; evidence that cannot be read fails it, and no other."""
    from excise.evidence.checks import Check, Outcome

    try:
        got, outcome = appraise(path)
    except (FormatError, UsageError) as error:
        got, outcome = str(error), Outcome.FAILED
    return Check(
        id=check_id,
        outcome=outcome,
        expected=expected,
        got=f"{guest}: {got}",
        clause=_CLAUSES[check_id],
    )


def _ima(path: Path) -> tuple[str, Outcome]:
    from excise.evidence.ima.verify import verify_list
    from excise.evidence.pcr import read_pcr_bytes

    pcrs = path.with_name(f"{path.name.removesuffix(_LIST)}{_PCRS}")
    found = verify_list(path, pcrs=read_pcr_bytes(pcrs.read_bytes(), source=pcrs.name))
    reached = ", ".join(bank.bank for bank in found.banks if bank.rule)
    return f"{found.coverage.entries} entries, reached: {reached or 'none'}", found.verdict


def _quote(path: Path) -> tuple[str, Outcome]:
    from excise.evidence.checks import Outcome
    from excise.lab.quote import QUOTE_NONCE, read_quote

    base = path.name.removesuffix("quote.response")
    names = ("create_primary.response", "quote.response", _PCRS, QUOTE_NONCE)
    kept = {name: path.with_name(f"{base}{name}") for name in names}
    evidence = {name: file.read_bytes() for name, file in kept.items() if file.is_file()}
    if QUOTE_NONCE not in evidence:
        return "what it had to sign is not in the capture", Outcome.NOT_COVERED
    try:
        asked = bytes.fromhex(evidence[QUOTE_NONCE].decode("ascii"))
    except ValueError as error:
        raise FormatError("is not hexadecimal", source=kept[QUOTE_NONCE].name) from error
    found = read_quote(evidence, qualifying_data=asked)
    return f"PCRs {', '.join(map(str, found.pcrs.get('sha256', {})))}", found.verdict
