"""Right answers known from elsewhere: xaptum's C library, a software TPM, real TPMs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daa_group import failed
from excise.attest.daa.issuer import IssuerSecretKey
from excise.attest.daa.tpm import tpm_challenge
from excise.evidence.checks import Outcome
from excise.evidence.daa import (
    Credential,
    CredentialSignature,
    DaaVerifier,
    Dialect,
    MemberPublicKey,
    RevokedKeys,
    RevokedPseudonyms,
    Signature,
    basename_point,
    check_issuer_key,
    check_member_key,
    read_group_key,
)
from excise.evidence.daa.curve import (
    GENERATOR_1,
    decode_g1,
    decode_scalar,
    encode_g1,
    encode_scalar,
    sum_of_multiples,
)
from excise.evidence.daa.field import N
from excise.evidence.daa.hashing import challenge_with_nonce

# One signature each of three kinds of firmware, all of the empty string's digest with P₁ as base:
# AMD 3.42.0.5 (row 0), Nuvoton 1.3.0.1 and 7.2.0.1 (row 999), Cryptoops_Sign:ECC_0x0010_0x001a.csv
# in crocs-muni/tpmscan-dataset. Columns: r, s, public x, y, nonce point x, y.
EMPTY_DIGEST = 0xE3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855
REAL_TPMS = {
    "AMD 3.42.0.5": (
        Dialect.HASHED_NONCE,
        "14d723e8fc860880b42f049d256f83806ea49484dcef9932ca08d8dfa21c1da3",
        "f083b5f2ead4531c5f2ab8ff74687fc7c19c765734d6b72019e449ec1982d11d",
        "4e36d76cb712d3d188178b86987e2caa7166aad9a2c9924f28979b3d0eee2424",
        "177a75a7a1e2e12610f2586bb9fc1bba549d217a6b724400b0bd88a8d3d10a97",
        "504d817a8456f6bcb99520407226790d5178ecc5bf4b9f33a08fa98b90f996dd",
        "208ee164c24e5e3f4e9cc5398e28c384563f217eec7a603d03b4e61594d6a682",
    ),
    "Nuvoton 1.3.0.1": (
        Dialect.ECHOED_DIGEST,
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "b37d60ff399df60f1875f005152229eca2268d2770abbb664885fb050f706002",
        "2506543b6ce751e5a77c6a5f5f001600052085f105b9813136fdd3c42d02f895",
        "d54cd080865667673c8258c53b0eaa183f91f56116c75807938eba9f26fc4803",
        "bc390a29cf142f79e2281508c89b24ae7265846228b6064148264d94af253735",
        "6bab3db9e998b595965dc8e1d1d4e57ca75514ba3e930d7f6a73610b38c09a88",
    ),
    "Nuvoton 7.2.0.1": (
        Dialect.OWN_CHALLENGE,
        "39c8730fad0f90868ca521b8fcc1027b0e273b266cdb1bec03c7be8b5f2e46b3",
        "fe9a197f5be00a7ea7769ac0f0452dbbd8d49c73e6c6170e8d715f5094906ff2",
        "39743f87f85634fe295c515738ba489e62b210c023a94721b6d65b12d2331998",
        "4e9b4d76452c0be379cb864ebd8d6020b8c827f27f02701473820fc52a294081",
        "d9a31bdd81265c9d88c63e434e01b0f8c7bd390d1539026bd661fec4d08e61da",
        "fc6c98796e8d425af9d60bcfffca14244f1018b319d3e94bbd0e3c5ee22542a0",
    ),
}


@pytest.fixture(scope="module")
def xaptum(shared_vectors: Path) -> dict[str, bytes]:
    text = (shared_vectors / "ecdaa" / "xaptum_c" / "xaptum_made.json").read_text()
    return {
        name: bytes.fromhex(value)
        for name, value in json.loads(text).items()
        if isinstance(value, str)
    }


def verify(xaptum: dict[str, bytes], name: str, **options):
    """Return the failed checks of one of the C tool's signatures, by default all as it was made."""
    settings = {
        "message": xaptum["msg"],
        "basename": xaptum["basename"] if name == "sigb" else None,
    }
    lists = {key: options.pop(key) for key in list(options) if key.startswith("revoked")}
    verifier = DaaVerifier(read_group_key(options.pop("group", xaptum["ipk"])), **lists)
    return failed(verifier.verify(Signature.from_bytes(xaptum[name]), **{**settings, **options}))


@pytest.mark.parametrize("name", ["sig", "sigb"])
def test_signatures_of_the_c_tool_hold(xaptum, name: str) -> None:
    assert verify(xaptum, name) == []
    assert verify(xaptum, name, group=xaptum["gpk"]) == []


def test_keys_and_credentials_of_the_c_tool_hold(xaptum) -> None:
    issuer, member = read_group_key(xaptum["ipk"]), MemberPublicKey.from_bytes(xaptum["pk"])
    assert check_issuer_key(issuer)
    assert check_member_key(member, nonce=xaptum["nonce"]).dialect is Dialect.HASHED_NONCE
    assert DaaVerifier(issuer).check_credential(
        Credential.from_bytes(xaptum["cred"]),
        CredentialSignature.from_bytes(xaptum["csig"]),
        member=member.q,
    )
    assert not check_member_key(member, nonce=xaptum["nonce"] + b"!").holds


@pytest.mark.parametrize(
    ("name", "option", "check"),
    [
        ("sig", {"message": b"hello sensors"}, "daa.proof"),
        ("sigb", {"message": b"hello sensors"}, "daa.proof"),
        ("sigb", {"basename": b"verifier.invalid"}, "daa.proof"),
    ],
)
def test_another_message_or_basename_is_refused(xaptum, name, option, check) -> None:
    assert verify(xaptum, name, **option) == [check]


