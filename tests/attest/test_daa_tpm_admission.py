"""A member's key is admitted if it is in a TPM, made there, and of the group's rule."""

from __future__ import annotations

import datetime
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from daa_group import NONCE
from excise.attest.daa.admission import (
    check_endorsement,
    check_member_area,
    make_challenge,
    read_certificates,
)
from excise.attest.daa.keys import SoftwareKey, prove_member_key
from excise.attest.daa.tpm import TpmKey, open_key
from excise.attest.daa.tpm_setup import TpmKeyPlace, create_key
from excise.collect.tpm import open_tpm, patiently
from excise.errors import HostError, Refused
from excise.evidence.daa import KeyAssurance, KeyProtection, check_member_key
from excise.evidence.tpm_structures import parse_public
from software_tpm import SoftwareTpm, new_tpm, require, software_tpm

require("tpm2_pytss")

TPM_KEYS = KeyAssurance(protection=KeyProtection.TPM)


def test_the_tpm_of_the_key_opens_its_challenge(key: TpmKey, place: TpmKeyPlace) -> None:
    area = check_member_area(place.public, member=key.public, rule=TPM_KEYS)
    for kind in ("ecc", "rsa"):
        endorsement = key.endorsement_key(ek=kind)
        assert endorsement.certificate is None
        blob, secret = make_challenge(endorsement.public, area.name, b"to be given back")
        assert key.activate(blob, secret, ek=kind) == b"to be given back"


def test_a_challenge_for_another_key_or_tpm_is_not_opened(key: TpmKey, swtpm: SoftwareTpm) -> None:
    ek = key.endorsement_key().public
    other = create_key(swtpm.tcti, handle=0x81008DB2)
    blob, secret = make_challenge(ek, parse_public(other.public).name, b"secret")
    with pytest.raises(HostError, match="made for another key or another TPM"):
        key.activate(blob, secret)
    with (
        new_tpm() as second,
        open_key(create_key(second.tcti)) as elsewhere,
    ):
        foreign = elsewhere.endorsement_key().public
    blob, secret = make_challenge(foreign, key.area.name, b"secret")
    with pytest.raises(HostError, match="made for another key or another TPM"):
        key.activate(blob, secret)


def dressed(area: bytes, point: tuple[int, int]) -> bytes:
    """Return the public area of the TPM's key with another point in it."""
    return area[:-68] + b"".join(b"\0\x20" + int(number).to_bytes(32, "big") for number in point)


def loaded_from_outside(tpm, area: bytes, secret: bytes | None, swtpm: SoftwareTpm) -> TpmKey:
    """Return a key the TPM did not make: its public part alone, or both."""
    from tpm2_pytss import ESYS_TR, TPM2B_PUBLIC, TPM2B_SENSITIVE

    public, _ = TPM2B_PUBLIC.unmarshal(len(area).to_bytes(2, "big") + area)
    sensitive, hierarchy = None, ESYS_TR.OWNER
    if secret is not None:
        # TPM_ALG_ECC, no password, no seed, the number
        body = bytes.fromhex("0023000000000020") + secret
        sensitive, _ = TPM2B_SENSITIVE.unmarshal(len(body).to_bytes(2, "big") + body)
        hierarchy = ESYS_TR.RH_NULL
    handle = patiently(lambda: tpm.load_external(public, sensitive, hierarchy=hierarchy))
    place = TpmKeyPlace(tcti=swtpm.tcti, handle=0, public=public.marshal(), selection={})
    return TpmKey(tpm, handle, place)


def test_a_key_in_software_dressed_up_as_one_in_the_tpm_opens_no_challenge(
    swtpm: SoftwareTpm, key: TpmKey
) -> None:
    software = SoftwareKey.generate()
    area = dressed(key.area.raw, software.public)
    name = check_member_area(area, member=software.public, rule=TPM_KEYS).name
    blob, secret = make_challenge(key.endorsement_key().public, name, b"secret")
    with open_tpm(swtpm.tcti) as tpm:
        fake = loaded_from_outside(tpm, area, None, swtpm)
        with pytest.raises(HostError, match="does not open the issuer's challenge"):
            fake.activate(blob, secret)
        tpm.flush_context(fake._handle)


