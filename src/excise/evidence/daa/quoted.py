"""PCR values that a TPM signed as a member of a group.

Source: TCG, TPM Library Part 3, TPM2_Quote; Part 1, anonymous signing: the structure then holds
neither the signer's name nor the qualifying data, and what is signed is
H(qualifying data ‖ H(TPMS_ATTEST)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from excise.errors import FormatError
from excise.evidence.checks import Check, Outcome
from excise.evidence.daa.assurance import KeyAssurance
from excise.evidence.quote import quote_digest
from excise.evidence.tpm_structures import (
    TPM_GENERATED_VALUE,
    TPM_ST_ATTEST_QUOTE,
    Attest,
    parse_attest,
)

_CLAUSE: Final = "TPM Library Part 3, TPM2_Quote"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedState:
    """A quote, and the PCR values it is said to be over.

    Attributes:
        attest: TPMS_ATTEST.
        pcrs: Value by index by bank, each of them quoted and none left out.
    """

    attest: bytes
    pcrs: Mapping[str, Mapping[int, bytes]]

    def matches(self) -> bool:
        """Return whether exactly these values were quoted.

        Raises:
            FormatError: The structure cannot be read.
        """
        return _pcrs(parse_attest(self.attest), self.pcrs).outcome is Outcome.PASSED


def quote_checks(state: QuotedState, assurance: KeyAssurance | None) -> list[Check]:
    """Return the checks of what was quoted; that it was signed is checked with the proof.

    Raises:
        FormatError: The structure cannot be read.
    """
    attest = parse_attest(state.attest)
    return [_key(assurance), _structure(attest), _pcrs(attest, state.pcrs)]


def _outcome(good: bool) -> Outcome:
    return Outcome.PASSED if good else Outcome.FAILED


def _key(assurance: KeyAssurance | None) -> Check:
    good = assurance is not None and assurance.quoting
    return Check(
        id="daa.quote_key",
        outcome=_outcome(good),
        expected="a group that admits restricted keys in TPMs only",
        got="it does" if good else "it does not" if assurance is not None else "unknown keys",
        clause=_CLAUSE,
        detail="" if good else "An unrestricted key signs any structure its host makes up.",
    )


def _structure(attest: Attest) -> Check:
    good = (
        attest.magic == TPM_GENERATED_VALUE
        and attest.type == TPM_ST_ATTEST_QUOTE
        and not attest.trailing_bytes
    )
    return Check(
        id="daa.quote_structure",
        outcome=_outcome(good),
        expected="a quote of the TPM's own making, and nothing after it",
        got=f"{attest.type_name}, magic {attest.magic:#010x}, {attest.trailing_bytes} bytes after",
        clause=_CLAUSE,
    )


def _pcrs(attest: Attest, pcrs: Mapping[str, Mapping[int, bytes]]) -> Check:
    selection = attest.pcr_select or ()
    quoted = [(bank, index) for bank, indices in selection for index in indices]
    given = {(bank, index) for bank, held in pcrs.items() for index in held}
    expected = "exactly the values given, at least one"
    got = f"{len(quoted)} PCRs quoted, {len(given)} given"
    good = bool(quoted) and len(quoted) == len(given) and set(quoted) == given
    if good:
        try:
            good = quote_digest(selection, pcrs, algorithm="sha256") == attest.pcr_digest
            got = f"{len(quoted)} PCRs, " + ("of these values" if good else "of other values")
        except FormatError as error:  # a value of another size could pass for parts of two
            good, got = False, error.reason
    return Check(
        id="daa.quote_pcrs", outcome=_outcome(good), expected=expected, got=got, clause=_CLAUSE
    )
