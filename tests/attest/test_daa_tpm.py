"""A member's key in a software TPM: used, moved, cleared, bound to PCRs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from daa_group import BASENAME, MESSAGE, NONCE, failed, group
from excise.attest.daa.keys import prove_member_key, sign
from excise.attest.daa.tpm import TpmKey, open_key
from excise.attest.daa.tpm_setup import TpmKeyPlace, create_key, find_key
from excise.collect.tpm import read_pcrs
from excise.errors import HostError, UsageError
from excise.evidence.daa import (
    Credential,
    Dialect,
    basename_point,
    check_member_key,
    policy_pcr_digest,
)
from excise.evidence.daa.curve import GENERATOR_1
from excise.evidence.tpm_structures import parse_public
from software_tpm import SoftwareTpm, new_tpm, require

require("tpm2_pytss")

SECRET, VERIFIER = group().secret, group().verifier


def verify_many(key: TpmKey, credential: Credential, count: int) -> list[int]:
    """Sign and verify, every other time with a basename; return the attempts each took."""
    attempts = []
    prove = key.prove

    def counted(**arguments):
        proof = prove(**arguments)
        attempts.append(proof.attempts)
        return proof

    key.prove = counted  # type: ignore[method-assign]
    for number in range(count):
        message = b"message %d" % number
        basename = b"basename %d" % (number % 17) if number % 2 else None
        signature = sign(key, credential, message=message, basename=basename)
        result = VERIFIER.verify(signature, message=message, basename=basename)
        assert failed(result) == []
        assert result.dialect is Dialect.HASHED_NONCE
        assert signature.nonce[0] != 0
    return attempts


def test_forty_signatures_of_a_tpm_verify(key: TpmKey, credential: Credential) -> None:
    assert len(verify_many(key, credential, 40)) == 40


@pytest.mark.lab
def test_a_thousand_signatures_of_a_tpm_verify(key: TpmKey, credential: Credential) -> None:
    attempts = verify_many(key, credential, 1000)
    # One nonce in 256 is short and its proof begun anew: 4 are expected of 1000.
    assert len(attempts) == 1000
    assert sum(attempts) - 1000 < 25


def test_a_tpm_hashes_basenames_to_the_same_points(
    key: TpmKey, credential: Credential, shared_vectors: Path
) -> None:
    vectors = json.loads((shared_vectors / "ecdaa" / "h2c_vectors.json").read_text())
    for basename, vector in vectors.items():
        assert basename_point(basename.encode()).counter == vector["i"]
        signature = sign(key, credential, message=MESSAGE, basename=basename.encode())
        result = VERIFIER.verify(signature, message=MESSAGE, basename=basename.encode())
        assert failed(result) == []


def test_another_message_is_refused_from_a_tpm_too(key: TpmKey, credential: Credential) -> None:
    signature = sign(key, credential, message=MESSAGE, basename=BASENAME)
    assert failed(VERIFIER.verify(signature, message=MESSAGE, basename=BASENAME)) == []
    assert failed(VERIFIER.verify(signature, message=b"", basename=BASENAME)) == ["daa.proof"]


def test_a_commit_counter_is_used_once(key: TpmKey) -> None:
    from tpm2_pytss import TSS2_Exception

    *_, counter = key._commit(GENERATOR_1, None)
    key._sign(b"once", counter)
    with pytest.raises(TSS2_Exception, match="out of range"):
        key._sign(b"again", counter)


# Where the key is


def test_a_handle_that_is_taken_is_not_taken_over(place: TpmKeyPlace) -> None:
    with pytest.raises(HostError, match="the persistent handle 0x81008daa is taken"):
        create_key(place.tcti)
    assert find_key(place.tcti, handle=place.handle) == place
    with pytest.raises(UsageError, match="no persistent handle of the owner"):
        create_key(place.tcti, handle=0x80000000)


def test_another_key_at_the_handle_is_noticed(swtpm: SoftwareTpm, place: TpmKeyPlace) -> None:
    other = create_key(swtpm.tcti, handle=place.handle + 1)
    with (
        pytest.raises(HostError, match="another key is at the persistent handle"),
        open_key(replace(place, handle=other.handle)),
    ):
        pass
    with (
        pytest.raises(HostError, match="no key at the persistent handle 0x81008dac"),
        open_key(replace(place, handle=place.handle + 2)),
    ):
        pass


def test_nothing_is_left_in_the_tpm(swtpm: SoftwareTpm, key: TpmKey, credential) -> None:
    key.endorsement_key()
    sign(key, credential, message=MESSAGE)
    for kind in ("handles-transient", "handles-loaded-session", "handles-saved-session"):
        assert swtpm.tool("tpm2_getcap", kind) == ""


def test_clearing_the_tpm_makes_room_for_a_new_key() -> None:
    with new_tpm() as tpm:
        first = create_key(tpm.tcti)
        second = create_key(tpm.tcti, clear=True)
        assert first.public != second.public
        with open_key(second) as key:
            assert check_member_key(prove_member_key(key, nonce=NONCE), nonce=NONCE).holds


# Bound to PCRs


def test_a_bound_key_signs_until_a_pcr_changes(swtpm: SoftwareTpm) -> None:
    selection = {"sha256": (7, 16)}
    values = read_pcrs(swtpm.tcti, selection=selection)
    place = create_key(swtpm.tcti, handle=0x81008DB0, bound_to=selection)
    area = parse_public(place.public)
    assert area.auth_policy == policy_pcr_digest(values)
    assert "userWithAuth" not in area.attributes
    with open_key(place) as key:
        credential, _ = SECRET.admit(prove_member_key(key, nonce=NONCE), nonce=NONCE)
        signature = sign(key, credential, message=MESSAGE, basename=BASENAME)
        assert failed(VERIFIER.verify(signature, message=MESSAGE, basename=BASENAME)) == []
        swtpm.tool("tpm2_pcrextend", "16:sha256=" + "11" * 32)
        with pytest.raises(HostError, match="bound to the PCRs sha256:7,16, which have other"):
            sign(key, credential, message=MESSAGE)
        swtpm.tool("tpm2_pcrreset", "16")
        assert sign(key, credential, message=MESSAGE)


def test_a_bound_key_does_not_sign_by_its_password(swtpm: SoftwareTpm) -> None:
    place = create_key(swtpm.tcti, handle=0x81008DB1, bound_to={"sha256": (7,)})
    with (
        pytest.raises(HostError, match="authValue or authPolicy is not available"),
        open_key(replace(place, selection={})) as key,
    ):
        prove_member_key(key, nonce=NONCE)
