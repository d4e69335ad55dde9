"""Every check that tokens, CoRIMs and results make is in the documentation, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from excise.evidence.appraisal import appraise_psa
from excise.evidence.cbor import Tag, write_cbor
from excise.evidence.cca import verify_cca_token
from excise.evidence.checks import AppraisalResult
from excise.evidence.corim import CorimOptions, check_content, read_corim, sign_corim, verify_corim
from excise.evidence.cose import sign1
from excise.evidence.ear import make_ear, sign_ear, verify_ear
from excise.evidence.psa import verify_token
from token_builders import NONCE, cca_token, corim, private_key, public_key, store, token

PAGE = Path(__file__).resolve().parents[2] / "docs" / "attestation.md"


def _results() -> Iterator[AppraisalResult]:
    known = store()
    found = verify_token(token(), known, nonce=NONCE)
    appraised = appraise_psa(found, known)
    yield from (found, appraised.as_result())
    yield verify_token(sign1(b"\xff", private_key()), known, nonce=NONCE)
    signed = sign1(b"\xff", private_key())
    yield from verify_cca_token(cca_token(), public_key(), nonce=NONCE).results()
    broken = write_cbor(Tag(399, {44234: signed, 44241: signed}))
    yield from verify_cca_token(broken, public_key(), nonce=NONCE).results()
    document = sign_corim(corim(), private_key("v"), signer="v", not_after=4_000_000_000)
    options = CorimOptions(keys=(public_key("v"),))
    yield verify_corim(read_corim(document), options=options)
    yield AppraisalResult(subject="corim", checks=(check_content(read_corim(document)),), facts={})
    claims = make_ear([appraised], nonce=NONCE, developer="d", build="b")
    yield verify_ear(sign_ear(claims, private_key("v")), public_key("v"), nonce=NONCE)


def test_the_page_names_exactly_the_checks_that_are_made() -> None:
    prefixes = "cose|token|cca|corim|appraisal|ear"
    documented = set(re.findall(rf"`((?:{prefixes})\.[a-z_]+)`", PAGE.read_text()))
    made = {check.id for result in _results() for check in result.checks}
    assert documented - {"ear.veraison"} == made