def test_revoked_keys_and_pseudonyms_of_the_c_tool_are_refused(xaptum) -> None:
    keys = RevokedKeys.from_bytes(xaptum["sk"])
    pseudonyms = RevokedPseudonyms.from_bytes(xaptum["sigb"][356:421])
    assert verify(xaptum, "sig", revoked_keys=keys) == ["daa.revoked_keys"]
    assert verify(xaptum, "sigb", revoked_pseudonyms=pseudonyms) == ["daa.revoked_pseudonyms"]


def test_another_group_refuses_signatures_of_the_c_tool(xaptum, shared_vectors: Path) -> None:
    other = (shared_vectors / "ecdaa" / "tpm_swtpm" / "gpk.bin").read_bytes()
    assert verify(xaptum, "sig", group=other) == ["daa.credential"]


def test_the_public_key_follows_from_the_secret_one_of_the_c_tool(xaptum) -> None:
    # With the other sign of the generator of G2, as in IBM's FIDO code, it would not.
    secret = IssuerSecretKey.from_bytes(xaptum["isk"])
    assert secret.public_key().group.to_bytes() == xaptum["gpk"]
    assert secret.to_bytes() == xaptum["isk"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sig", Signature),
        ("sigb", Signature),
        ("pk", MemberPublicKey),
        ("cred", Credential),
        ("csig", CredentialSignature),
    ],
)
def test_what_the_c_tool_wrote_is_written_again_byte_for_byte(xaptum, name, kind) -> None:
    assert kind.from_bytes(xaptum[name]).to_bytes() == xaptum[name]
    assert read_group_key(xaptum["ipk"]).to_bytes() == xaptum["ipk"]


def test_what_a_software_tpm_signed_holds(shared_vectors: Path) -> None:
    def read(name: str) -> bytes:
        return (shared_vectors / "ecdaa" / "tpm_swtpm" / f"{name}.bin").read_bytes()

    member = MemberPublicKey.from_bytes(read("pk"))
    verifier = DaaVerifier(read_group_key(read("ipk")))
    assert check_member_key(member, nonce=read("nonce")).holds
    assert verifier.check_credential(
        Credential.from_bytes(read("cred")),
        CredentialSignature.from_bytes(read("csig")),
        member=member.q,
    )
    plain = verifier.verify(Signature.from_bytes(read("sig")), message=read("msg"))
    named = verifier.verify(
        Signature.from_bytes(read("sigb")), message=read("msg"), basename=read("bsn")
    )
    assert (plain.verdict, named.verdict) == (Outcome.PASSED, Outcome.PASSED)
    secret = IssuerSecretKey.from_bytes(read("isk"))
    assert secret.public_key().group.to_bytes() == read("gpk")


def test_a_nonce_is_hashed_without_the_zero_bytes_a_tpm_drops(shared_vectors: Path) -> None:
    vector = json.loads((shared_vectors / "ecdaa" / "short_nonce_vector.json").read_text())
    public = decode_g1(bytes.fromhex(vector["Q"]), field="Q")
    digest, s = int(vector["cprime"], 16), int(vector["s"], 16)
    nonce = bytes.fromhex(vector["nonceK"])

    def commitment(used: bytes):
        c = challenge_with_nonce(used, digest)
        found = sum_of_multiples([(GENERATOR_1, s), (public, N - c)])
        return encode_g1(found).hex()

    assert len(nonce) == 31
    assert commitment(nonce) == vector["R"]
    assert commitment(nonce.rjust(32, b"\0")) != vector["R"]


def test_basenames_hash_to_their_points_with_every_counter(shared_vectors: Path) -> None:
    folder = shared_vectors / "ecdaa"
    vectors = json.loads((folder / "h2c_vectors.json").read_text())
    vectors |= json.loads((folder / "xaptum_c" / "xaptum_made.json").read_text())["h2c"]
    for basename, vector in vectors.items():
        found = basename_point(basename.encode())
        assert (found.counter, encode_g1(found.point).hex()) == (vector["i"], vector["point"])
        assert found.preimage == vector["i"].to_bytes(4, "little") + basename.encode()
    assert {vector["i"] for vector in vectors.values()} >= {0, 1, 2, 3, 4, 6}


@pytest.mark.parametrize("firmware", REAL_TPMS)
def test_the_dialect_of_a_real_tpm_is_recognised(firmware: str) -> None:
    dialect, r, s, x, y, nonce_x, nonce_y = REAL_TPMS[firmware]
    public = decode_g1(bytes.fromhex("04" + x + y), field="public key")
    commitment = decode_g1(bytes.fromhex("04" + nonce_x + nonce_y), field="nonce point")
    response = decode_scalar(bytes.fromhex(s), field="s")
    given = {"base": GENERATOR_1, "public": public, "commitment": commitment, "s": response}
    found = tpm_challenge(**given, digest=EMPTY_DIGEST, nonce=bytes.fromhex(r))
    assert found is not None
    assert found[0] is dialect
    given["s"] = (response + 1) % N
    assert tpm_challenge(**given, digest=EMPTY_DIGEST, nonce=bytes.fromhex(r)) is None


def test_a_challenge_is_hashed_after_it_was_reduced(monkeypatch) -> None:
    # SHA-256 gives a value not below n once in 2⁴⁶: a hash that always does stands in for one.
    from excise.evidence.daa import hashing

    class Highest:
        def __init__(self, _data: bytes) -> None: ...

        def digest(self) -> bytes:
            return b"\xff" * 32

    monkeypatch.setattr(hashing.hashlib, "sha256", Highest)
    reduced = hashing.hash_to_scalar(b"any")
    assert reduced == (2**256 - 1) % N
    assert encode_scalar(reduced) != b"\xff" * 32
