"""Quotes that a TPM signs as a member of a group, and quotes that a host makes up."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from daa_group import BASENAME, MESSAGE, NONCE, failed, got
from excise.attest.daa.admission import check_member_area
from excise.attest.daa.issuer import IssuerSecretKey
from excise.attest.daa.keys import prove_member_key, randomise, sign, signature_of
from excise.attest.daa.tpm import TpmKey, ecdaa_answer, ecdaa_scheme, open_key
from excise.attest.daa.tpm_setup import TpmKeyPlace, create_key
from excise.collect.tpm import patiently
from excise.errors import Refused, UsageError
from excise.evidence.daa import (
    Credential,
    DaaVerifier,
    KeyAssurance,
    KeyProtection,
    QuotedState,
    schnorr,
)
from excise.evidence.daa.schnorr import quote_data
from excise.evidence.tpm_structures import parse_attest
from software_tpm import SoftwareTpm, require

require("tpm2_pytss")

QUOTING = KeyAssurance(protection=KeyProtection.TPM, quoting=True)
SELECTION = {"sha256": (0, 7, 10)}
SECRET = IssuerSecretKey.generate()
VERIFIER = DaaVerifier(SECRET.public_key(), assurance=QUOTING)


@pytest.fixture(scope="module")
def place(swtpm: SoftwareTpm) -> TpmKeyPlace:
    return create_key(swtpm.tcti, quoting=True)


@pytest.fixture
def credential(key: TpmKey) -> Credential:
    check_member_area(key.area.raw, member=key.public, rule=QUOTING)
    return SECRET.admit(prove_member_key(key, nonce=NONCE), nonce=NONCE)[0]


@pytest.mark.parametrize("basename", [None, BASENAME])
def test_a_quote_by_a_member_verifies(key: TpmKey, credential, basename: bytes | None) -> None:
    signature, state = key.quote(
        credential, selection=SELECTION, message=MESSAGE, basename=basename
    )
    result = VERIFIER.verify(signature, message=MESSAGE, basename=basename, quote=state)
    assert failed(result) == []
    assert got(result, "daa.quote_pcrs") == "3 PCRs, of these values"
    assert any("are those its TPM had" in line for line in QUOTING.proves())


def test_what_a_quote_says_is_signed(key: TpmKey, credential, swtpm: SoftwareTpm) -> None:
    signature, state = key.quote(credential, selection=SELECTION, message=MESSAGE)

    def verify(message: bytes = MESSAGE, **changed: object) -> list[str]:
        return failed(VERIFIER.verify(signature, message=message, quote=replace(state, **changed)))

    assert verify() == []
    assert verify(MESSAGE + b"!") == ["daa.proof"]
    last = state.attest[:-1] + bytes([state.attest[-1] ^ 1])
    assert verify(attest=last) == ["daa.proof", "daa.quote_pcrs"]
    assert verify(attest=b"\0" + state.attest[1:]) == ["daa.proof", "daa.quote_structure"]
    values = {index: state.pcrs["sha256"][index] for index in (0, 7, 10)}
    other = {"sha256": {**values, 10: bytes([1]) * 32}}
    assert verify(pcrs=other) == ["daa.quote_pcrs"]
    assert verify(pcrs={"sha256": {0: values[0], 7: values[7]}}) == ["daa.quote_pcrs"]
    assert verify(pcrs={"sha256": {**values, 16: bytes(32)}}) == ["daa.quote_pcrs"]
    relabelled = {"sha256": {0: values[0], 7: values[7], 16: values[10]}}
    assert verify(pcrs=relabelled) == ["daa.quote_pcrs"]
    assert verify(pcrs={}) == ["daa.quote_pcrs"]


def test_a_quote_is_no_plain_signature_and_a_plain_one_no_quote(key: TpmKey, credential) -> None:
    signature, state = key.quote(credential, selection=SELECTION, message=MESSAGE)
    assert failed(VERIFIER.verify(signature, message=MESSAGE)) == ["daa.proof"]
    plain = sign(key, credential, message=MESSAGE)
    assert failed(VERIFIER.verify(plain, message=MESSAGE)) == []
    assert failed(VERIFIER.verify(plain, message=MESSAGE, quote=state)) == ["daa.proof"]


def test_quotes_are_believed_of_groups_of_restricted_keys_only(key: TpmKey, credential) -> None:
    signature, state = key.quote(credential, selection=SELECTION, message=MESSAGE)
    for assurance in (None, KeyAssurance(protection=KeyProtection.CERTIFIED_TPM)):
        verifier = DaaVerifier(SECRET.public_key(), assurance=assurance)
        result = verifier.verify(signature, message=MESSAGE, quote=state)
        assert failed(result) == ["daa.quote_key"]


def made_up(key: TpmKey, credential: Credential, real: QuotedState):
    """Have the TPM sign a structure that the host made up, as far as it lets itself."""
    from tpm2_pytss import ESYS_TR, TPM2_ALG

    values = {**real.pcrs["sha256"], 10: b"\7" * 32}
    digest = hashlib.sha256(b"".join(values[index] for index in (0, 7, 10))).digest()
    attest = real.attest[:-32] + digest

    def finish(preimage: bytes, counter: int):
        data = quote_data(preimage) + hashlib.sha256(attest).digest()
        hashed, ticket = patiently(lambda: key.tpm.hash(data, TPM2_ALG.SHA256, ESYS_TR.OWNER))
        signature = patiently(
            lambda: key.tpm.sign(key._handle, hashed, ecdaa_scheme(counter), ticket)
        )
        return ecdaa_answer(int.from_bytes(bytes(hashed), "big"), signature, attest=attest)

    points = randomise(credential)
    proof, _ = key._prove(points[1], points[3], MESSAGE, None, finish)
    return signature_of(points, proof), QuotedState(attest=attest, pcrs={"sha256": values})


def test_a_host_cannot_have_a_made_up_quote_signed(key: TpmKey, credential, monkeypatch) -> None:
    from tpm2_pytss import TSS2_Exception

    _, real = key.quote(credential, selection=SELECTION, message=MESSAGE)
    with pytest.raises(TSS2_Exception, match="invalid ticket"):
        made_up(key, credential, real)
    # With qualifying data that does not begin like the TPM's own structures, it could: the forgery
    # verifies then. That is what the prefix is for.
    monkeypatch.setattr(schnorr, "QUOTE_PREFIX", b"")
    signature, state = made_up(key, credential, real)
    assert failed(VERIFIER.verify(signature, message=MESSAGE, quote=state)) == []
    monkeypatch.undo()
    assert failed(VERIFIER.verify(signature, message=MESSAGE, quote=state)) == ["daa.proof"]


def test_quotes_of_one_tpm_can_be_linked_as_documented(
    key: TpmKey, credential, swtpm: SoftwareTpm, place: TpmKeyPlace
) -> None:
    _, first = key.quote(credential, selection=SELECTION, message=b"1")
    _, second = key.quote(credential, selection=SELECTION, message=b"2")
    other = create_key(swtpm.tcti, handle=0x81008DC2, quoting=True)
    with open_key(other) as another:
        given = SECRET.admit(prove_member_key(another, nonce=NONCE), nonce=NONCE)[0]
        _, third = another.quote(given, selection=SELECTION, message=b"3")
    assert parse_attest(third.attest).firmware_version == (
        parse_attest(first.attest).firmware_version
    )
    one, two = parse_attest(first.attest), parse_attest(second.attest)
    assert one.qualified_signer == two.qualified_signer == b""
    assert one.extra_data == two.extra_data == b""
    assert one.firmware_version == two.firmware_version
    assert one.clock_info.reset_count == two.clock_info.reset_count


def test_an_unrestricted_key_makes_no_quote(swtpm: SoftwareTpm, credential) -> None:
    plain = create_key(swtpm.tcti, handle=0x81008DC0)
    with (
        open_key(plain) as key,
        pytest.raises(UsageError, match="not restricted, so that its quotes prove nothing"),
    ):
        key.quote(credential, selection=SELECTION, message=MESSAGE)


def test_a_group_of_quoting_keys_admits_restricted_ones_only(swtpm: SoftwareTpm) -> None:
    plain = create_key(swtpm.tcti, handle=0x81008DC1)
    with open_key(plain) as key:
        check_member_area(plain.public, member=key.public, rule=replace(QUOTING, quoting=False))
        with pytest.raises(Refused, match="restricted is clear"):
            check_member_area(plain.public, member=key.public, rule=QUOTING)


def test_a_restricted_key_signs_no_more_than_a_tpm_hashes_at_once(key: TpmKey, credential) -> None:
    sign(key, credential, message=bytes(1024 - 3 * 65))
    with pytest.raises(UsageError, match="a restricted key signs at most 1024"):
        sign(key, credential, message=bytes(1025 - 3 * 65))