def test_a_key_loaded_from_outside_is_not_admitted(swtpm: SoftwareTpm, key: TpmKey) -> None:
    software = SoftwareKey.generate()
    raw = dressed(key.area.raw, software.public)
    with (
        pytest.raises(HostError, match="attributes"),
        open_tpm(swtpm.tcti) as tpm,
    ):
        loaded_from_outside(tpm, raw, software.to_bytes(), swtpm)
    area = flipped(FIXED_TPM)(flipped(FIXED_PARENT)(flipped(ORIGIN)(raw)))
    blob, secret = make_challenge(key.endorsement_key().public, parse_public(area).name, b"secret")
    with open_tpm(swtpm.tcti) as tpm:
        fake = loaded_from_outside(tpm, area, software.to_bytes(), swtpm)
        # The TPM helps it: only what its attributes say keeps it out.
        assert fake.activate(blob, secret) == b"secret"
        assert check_member_key(prove_member_key(fake, nonce=NONCE), nonce=NONCE).holds
        tpm.flush_context(fake._handle)
    with pytest.raises(Refused, match=r"fixedTPM is clear\n.*fixedParent is clear\n.*Origin"):
        check_member_area(area, member=software.public, rule=TPM_KEYS)


FIXED_TPM, ST_CLEAR, FIXED_PARENT, ORIGIN, USER = 1 << 1, 1 << 2, 1 << 4, 1 << 5, 1 << 6
ENCRYPTED, RESTRICTED, DECRYPT, SIGN_BIT = 1 << 11, 1 << 16, 1 << 17, 1 << 18


def with_bytes(raw: bytes, at: int, data: bytes) -> bytes:
    return raw[:at] + data + raw[at + len(data) :]


def flipped(bit: int) -> Callable[[bytes], bytes]:
    def change(raw: bytes) -> bytes:
        return with_bytes(raw, 4, (int.from_bytes(raw[4:8], "big") ^ bit).to_bytes(4, "big"))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (flipped(FIXED_TPM), "fixedTPM is clear"),
        (flipped(FIXED_PARENT), "fixedParent is clear"),
        (flipped(ORIGIN), "sensitiveDataOrigin is clear"),
        (flipped(SIGN_BIT), "sign is clear"),
        (flipped(DECRYPT), "decrypt is set"),
        (flipped(RESTRICTED), "restricted is set"),
        (flipped(ST_CLEAR), "stClear is set"),
        (flipped(ENCRYPTED), "encryptedDuplication is set"),
        (lambda raw: with_bytes(raw, 2, b"\x00\x0c"), "the name's hash is sha384"),
        (lambda raw: with_bytes(raw, 18, b"\x00\x03"), "the curve is secp256r1, not bn_p256"),
        (lambda raw: with_bytes(raw, 12, b"\x00\x18"), "the scheme is ECDSA with"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "not the one that was proven"),
    ],
)
def test_a_key_with_one_thing_wrong_is_not_admitted(
    key: TpmKey, change: Callable[[bytes], bytes], reason: str
) -> None:
    raw = key.area.raw
    assert check_member_area(raw, member=key.public, rule=TPM_KEYS).raw == raw
    changed = change(raw)
    if "ECDSA" in reason:  # which has no counter
        changed = changed[:16] + changed[18:]
    with pytest.raises(Refused, match=reason):
        check_member_area(changed, member=key.public, rule=TPM_KEYS)


def _point_of(place: TpmKeyPlace):
    area = parse_public(place.public)
    return area.x, area.y


def test_a_key_of_another_policy_than_the_group_s_is_not_admitted(swtpm: SoftwareTpm) -> None:
    place = create_key(swtpm.tcti, handle=0x81008DB4, bound_to={"sha256": (7,)})
    policy = parse_public(place.public).auth_policy
    rule = replace(TPM_KEYS, pcr_policy=policy, selection="sha256:7")
    check_member_area(place.public, member=_point_of(place), rule=rule)
    other = replace(rule, pcr_policy=bytes(32))
    with pytest.raises(Refused, match="the policy is "):
        check_member_area(place.public, member=_point_of(place), rule=other)
    loose = flipped(USER)(parse_public(place.public).raw)
    with pytest.raises(Refused, match="userWithAuth is set, so that the policy"):
        check_member_area(loose, member=_point_of(place), rule=rule)


