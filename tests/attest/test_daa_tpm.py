"""A member's key in a software TPM: used, faulted, restarted, and proven to be there."""

from __future__ import annotations

import datetime
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from daa_group import BASENAME, MESSAGE, NONCE, failed
from excise.attest.daa.admission import (
    check_endorsement,
    check_member_area,
    make_challenge,
    read_certificates,
)
from excise.attest.daa.issuer import IssuerSecretKey
from excise.attest.daa.keys import SoftwareKey, prove_member_key, sign
from excise.attest.daa.tpm import TpmKey, open_key
from excise.attest.daa.tpm_setup import (
    TpmKeyPlace,
    create_key,
    find_key,
    probe,
)
from excise.collect.tpm import open_tpm, patiently, read_pcrs
from excise.errors import HostError, Refused, UsageError
from excise.evidence.daa import (
    Credential,
    DaaVerifier,
    Dialect,
    KeyAssurance,
    KeyProtection,
    basename_point,
    check_member_key,
    policy_pcr_digest,
)
from excise.evidence.daa.curve import GENERATOR_1
from excise.evidence.daa.field import N
from excise.evidence.tpm_structures import parse_public
from software_tpm import SoftwareTpm, require, software_tpm

require("tpm2_pytss")

TPM_KEYS = KeyAssurance(protection=KeyProtection.TPM)
SECRET = IssuerSecretKey.generate()
VERIFIER = DaaVerifier(SECRET.public_key())


@pytest.fixture(scope="module")
def place(swtpm: SoftwareTpm) -> TpmKeyPlace:
    return create_key(swtpm.tcti)


@pytest.fixture(scope="module")
def credential(place: TpmKeyPlace) -> Credential:
    with open_key(place) as key:
        return SECRET.admit(prove_member_key(key, nonce=NONCE), nonce=NONCE)[0]


@pytest.fixture
def key(place: TpmKeyPlace) -> Iterator[TpmKey]:
    with open_key(place) as opened:
        yield opened


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


# Faults (pitfalls 25, 26)


class Faulty:
    """Changes what a TPM answers, between the TSS and the TPM."""

    def __init__(self, change: Callable[[bytes, bytes], bytes | None]) -> None:
        self.change = change
        self.faults = 0

    def tcti(self, inner: str):
        from tpm2_pytss import TCTILdr
        from tpm2_pytss.TCTI import PyTCTI

        outer = self
        name, _, configuration = inner.partition(":")

        class Proxy(PyTCTI):
            def __init__(self) -> None:
                super().__init__()
                self.real = TCTILdr(name, configuration)
                self.command = b""

            def do_transmit(self, command: bytes) -> None:
                self.command = bytes(command)
                self.real.transmit(self.command)

            def do_receive(self, timeout: int) -> bytes:
                answer = bytes(self.real.receive())
                changed = outer.change(self.command, answer)
                if changed is None:
                    return answer
                outer.faults += 1
                return changed

            def do_finalize(self) -> None:
                self.real.finalize()

        return Proxy()


def code(command: bytes) -> int:
    return int.from_bytes(command[6:10], "big")


COMMIT, SIGN, GET_CAPABILITY = 0x18B, 0x15D, 0x17A


def answered(response_code: int) -> bytes:
    return bytes.fromhex("80010000000a") + response_code.to_bytes(4, "big")


def often_each(response_code: int, commands: set[int], *, times: int = 1) -> Faulty:
    left = dict.fromkeys(commands, times)

    def change(command: bytes, _answer: bytes) -> bytes | None:
        if not left.get(code(command)):
            return None
        left[code(command)] -= 1
        return answered(response_code)

    return Faulty(change)


def test_a_tpm_that_asks_to_try_again_is_asked_again(
    place: TpmKeyPlace, credential: Credential
) -> None:
    # The TSS itself tries five times.
    faulty = often_each(0x922, {COMMIT, SIGN}, times=7)
    with open_key(replace(place, tcti=faulty.tcti(place.tcti))) as key:
        signature = sign(key, credential, message=MESSAGE)
    assert faulty.faults == 14
    assert failed(VERIFIER.verify(signature, message=MESSAGE)) == []


def test_a_short_nonce_begins_the_proof_anew(place: TpmKeyPlace, credential: Credential) -> None:
    def shorten(command: bytes, answer: bytes) -> bytes | None:
        if code(command) != SIGN or faulty.faults:
            return None
        # tag, size, code; parameter size; sigAlg, hash; signatureR: its first byte goes.
        size = int.from_bytes(answer[2:6], "big") - 1
        parameters = int.from_bytes(answer[10:14], "big") - 1
        return (
            answer[:2]
            + size.to_bytes(4, "big")
            + answer[6:10]
            + parameters.to_bytes(4, "big")
            + answer[14:18]
            + (31).to_bytes(2, "big")
            + answer[21:]
        )

    faulty = Faulty(shorten)
    with open_key(replace(place, tcti=faulty.tcti(place.tcti))) as key:
        proof = key.prove(base=GENERATOR_1, public=key.public, message=MESSAGE)
    assert (faulty.faults, proof.attempts) == (1, 2)


