"""Signatures that must be refused; each differs from one that passes in one thing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daa_group import BASENAME, MESSAGE, Group, changed, failed, got, group, new_group
from excise.attest.daa.keys import SoftwareKey
from excise.attest.service.sessions import SessionStore, SessionUsed
from excise.errors import FormatError, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.daa import (
    DaaVerifier,
    Dialect,
    GroupPublicKey,
    IssuerPublicKey,
    KeyAssurance,
    KeyProtection,
    RevokedKeys,
    RevokedPseudonyms,
    Signature,
    SignedMessage,
    basename_point,
    check_issuer_key,
    framed_message,
    policy_pcr_digest,
    read_group_key,
)
from excise.evidence.daa import verify as verify_module
from excise.evidence.daa.curve import (
    GENERATOR_1,
    add,
    decode_scalar,
    encode_g1,
    encode_g2,
    encode_scalar,
    multiply,
    negate,
    random_scalar,
    sum_of_multiples,
)
from excise.evidence.daa.field import N, integer
from excise.evidence.daa.hashing import hash_to_scalar
from excise.evidence.daa.schnorr import proof_preimage
from test_daa_curve import twist_point_outside_g2

IDENTITY = b"\x04" + bytes(64)
POINTS = {"R": 64, "S": 129, "T": 194, "W": 259, "K": 356}


@pytest.fixture(scope="module")
def made() -> Group:
    return group()


@pytest.fixture(scope="module")
def named(made: Group) -> Signature:
    """A signature with a basename, which passes."""
    signature = made.sign(basename=BASENAME)
    assert failed(made.verifier.verify(signature, message=MESSAGE, basename=BASENAME)) == []
    return signature


@pytest.fixture(scope="module")
def plain(made: Group) -> Signature:
    """A signature without a basename, which passes."""
    signature = made.sign()
    assert failed(made.verifier.verify(signature, message=MESSAGE)) == []
    return signature


def parsed(data: bytes) -> Signature:
    return Signature.from_bytes(data, source="sig.bin")


# Encodings (pitfalls 1, 2, 16)


def test_a_signature_of_identities_is_unreadable(named: Signature) -> None:
    # It would satisfy every equation without any secret.
    data = bytearray(named.to_bytes())
    for start in POINTS.values():
        data[start : start + 65] = IDENTITY
    with pytest.raises(FormatError, match=r"signature\.R: the identity"):
        parsed(bytes(data))


@pytest.mark.parametrize("name", POINTS)
def test_each_point_alone_must_not_be_the_identity(named: Signature, name: str) -> None:
    data = bytearray(named.to_bytes())
    assert parsed(bytes(data)) == named
    data[POINTS[name] : POINTS[name] + 65] = IDENTITY
    with pytest.raises(FormatError, match=rf"signature\.{name}: the identity"):
        parsed(bytes(data))


@pytest.mark.parametrize("name", POINTS)
def test_each_point_alone_must_be_on_the_curve(named: Signature, name: str) -> None:
    data = bytearray(named.to_bytes())
    data[POINTS[name] + 64] ^= 1
    with pytest.raises(FormatError, match=rf"signature\.{name}: not on the curve"):
        parsed(bytes(data))


@pytest.mark.parametrize(("name", "start"), [("c", 0), ("s", 32), ("N", 324)])
def test_each_number_alone_must_be_below_the_order(plain: Signature, name: str, start: int) -> None:
    data = bytearray(plain.to_bytes())
    data[start : start + 32] = encode_scalar(N)
    with pytest.raises(FormatError, match=rf"signature\.{name}: not below the group order"):
        parsed(bytes(data))


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"\0", lambda _: b""])
def test_a_signature_has_one_of_two_lengths(plain: Signature, change) -> None:
    with pytest.raises(FormatError, match="a signature has 356 or 421"):
        parsed(change(plain.to_bytes()))


@pytest.mark.parametrize("start", [0, 129])
def test_a_group_key_outside_the_subgroup_is_unreadable(made: Group, start: int) -> None:
    good = made.public.group.to_bytes()
    assert GroupPublicKey.from_bytes(good) == made.public.group
    outside = encode_g2(twist_point_outside_g2())
    with pytest.raises(FormatError, match="not in the subgroup of order n"):
        GroupPublicKey.from_bytes(good[:start] + outside + good[start + 129 :])


def test_a_key_of_another_length_is_unreadable(made: Group) -> None:
    with pytest.raises(FormatError, match="a group public key has 258 and an issuer"):
        read_group_key(made.public.to_bytes() + b"\0")


# Each part of a signature alone (pitfalls 10, 13, 15)


def test_another_message_fails_the_proof_alone(made: Group, plain: Signature) -> None:
    assert failed(made.verifier.verify(plain, message=MESSAGE + b"!")) == ["daa.proof"]


@pytest.mark.parametrize("field", ["c", "s"])
def test_a_changed_number_fails_the_proof_alone(made: Group, plain: Signature, field: str) -> None:
    wrong = changed(plain, **{field: (getattr(plain, field) + 1) % N})
    assert failed(made.verifier.verify(wrong, message=MESSAGE)) == ["daa.proof"]


def test_a_changed_nonce_fails_the_proof_alone(made: Group, plain: Signature) -> None:
    wrong = changed(plain, nonce=encode_scalar(7))
    assert failed(made.verifier.verify(wrong, message=MESSAGE)) == ["daa.proof"]


@pytest.mark.parametrize("field", ["r", "t"])
def test_a_changed_credential_point_fails_the_credential_alone(
    made: Group, plain: Signature, field: str
) -> None:
    wrong = changed(plain, **{field: multiply(getattr(plain, field), 2)})
    assert failed(made.verifier.verify(wrong, message=MESSAGE)) == ["daa.credential"]


def test_another_issuer_fails_the_credential_alone(plain: Signature) -> None:
    other = DaaVerifier(new_group().public)
    assert failed(other.verify(plain, message=MESSAGE)) == ["daa.credential"]


@pytest.mark.parametrize(
    ("signed", "asked", "expected"),
    [
        (None, None, []),
        (BASENAME, BASENAME, []),
        (None, BASENAME, ["daa.proof", "daa.basename"]),
        (BASENAME, None, ["daa.proof", "daa.basename"]),
        (BASENAME, b"verifier.invalid", ["daa.proof"]),
    ],
)
def test_a_pseudonym_is_there_exactly_when_it_is_asked_for(
    made: Group, signed: bytes | None, asked: bytes | None, expected: list[str]
) -> None:
    signature = made.sign(basename=signed)
    assert failed(made.verifier.verify(signature, message=MESSAGE, basename=asked)) == expected


def test_the_pseudonym_of_another_member_fails_the_proof(made: Group, named: Signature) -> None:
    other = new_group().sign(basename=BASENAME)
    wrong = changed(named, pseudonym=other.pseudonym)
    assert failed(made.verifier.verify(wrong, message=MESSAGE, basename=BASENAME)) == ["daa.proof"]


def test_an_empty_basename_is_neither_signed_nor_verified(made: Group, plain: Signature) -> None:
    with pytest.raises(UsageError, match="an empty basename"):
        made.sign(basename=b"")
    with pytest.raises(UsageError, match="an empty basename"):
        made.verifier.verify(plain, message=MESSAGE, basename=b"")


@given(st.binary(min_size=356, max_size=421))
@settings(max_examples=30)
def test_any_bytes_are_no_signature(data: bytes) -> None:
    with pytest.raises(FormatError, match="signature"):
        Signature.from_bytes(data)


# Two wrong equations that cancel (pitfall 14)


def cancelling(made: Group) -> Signature:
    """Return a signature whose proof holds and whose equations are both wrong, and cancel."""
    x, y = made.secret.x, made.secret.y
    key = SoftwareKey.generate()
    secret = decode_scalar(key.to_bytes(), field="sk")
    s_point = multiply(GENERATOR_1, random_scalar())
    w, r = multiply(s_point, secret), multiply(GENERATOR_1, random_scalar())
    # y·R − S + T − x·(R + W) = 0, with y·R ≠ S
    t = sum_of_multiples([(add(r, w), x), (s_point, 1), (negate(r), y)])
    proof = key.prove(base=s_point, public=w, message=MESSAGE)
    return Signature(c=proof.c, s=proof.s, r=r, s_point=s_point, t=t, w=w, nonce=proof.nonce)


def test_two_wrong_equations_do_not_cancel(made: Group, monkeypatch) -> None:
    forged = cancelling(made)
    assert failed(made.verifier.verify(forged, message=MESSAGE)) == ["daa.credential"]
    # Without a random factor they would: what the test above rests on.
    monkeypatch.setattr(verify_module, "_randomiser", lambda: integer(1))
    assert failed(made.verifier.verify(forged, message=MESSAGE)) == []


def test_a_wrong_signature_does_not_cancel_with_another_in_a_batch(made: Group) -> None:
    # R + D in one and R − D in the other leave the sum over both as it was.
    first, second = made.sign(), made.sign()
    shift = multiply(GENERATOR_1, 99)
    wrong = [
        changed(first, r=add(first.r, shift)),
        changed(second, r=add(second.r, negate(shift))),
    ]
    for signatures, expected in (([first, second], []), (wrong, ["daa.credential"])):
        items = [SignedMessage(signature=one, message=MESSAGE) for one in signatures]
        assert [failed(result) for result in made.verifier.verify_batch(items)] == [expected] * 2


def test_an_equation_does_not_cancel_with_the_same_one_of_another_signature(made: Group) -> None:
    # R + D with T + xD, and R − D with T − xD: of each signature only e(R, Y) = e(S, P₂) is wrong.
    shift = multiply(GENERATOR_1, 99)
    wrong = []
    for signature, by in ((made.sign(), shift), (made.sign(), negate(shift))):
        r, t = add(signature.r, by), add(signature.t, multiply(by, made.secret.x))
        wrong.append(SignedMessage(signature=changed(signature, r=r, t=t), message=MESSAGE))
    results = made.verifier.verify_batch(wrong)
    assert [failed(result) for result in results] == [["daa.credential"]] * 2


def test_a_batch_finds_the_wrong_ones_and_gives_the_single_verdicts(made: Group) -> None:
    items = [
        SignedMessage(signature=made.sign(b"%d" % number), message=b"%d" % number)
        for number in range(12)
    ]
    stranger = new_group()
    items[3] = SignedMessage(signature=items[3].signature, message=b"another")
    items[7] = SignedMessage(signature=stranger.sign(b"7"), message=b"7")
    items[11] = SignedMessage(signature=made.sign(b"11", BASENAME), message=b"11")
    batch = [failed(result) for result in made.verifier.verify_batch(items)]
    single = [failed(made.verifier.verify(i.signature, message=i.message)) for i in items]
    assert batch == single
    wrong = {3: ["daa.proof"], 7: ["daa.credential"], 11: ["daa.proof", "daa.basename"]}
    assert batch == [wrong.get(number, []) for number in range(12)]
    assert made.verifier.verify_batch([]) == ()


# The issuer's key


def test_an_issuer_key_without_its_proof_is_told_apart(made: Group, plain: Signature) -> None:
    bare = DaaVerifier(made.public.group).verify(plain, message=MESSAGE)
    assert bare.verdict is Outcome.PASSED
    assert bare.checks[0].id == "daa.issuer_proof"
    assert bare.checks[0].outcome is Outcome.NOT_COVERED


@pytest.mark.parametrize("field", ["c", "sx", "sy"])
def test_a_wrong_proof_of_the_issuer_is_refused(made: Group, plain: Signature, field) -> None:
    public = made.public
    assert check_issuer_key(public)
    wrong = changed(public, **{field: (getattr(public, field) + 1) % N})  # type: ignore[arg-type]
    assert isinstance(wrong, IssuerPublicKey)
    assert failed(DaaVerifier(wrong).verify(plain, message=MESSAGE)) == ["daa.issuer_proof"]


# Dialects of TPMs


def with_dialect(made: Group, dialect: Dialect) -> Signature:
    """Return a signature made as TPMs of that dialect make it."""
    key = made.key
    blind, k = random_scalar(), random_scalar()
    points = [multiply(p, blind) for p in (made.credential.a, made.credential.b)]
    t, w = multiply(made.credential.c, blind), multiply(made.credential.d, blind)
    secret = decode_scalar(key.to_bytes(), field="sk")
    digest = hash_to_scalar(
        proof_preimage(commitment=multiply(points[1], k), base=points[1], public=w, message=MESSAGE)
    )
    c = digest if dialect is Dialect.ECHOED_DIGEST else random_scalar()
    s = (k + c * secret) % N
    return Signature(c=c, s=s, r=points[0], s_point=points[1], t=t, w=w, nonce=encode_scalar(c))


def test_the_older_dialect_holds_and_is_named(made: Group) -> None:
    signature = with_dialect(made, Dialect.ECHOED_DIGEST)
    result = made.verifier.verify(signature, message=MESSAGE)
    assert (failed(result), result.dialect) == ([], Dialect.ECHOED_DIGEST)
    assert got(result, "daa.proof") == "dialect: echoed digest"
    assert failed(made.verifier.verify(signature, message=b"other")) == ["daa.proof"]
    loose = changed(signature, nonce=encode_scalar(5))
    assert failed(made.verifier.verify(loose, message=MESSAGE)) == ["daa.proof"]


def test_a_challenge_of_the_tpm_s_own_is_named_and_refused(made: Group) -> None:
    result = made.verifier.verify(with_dialect(made, Dialect.OWN_CHALLENGE), message=MESSAGE)
    assert failed(result) == ["daa.proof"]
    assert result.dialect is Dialect.OWN_CHALLENGE
    assert "anybody could have made this" in result.checks[1].detail


# Freshness and framing (pitfalls 17, 18)


def test_a_framed_message_is_of_one_purpose_nonce_and_payload_only() -> None:
    framed = {
        framed_message(purpose=purpose, nonce=nonce, payload=payload)
        for purpose in ("a", "ab")
        for nonce in (b"b", b"bc", b"c")
        for payload in (b"", b"c", b"cd")
    }
    assert len(framed) == 18
    with pytest.raises(UsageError, match="one is empty"):
        framed_message(purpose="a", nonce=b"", payload=b"c")


def test_a_replayed_signature_finds_its_nonce_used(made: Group) -> None:
    nonces: SessionStore[str] = SessionStore()
    token = nonces.open("a nonce of the verifier")
    message = framed_message(purpose="test", nonce=bytes.fromhex(token), payload=b"evidence")
    signature = made.sign(message)

    def accept() -> bool:
        nonces.take(token)
        return failed(made.verifier.verify(signature, message=message)) == []

    assert accept()
    with pytest.raises(SessionUsed, match="used already"):
        accept()


def test_a_signature_over_an_old_nonce_fails(made: Group) -> None:
    old, new = (framed_message(purpose="t", nonce=n, payload=b"p") for n in (b"1", b"2"))
    signature = made.sign(old)
    assert failed(made.verifier.verify(signature, message=old)) == []
    assert failed(made.verifier.verify(signature, message=new)) == ["daa.proof"]


# What links, and what must not (pitfalls 8, 9, 23)


def test_two_signatures_share_nothing_but_the_pseudonym(made: Group) -> None:
    first, second = (made.sign(basename=BASENAME) for _ in range(2))
    fields = ("c", "s", "r", "s_point", "t", "w", "nonce")
    assert all(getattr(first, name) != getattr(second, name) for name in fields)
    assert first.pseudonym == second.pseudonym
    assert made.sign(basename=b"another").pseudonym != first.pseudonym


def test_the_random_number_of_a_proof_is_new_each_time_and_uniform(made: Group) -> None:
    # s − c·sk is the number k: never twice, and over the whole range.
    secret = decode_scalar(made.key.to_bytes(), field="sk")
    numbers = []
    for _ in range(400):
        proof = made.key.prove(base=GENERATOR_1, public=made.key.public, message=MESSAGE)
        numbers.append(int((proof.s - proof.c * secret) % N))
    assert len(set(numbers)) == 400
    counts = [sum(number * 8 // int(N) == part for number in numbers) for part in range(8)]
    # 50 expected in each eighth; 6 standard deviations are 40.
    assert all(10 <= count <= 90 for count in counts), counts
    low_bits = sum(number & 1 for number in numbers)
    assert 140 <= low_bits <= 260


# Claims about the machine (pitfall 21)

PCRS = {"sha256": {7: bytes(32)}}


@pytest.mark.parametrize(
    ("assurance", "reason"),
    [
        (None, "unknown keys"),
        (KeyAssurance(protection=KeyProtection.SOFTWARE), "keys that are bound to no state"),
        (KeyAssurance(protection=KeyProtection.CERTIFIED_TPM), "keys that are bound to no state"),
        (
            KeyAssurance(
                protection=KeyProtection.TPM,
                pcr_policy=policy_pcr_digest({"sha256": {7: b"\1" * 32}}),
            ),
            "[0-9a-f]{64}",
        ),
    ],
)
def test_pcr_values_that_a_host_had_signed_are_not_believed(
    made: Group, plain: Signature, assurance, reason: str
) -> None:
    verifier = DaaVerifier(made.public, assurance=assurance)
    result = verifier.verify(plain, message=MESSAGE, pcr_policy=policy_pcr_digest(PCRS))
    assert failed(result) == ["daa.pcr_state"]
    assert re.fullmatch(reason, got(result, "daa.pcr_state"))


def test_pcr_values_that_every_key_is_bound_to_are_believed(made: Group, plain) -> None:
    policy = policy_pcr_digest(PCRS)
    bound = KeyAssurance(protection=KeyProtection.TPM, pcr_policy=policy, selection="sha256:7")
    verifier = DaaVerifier(made.public, assurance=bound)
    result = verifier.verify(plain, message=MESSAGE, pcr_policy=policy)
    assert failed(result) == []
    assert "When it signed, the PCRs sha256:7 had the values" in result.facts["proves"]
    assert "may be a program" in result.facts["leaves_open"]


@pytest.mark.parametrize(
    ("protection", "proven", "open_"),
    [
        (KeyProtection.SOFTWARE, 1, "copied to any number of machines"),
        (KeyProtection.TPM, 2, "whoever runs it can read the key"),
        (KeyProtection.CERTIFIED_TPM, 3, "no TPM holds"),
    ],
)
def test_each_kind_of_key_says_what_it_proves(protection, proven: int, open_: str) -> None:
    assurance = KeyAssurance(protection=protection)
    assert len(assurance.proves()) == proven
    assert any(open_ in line for line in assurance.leaves_open())
    assert KeyAssurance.from_dict(assurance.as_dict()) == assurance


# Revocation (pitfalls 11, 12)


def lists(made: Group, named: Signature) -> tuple[RevokedKeys, RevokedPseudonyms]:
    keys = RevokedKeys.from_bytes(SoftwareKey.generate().to_bytes() + made.key.to_bytes())
    pseudonyms = RevokedPseudonyms(
        pseudonyms=frozenset({encode_g1(named.pseudonym)}), basename=BASENAME
    )
    return keys, pseudonyms


@pytest.mark.parametrize("others", [0, 30, 350])
def test_a_revoked_key_is_found_in_lists_of_every_size(made: Group, plain, others: int) -> None:
    without = RevokedKeys(keys=tuple(random_scalar() for _ in range(others + 1)))
    with_it = without.with_key(decode_scalar(made.key.to_bytes(), field="sk"))
    for revoked, expected in ((without, []), (with_it, ["daa.revoked_keys"])):
        verifier = DaaVerifier(made.public, revoked_keys=revoked)
        assert failed(verifier.verify(plain, message=MESSAGE)) == expected


def test_a_revoked_pseudonym_is_refused_under_its_basename(made: Group, named) -> None:
    _, pseudonyms = lists(made, named)
    verifier = DaaVerifier(made.public, revoked_pseudonyms=pseudonyms)
    result = verifier.verify(named, message=MESSAGE, basename=BASENAME)
    assert failed(result) == ["daa.revoked_pseudonyms"]
    other = RevokedPseudonyms(
        pseudonyms=frozenset({encode_g1(basename_point(b"x").point)}), basename=BASENAME
    )
    verifier = DaaVerifier(made.public, revoked_pseudonyms=other)
    assert failed(verifier.verify(named, message=MESSAGE, basename=BASENAME)) == []


def test_a_list_of_another_basename_fails_instead_of_doing_nothing(made: Group, named) -> None:
    _, pseudonyms = lists(made, named)
    verifier = DaaVerifier(made.public, revoked_pseudonyms=pseudonyms)
    elsewhere = made.sign(basename=b"elsewhere")
    result = verifier.verify(elsewhere, message=MESSAGE, basename=b"elsewhere")
    assert failed(result) == ["daa.revoked_pseudonyms"]
    assert "of another basename" in got(result, "daa.revoked_pseudonyms")


def test_a_list_of_pseudonyms_fails_a_signature_without_one(made: Group, named, plain) -> None:
    _, pseudonyms = lists(made, named)
    verifier = DaaVerifier(made.public, revoked_pseudonyms=pseudonyms)
    result = verifier.verify(plain, message=MESSAGE)
    assert failed(result) == ["daa.revoked_pseudonyms"]
    assert "cannot be applied" in got(result, "daa.revoked_pseudonyms")


@pytest.mark.parametrize("bare", [False, True])
def test_lists_are_read_as_they_were_written(made: Group, named, bare: bool) -> None:
    keys, pseudonyms = lists(made, named)
    assert RevokedKeys.from_bytes(keys.to_bytes(bare=bare)) == keys
    read = RevokedPseudonyms.from_bytes(pseudonyms.to_bytes(bare=bare))
    assert read.pseudonyms == pseudonyms.pseudonyms
    assert read.basename == (None if bare else BASENAME)


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        (RevokedKeys, lambda _: b"", "an empty list"),
        (RevokedKeys, lambda d: d[:-1], "not a whole number of 32-byte entries"),
        (RevokedKeys, lambda d: d + b"\n", "not a whole number of 32-byte entries"),
        (RevokedKeys, lambda d: d[:32] + bytes(32), "entry 1: zero"),
        (RevokedKeys, lambda d: d[:32] + b"\xff" * 32, "entry 1: not below the group order"),
        (RevokedKeys, lambda _: b'{"format": "excise-da', "neither JSON nor a bare list"),
        (RevokedPseudonyms, lambda _: b"", "an empty list"),
        (RevokedPseudonyms, lambda d: d[:-1], "not a whole number of 65-byte entries"),
        (RevokedPseudonyms, lambda _: IDENTITY, "entry 0: the identity"),
    ],
)
def test_a_bare_list_that_cannot_be_read_is_an_error(made, named, kind, change, reason) -> None:
    keys, pseudonyms = lists(made, named)
    good = (keys if kind is RevokedKeys else pseudonyms).to_bytes(bare=True)
    assert kind.from_bytes(good)
    with pytest.raises(FormatError, match=reason):
        kind.from_bytes(change(good))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"count": 2', b'"count": 1', "2 entries, announced are 1"),
        (b"secret-keys", b"pseudonyms", "not of secret-keys"),
        (b"revocation/1", b"revocation/2", "not a list of the form"),
        (b'"entries"', b'"entry"', "no list of entries"),
        (b'"entries": [\n  "', b'"entries": [\n  "zz', "not hexadecimal"),
    ],
)
def test_a_json_list_that_cannot_be_read_is_an_error(made, named, old, new, reason) -> None:
    good = lists(made, named)[0].to_bytes()
    assert old in good
    with pytest.raises(FormatError, match=reason):
        RevokedKeys.from_bytes(good.replace(old, new))


def test_a_list_of_another_count_than_announced_is_an_error(made: Group, named) -> None:
    keys, _ = lists(made, named)
    for bare in (True, False):
        data = keys.to_bytes(bare=bare)
        assert len(RevokedKeys.from_bytes(data, count=2).keys) == 2
        with pytest.raises(FormatError, match="2 entries, announced were 0"):
            RevokedKeys.from_bytes(data, count=0)


def test_a_bare_list_may_begin_with_a_brace() -> None:
    for first in (0x7B, 0x7C):
        data = bytes([first]) + b"\xff" * 31
        assert RevokedKeys.from_bytes(data).to_bytes(bare=True) == data


def test_an_empty_list_is_one_only_where_it_says_so() -> None:
    empty = RevokedKeys(keys=())
    assert RevokedKeys.from_bytes(empty.to_bytes()) == empty
    with pytest.raises(UsageError, match="an empty list has no bare form"):
        empty.to_bytes(bare=True)