def test_a_key_that_signs_is_no_endorsement_key(key: TpmKey, place: TpmKeyPlace) -> None:
    with pytest.raises(Refused, match="not an endorsement key"):
        make_challenge(place.public, key.area.name, b"secret")


@pytest.mark.parametrize("bit", [FIXED_TPM, FIXED_PARENT, ORIGIN, RESTRICTED, DECRYPT, SIGN_BIT])
def test_an_endorsement_key_with_one_attribute_wrong_is_refused(key: TpmKey, bit: int) -> None:
    raw = parse_public(key.endorsement_key().public).raw
    assert make_challenge(raw, key.area.name, b"secret")
    with pytest.raises(Refused, match="not an endorsement key"):
        make_challenge(flipped(bit)(raw), key.area.name, b"secret")


# Certificates of TPM makers


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SoftwareTpm, Path]]:
    """A software TPM with EK certificates, as swtpm_setup makes them, and the maker's folder."""
    with tempfile.TemporaryDirectory(prefix="swtpm") as name:
        folder = Path(name)
        maker = folder / "maker"
        for path in (folder / "state", maker):
            path.mkdir()
        (folder / "ca.conf").write_text(
            f"statedir = {maker}\nsigningkey = {maker}/key.pem\n"
            f"issuercert = {maker}/issuer.pem\ncertserial = {maker}/serial\n"
        )
        (folder / "options").write_text("")
        (folder / "setup.conf").write_text(
            "create_certs_tool=/usr/bin/swtpm_localca\n"
            f"create_certs_tool_config={folder}/ca.conf\n"
            f"create_certs_tool_options={folder}/options\n"
        )
        subprocess.run(
            [
                *("swtpm_setup", "--tpm2", "--tpmstate", f"{folder}/state", "--create-ek-cert"),
                *("--ecc", "--config", f"{folder}/setup.conf"),
            ],
            check=True,
            capture_output=True,
        )
        with software_tpm(folder) as tpm:
            yield tpm, maker


def test_the_certificate_of_the_ek_is_followed_to_its_root(certified) -> None:
    tpm, maker = certified
    roots = read_certificates((maker / "swtpm-localca-rootca-cert.pem").read_bytes(), source="root")
    between = read_certificates((maker / "issuer.pem").read_bytes(), source="issuer")
    with open_key(create_key(tpm.tcti)) as key:
        for kind in ("rsa", "ecc384"):
            endorsement = key.endorsement_key(ek=kind)
            assert endorsement.certificate is not None
            given = {"roots": roots, "intermediates": between}
            check_endorsement(endorsement.certificate, ek=endorsement.public, **given)
            blob, secret = make_challenge(endorsement.public, key.area.name, b"open me")
            assert key.activate(blob, secret, ek=kind) == b"open me"
            with pytest.raises(Refused, match="under no root that was given"):
                check_endorsement(endorsement.certificate, ek=endorsement.public, roots=roots)
            with pytest.raises(Refused, match="not valid today"):
                check_endorsement(
                    endorsement.certificate,
                    ek=endorsement.public,
                    now=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
                    **given,
                )
            other = key.endorsement_key(ek="ecc").public
            with pytest.raises(Refused, match="the EK certificate is of another key"):
                check_endorsement(endorsement.certificate, ek=other, **given)


def test_passwords_of_the_hierarchies_are_used() -> None:
    with new_tpm() as tpm:
        tpm.tool("tpm2_changeauth", "-c", "owner", "mine")
        tpm.tool("tpm2_changeauth", "-c", "endorsement", "theirs")
        with pytest.raises(HostError, match=r"the TPM refuses: .*authorization"):
            create_key(tpm.tcti)
        place = create_key(tpm.tcti, owner_auth=b"mine")
        with open_key(place, endorsement_auth=b"theirs") as key:
            blob, secret = make_challenge(
                key.endorsement_key().public, key.area.name, b"to be given back"
            )
            assert key.activate(blob, secret) == b"to be given back"
