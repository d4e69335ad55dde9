"""What a quote by a member says, one thing wrong at a time; that it was signed is tested apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from excise.evidence.checks import Outcome
from excise.evidence.daa import KeyAssurance, KeyProtection, QuotedState
from excise.evidence.daa.quoted import quote_checks
from quote_builders import AttestFields, digest_over, pcr_value, pcr_values

QUOTING = KeyAssurance(protection=KeyProtection.TPM, quoting=True)
TYPE_CERTIFY, TYPE_TIME = 0x8017, 0x8019
SOUND = AttestFields()


def failed(pcrs: dict[str, dict[int, bytes]] | None = None, **changes: Any) -> list[str]:
    """Return the checks that fail of the sound quote with changes."""
    fields = replace(SOUND, **changes)
    held = pcr_values(fields.selection) if pcrs is None else pcrs
    found = quote_checks(QuotedState(attest=fields.build(), pcrs=held), QUOTING)
    return [check.id for check in found if check.outcome is Outcome.FAILED]


def test_a_sound_quote_passes_over_one_bank_and_over_two_in_their_order() -> None:
    assert failed() == []
    assert failed(selection=(("sha256", (0, 7)), ("sha1", (10,)))) == []
    assert failed(selection=(("sha1", (10,)), ("sha256", (0, 7)))) == []


@pytest.mark.parametrize(
    "changes",
    [{"magic": 0xFF544346}, {"trailing": b"\0"}, {"type": TYPE_CERTIFY}, {"type": TYPE_TIME}],
)
def test_another_structure_or_bytes_after_it_fail_the_structure(changes: dict[str, Any]) -> None:
    if "type" not in changes:
        assert failed(**changes) == ["daa.quote_structure"]
        return
    # A structure of another type that holds a quote's bytes: read as what it says it is.
    body = replace(SOUND, **changes).build()
    found = quote_checks(QuotedState(attest=body, pcrs=pcr_values(SOUND.selection)), QUOTING)
    outcomes = {check.id: check.outcome for check in found}
    assert outcomes["daa.quote_structure"] is Outcome.FAILED


def test_a_pcr_that_is_selected_twice_fails() -> None:
    twice = (("sha256", (7,)), ("sha256", (7,)))
    assert failed(selection=twice) == ["daa.quote_pcrs"]


def test_a_quote_over_no_pcr_fails() -> None:
    assert failed(selection=(), pcr_digest=digest_over((), "sha256")) == ["daa.quote_pcrs"]


def test_values_that_only_concatenate_to_the_quoted_ones_fail() -> None:
    first, second = pcr_value("sha256", 0), pcr_value("sha256", 7)
    shifted = {"sha256": {0: first + second[:1], 7: second[1:], 10: pcr_value("sha256", 10)}}
    assert failed(shifted) == ["daa.quote_pcrs"]