def test_a_nonce_whose_zero_byte_was_left_begins_the_proof_anew(place: TpmKeyPlace) -> None:
    # As of a TPM that keeps it: with or without it in the hash, xaptum's format is ambiguous.
    def zero(command: bytes, answer: bytes) -> bytes | None:
        if code(command) != SIGN or faulty.faults:
            return None
        return with_bytes(answer, 20, b"\0")

    faulty = Faulty(zero)
    with open_key(replace(place, tcti=faulty.tcti(place.tcti))) as key:
        proof = key.prove(base=GENERATOR_1, public=key.public, message=MESSAGE)
    assert (faulty.faults, proof.attempts) == (1, 2)


def test_a_digest_that_is_not_below_the_order_begins_the_proof_anew(key: TpmKey) -> None:
    # Once in 2⁴⁸ proofs of a key whose TPM hashes the challenge itself.
    answers = []

    def finish(preimage: bytes, counter: int):
        answer = key._sign(preimage, counter)
        answers.append(answer)
        return answer if len(answers) > 1 else replace(answer, digest=int(N))

    proof, _ = key._prove(GENERATOR_1, key.public, MESSAGE, None, finish)
    assert (len(answers), proof.attempts) == (2, 2)


def test_a_tpm_without_the_curve_says_so() -> None:
    def without_bn(command: bytes, answer: bytes) -> bytes | None:
        if code(command) != GET_CAPABILITY or command[10:14] != bytes.fromhex("00000008"):
            return None
        # more, capability, count 1, P-256
        body = bytes.fromhex("00000000080000000100" + "03")
        return b"\x80\x01" + (10 + len(body)).to_bytes(4, "big") + answer[6:10] + body

    with (
        tempfile.TemporaryDirectory(prefix="swtpm") as folder,
        software_tpm(Path(folder)) as tpm,
    ):
        assert probe(tpm.tcti).missing() == ()
        faulty = Faulty(without_bn)
        with pytest.raises(
            HostError, match=r"lacks the curve BN_P256 \(it has: secp256r1\).*software, may do"
        ):
            create_key(faulty.tcti(tpm.tcti))
        assert faulty.faults == 1


@pytest.mark.parametrize(
    ("capability", "lacks"), [(0, "the scheme ECDAA"), (2, "the command TPM2_Commit")]
)
def test_a_tpm_without_the_scheme_or_the_command_says_so(
    swtpm: SoftwareTpm, capability: int, lacks: str
) -> None:
    number = capability.to_bytes(4, "big")

    def without(command: bytes, answer: bytes) -> bytes | None:
        if code(command) != GET_CAPABILITY or command[10:14] != number:
            return None
        body = b"\0" + number + bytes(4)  # no more, and none
        return b"\x80\x01" + (10 + len(body)).to_bytes(4, "big") + answer[6:10] + body

    faulty = Faulty(without)
    assert probe(faulty.tcti(swtpm.tcti)).missing() == (lacks,)
    assert faulty.faults == 1


def test_a_tpm_that_signs_by_an_unknown_rule_is_refused(place: TpmKeyPlace, credential) -> None:
    def flip(command: bytes, answer: bytes) -> bytes | None:
        if code(command) != SIGN:
            return None
        return answer[:-6] + bytes([answer[-6] ^ 1]) + answer[-5:]

    with (
        open_key(replace(place, tcti=Faulty(flip).tcti(place.tcti))) as key,
        pytest.raises(HostError, match="signs by an unknown rule: no verifier can check that"),
    ):
        sign(key, credential, message=MESSAGE)


def test_a_tpm_reset_between_commit_and_sign_begins_the_proof_anew() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="swtpm") as folder,
        software_tpm(Path(folder)) as tpm,
    ):
        place = create_key(tpm.tcti)
        resets: list[object] = []
        started = threading.Event()
        started.set()

        def reset(command: bytes, answer: bytes) -> bytes | None:
            if code(command) == COMMIT and answer[6:10] == bytes(4) and not resets:
                ioctl = ["swtpm_ioctl", "--unix", f"{folder}/s.ctrl", "-i"]
                resets.append(subprocess.run(ioctl, check=True))
                started.clear()
            return None

        faulty = Faulty(reset)
        tcti = faulty.tcti(tpm.tcti)
        transmit = tcti.do_transmit

        def with_startup(command: bytes) -> None:
            if not started.is_set():
                started.set()
                tcti.real.transmit(bytes.fromhex("80010000000c000001440000"))
                assert bytes(tcti.real.receive())[6:10] == bytes(4)
            transmit(command)

        tcti.do_transmit = with_startup
        with open_key(replace(place, tcti=tcti)) as key:
            proof = key.prove(base=GENERATOR_1, public=key.public, message=NONCE)
            member = prove_member_key(key, nonce=NONCE)
        assert len(resets) == 1
        assert proof.attempts >= 2  # one nonce in 256 is of no use
        assert check_member_key(member, nonce=NONCE).holds


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
    with (
        tempfile.TemporaryDirectory(prefix="swtpm") as folder,
        software_tpm(Path(folder)) as tpm,
    ):
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


# Proven to be there (pitfalls 19, 20)


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
        tempfile.TemporaryDirectory(prefix="swtpm") as folder,
        software_tpm(Path(folder)) as second,
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
            with pytest.raises(Refused, match="under none of the 1 roots"):
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
    with (
        tempfile.TemporaryDirectory(prefix="swtpm") as folder,
        software_tpm(Path(folder)) as tpm,
    ):
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
