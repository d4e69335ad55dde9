"""COSE messages: COSE_Sign1, COSE_Sign and COSE_Mac0, verified over the bytes they came in.

Steps, each with its check: (1) strict encoding, (2) tag, (3) structure, (4) the algorithm, from the
protected header alone, (5) nothing critical that is not understood, (6) a key that fits the
algorithm, (7) the signature's length, (8) the signature over the received protected and payload
bytes. A key inside the message (`x5chain`, `x5bag`) is never used.

Nothing forbids a signature whose s is in the upper half of the group order: both halves verify, as
FIPS 186-5 and RFC 9053 say. So a token's bytes must never serve as its identity.

Sources: RFC 9052 (structures), RFC 9053 and RFC 9864 (algorithms).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from excise.errors import FormatError, UsageError
from excise.evidence.cbor import Tag, read_cbor, write_cbor
from excise.evidence.checks import Check, Outcome
from excise.evidence.cose_key import (
    CURVE_BYTES,
    VerificationKey,
    der_signature,
    raw_signature,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TAG_SIGN1: Final = 18
TAG_MAC0: Final = 17
TAG_SIGN: Final = 98
TAG_NAMES: Final = {
    16: "COSE_Encrypt0",
    TAG_MAC0: "COSE_Mac0",
    TAG_SIGN1: "COSE_Sign1",
    61: "CWT",
    96: "COSE_Encrypt",
    97: "COSE_Mac",
    TAG_SIGN: "COSE_Sign",
}

_ALG, _CRIT = 1, 2
# Header parameters that change what is signed only if they are understood: RFC 9052 section 3.1.
_UNDERSTOOD: Final = frozenset({1, 2, 3, 4, 8})


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A COSE algorithm.

    Attributes:
        id: Its number in the COSE registry.
        name: Its name there.
        kind: Key kind it needs: `EC`, `OKP`, `RSA` or `secret`.
        hash: Hash it uses; empty for EdDSA.
        curve: Curve of its keys where RFC 9864 or RFC 9783 fixes one; empty for any.
        tag_bytes: Length of a MAC's tag.
    """

    id: int
    name: str
    kind: str
    hash: str = ""
    curve: str = ""
    tag_bytes: int = 0


ALGORITHMS: Final[Mapping[int, Algorithm]] = {
    known.id: known
    for known in (
        Algorithm(id=-7, name="ES256", kind="EC", hash="sha256", curve="P-256"),
        Algorithm(id=-35, name="ES384", kind="EC", hash="sha384", curve="P-384"),
        Algorithm(id=-36, name="ES512", kind="EC", hash="sha512", curve="P-521"),
        Algorithm(id=-9, name="ESP256", kind="EC", hash="sha256", curve="P-256"),
        Algorithm(id=-51, name="ESP384", kind="EC", hash="sha384", curve="P-384"),
        Algorithm(id=-52, name="ESP512", kind="EC", hash="sha512", curve="P-521"),
        Algorithm(id=-8, name="EdDSA", kind="OKP"),
        Algorithm(id=-19, name="Ed25519", kind="OKP", curve="Ed25519"),
        Algorithm(id=-53, name="Ed448", kind="OKP", curve="Ed448"),
        Algorithm(id=-37, name="PS256", kind="RSA", hash="sha256"),
        Algorithm(id=-38, name="PS384", kind="RSA", hash="sha384"),
        Algorithm(id=-39, name="PS512", kind="RSA", hash="sha512"),
        Algorithm(id=4, name="HMAC 256/64", kind="secret", hash="sha256", tag_bytes=8),
        Algorithm(id=5, name="HMAC 256/256", kind="secret", hash="sha256", tag_bytes=32),
        Algorithm(id=6, name="HMAC 384/384", kind="secret", hash="sha384", tag_bytes=48),
        Algorithm(id=7, name="HMAC 512/512", kind="secret", hash="sha512", tag_bytes=64),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoseOptions:
    """What a verifier accepts; the defaults are those of a PSA or CCA token.

    Attributes:
        tags: Which of COSE_Sign1 (18), COSE_Mac0 (17) and COSE_Sign (98) may come.
        require_tag: Whether a message without its tag is refused.
        unprotected_algorithm: Whether the unprotected header may name the algorithm, which
            anybody on the way can change.
        bind_curve: Whether ES256, ES384 and ES512 fix the curve, as RFC 9864 says they should.
        external_aad: Data that is signed along and not part of the message.
    """

    tags: Collection[int] = (TAG_SIGN1,)
    require_tag: bool = True
    unprotected_algorithm: bool = False
    bind_curve: bool = True
    external_aad: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One signature or MAC of a message, with its own headers.

    Attributes:
        protected: Encoded protected header, as received.
        headers: Its parameters.
        unprotected: Parameters that nothing protects.
        value: r ‖ s, the signature, or the MAC's tag.
    """

    protected: bytes
    headers: Mapping[Any, Any]
    unprotected: Mapping[Any, Any]
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CoseMessage:
    """A parsed message; nothing in it is trusted before its checks have passed.

    Attributes:
        tag: 17, 18 or 98; also set where the message came without.
        protected: Encoded protected header of the body, as received.
        headers: Parameters of the protected header.
        payload: The signed bytes, as received.
        signatures: One for COSE_Sign1 and COSE_Mac0.
    """

    tag: int
    protected: bytes
    headers: Mapping[Any, Any]
    payload: bytes
    signatures: tuple[Signature, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoseResult:
    """What became of a message.

    Attributes:
        message: The parsed message; None when it could not be read.
        checks: Every check, in order.
    """

    message: CoseMessage | None
    checks: tuple[Check, ...]

    @property
    def verified(self) -> bool:
        """Return whether every check passed, the signature's among them."""
        return self.message is not None and all(
            check.outcome is Outcome.PASSED for check in self.checks
        )


DEFAULT_OPTIONS: Final = CoseOptions()


def read_message(data: bytes, *, options: CoseOptions = DEFAULT_OPTIONS) -> CoseMessage:
    """Return the parts of a message.

    Raises:
        FormatError: `field` says what is wrong: `CBOR`, `tag` or `structure`.
    """
    if not data:
        raise FormatError("nothing: no byte", field="CBOR")
    tag = first_tag(data)
    if options.require_tag if tag is None else tag not in options.tags:
        allowed = ", ".join(f"{one} ({TAG_NAMES[one]})" for one in sorted(options.tags))
        got = "no tag" if tag is None else f"tag {tag}"
        name = f" ({TAG_NAMES[tag]})" if tag in TAG_NAMES else ""
        raise FormatError(f"{got}{name}, where {allowed} is expected", field="tag")
    value = read_cbor(data, tags=options.tags)
    if isinstance(value, Tag):
        return _message(value.number, value.value)
    return _message(next(iter(options.tags)), value)


def first_tag(data: bytes) -> int | None:
    """Return the tag that an encoding begins with, None where it begins with another item."""
    first = data[0] if data else 0
    if 0xC0 <= first < 0xD8:
        return first & 31
    size = {0xD8: 1, 0xD9: 2, 0xDA: 4, 0xDB: 8}.get(first, 0)
    return int.from_bytes(data[1 : 1 + size], "big") if size else None


def _message(tag: int, body: Any) -> CoseMessage:
    if not isinstance(body, list) or len(body) != 4:
        raise FormatError("not an array of four items", field="structure")
    protected, unprotected, payload, last = body
    headers = _headers(protected)
    if not isinstance(unprotected, dict):
        raise FormatError("the unprotected header is no map", field="structure")
    if not isinstance(payload, bytes):
        raise FormatError("the payload is detached or no byte string", field="structure")
    if headers.keys() & unprotected.keys():
        raise FormatError("a header parameter stands in both headers", field="structure")
    if tag == TAG_SIGN:
        signatures = _signatures(last)
    elif isinstance(last, bytes):
        signatures = (
            Signature(protected=protected, headers=headers, unprotected=unprotected, value=last),
        )
    else:
        raise FormatError("the signature is no byte string", field="structure")
    return CoseMessage(
        tag=tag, protected=protected, headers=headers, payload=payload, signatures=signatures
    )


def _signatures(value: Any) -> tuple[Signature, ...]:
    if not isinstance(value, list) or not value:
        raise FormatError("there are no signatures", field="structure")
    found = []
    for one in value:
        if not isinstance(one, list) or len(one) != 3 or not isinstance(one[2], bytes):
            raise FormatError("a COSE_Signature is not [bytes, map, bytes]", field="structure")
        if not isinstance(one[1], dict):
            raise FormatError("the unprotected header is no map", field="structure")
        found.append(
            Signature(protected=one[0], headers=_headers(one[0]), unprotected=one[1], value=one[2])
        )
    return tuple(found)


def _headers(encoded: Any) -> Mapping[Any, Any]:
    if not isinstance(encoded, bytes):
        raise FormatError("the protected header is no byte string", field="structure")
    if not encoded:
        return {}
    # Times in a signed CoRIM's metadata are byte strings here, so no tag can occur.
    headers = read_cbor(encoded)
    if not isinstance(headers, dict):
        raise FormatError("the protected header is no map", field="structure")
    return headers


def verify_message(
    data: bytes, key: VerificationKey, *, options: CoseOptions = DEFAULT_OPTIONS
) -> CoseResult:
    """Return every check made on a message, and its parts where it could be read.

    Args:
        data: The encoded message.
        key: The key the caller trusts for it.
        options: What is accepted.
    """
    try:
        message = read_message(data, options=options)
    except FormatError as error:
        return CoseResult(message=None, checks=reading_checks(error))
    return CoseResult(message=message, checks=verify_read(message, key, options=options))


_READING_CLAUSES: Final = {
    "cose.encoding": "RFC 9052 section 9; RFC 8949 section 5",
    "cose.tag": "RFC 9052 section 2",
    "cose.structure": "RFC 9052 sections 3 and 4",
}
READ_PASSED: Final = tuple(
    Check(id=name, outcome=Outcome.PASSED, got="as expected", clause=clause)
    for name, clause in _READING_CLAUSES.items()
)
"""The checks of a message that could be read."""


def reading_checks(error: FormatError) -> tuple[Check, ...]:
    """Return the checks of a message that could not be read, the failed one with its reason."""
    failed = {"tag": "cose.tag", "structure": "cose.structure"}.get(error.field or "")
    failed = failed or "cose.encoding"
    where = f" at offset {error.offset}" if error.offset is not None else ""
    made = ["cose.tag", "cose.encoding", "cose.structure"]  # the first byte tells the tag
    checks = []
    for name, clause in _READING_CLAUSES.items():
        if name == failed:
            outcome, got = Outcome.FAILED, f"{error.reason}{where}"
        elif made.index(name) < made.index(failed):
            outcome, got = Outcome.PASSED, ""
        else:
            outcome, got = Outcome.NOT_COVERED, "not reached"
        checks.append(Check(id=name, outcome=outcome, got=got, clause=clause))
    return tuple(checks)


def verify_read(
    message: CoseMessage, key: VerificationKey, *, options: CoseOptions = DEFAULT_OPTIONS
) -> tuple[Check, ...]:
    """Return the checks of a message that was read; a COSE_Sign holds if one signature does."""
    best: list[Check] = []
    for signature in message.signatures:
        made = _verify_one(message, signature, key, options)
        if all(check.outcome is Outcome.PASSED for check in made):
            return (*READ_PASSED, *made)
        best = best or made
    return (*READ_PASSED, *best)


def _verify_one(
    message: CoseMessage, signature: Signature, key: VerificationKey, options: CoseOptions
) -> list[Check]:
    algorithm, checks = _algorithm_checks(message, signature, options)
    checks.append(_critical_check(message, signature))
    if algorithm is None:
        checks += [
            Check(id=name, outcome=Outcome.NOT_COVERED, got="no algorithm to check with")
            for name in ("cose.key", "cose.signature_length", "cose.signature")
        ]
        return checks
    fits = _fits(algorithm, key, bind_curve=options.bind_curve)
    checks.append(
        Check(
            id="cose.key",
            outcome=Outcome.PASSED if fits else Outcome.FAILED,
            expected=_needed_key(algorithm, bind_curve=options.bind_curve),
            got=str(key),
            clause="RFC 9053 section 2; RFC 9864",
        )
    )
    size = _signature_bytes(algorithm, key) if fits else 0
    long_enough = fits and len(signature.value) == size
    checks.append(
        Check(
            id="cose.signature_length",
            outcome=_outcome(long_enough) if fits else Outcome.NOT_COVERED,
            expected=f"{size} bytes" if fits else "",
            got=f"{len(signature.value)} bytes",
            clause="RFC 9053 section 2.1",
        )
    )
    checks.append(_signature_check(message, signature, algorithm, key, options, long_enough))
    return checks


def _outcome(condition: bool) -> Outcome:
    return Outcome.PASSED if condition else Outcome.FAILED


def _algorithm_checks(
    message: CoseMessage, signature: Signature, options: CoseOptions
) -> tuple[Algorithm | None, list[Check]]:
    named = signature.headers.get(_ALG)
    place = "protected header"
    if named is None and _ALG in signature.unprotected:
        named = signature.unprotected[_ALG] if options.unprotected_algorithm else None
        place = "unprotected header only"
    elif named is None:
        place = "no header"
    algorithm = ALGORITHMS.get(named) if type(named) is int else None
    signs = algorithm is not None and (algorithm.kind == "secret") == (message.tag == TAG_MAC0)
    got = f"{algorithm.name if algorithm else repr(named)}, in the {place}"
    check = Check(
        id="cose.algorithm",
        outcome=_outcome(signs),
        expected=f"an algorithm of {TAG_NAMES[message.tag]}, in the protected header",
        got=got if named is not None else f"none ({place})",
        clause="RFC 9052 section 3.1",
    )
    return algorithm if signs else None, [check]


def _critical_check(message: CoseMessage, signature: Signature) -> Check:
    unknown: list[str] = []
    for headers, unprotected in (
        (message.headers, {}),
        (signature.headers, signature.unprotected),
    ):
        named = headers.get(_CRIT, [] if _CRIT not in headers else None)
        if _CRIT in unprotected:
            unknown.append("crit in the unprotected header")
        elif not isinstance(named, list) or (_CRIT in headers and not named):
            unknown.append("crit is no list of parameters")
        else:
            unknown += [
                f"parameter {one!r}"
                for one in named
                if type(one) is not int or one not in _UNDERSTOOD or one not in headers
            ]
    return Check(
        id="cose.critical",
        outcome=_outcome(not unknown),
        expected="no critical parameter that is not understood",
        got=", ".join(dict.fromkeys(unknown)) or "none",
        clause="RFC 9052 section 3.1, crit",
    )


def _fits(algorithm: Algorithm, key: VerificationKey, *, bind_curve: bool) -> bool:
    if key.kind != algorithm.kind:
        return False
    if key.kind == "secret":
        return len(key.secret) >= 16
    bound = bind_curve or algorithm.id not in (-7, -35, -36)
    return not bound or algorithm.curve in ("", key.curve)


def _needed_key(algorithm: Algorithm, *, bind_curve: bool) -> str:
    if algorithm.kind == "secret":
        return f"a shared secret of at least 16 bytes for {algorithm.name}"
    curve = algorithm.curve if bind_curve else ""
    return f"a key of kind {algorithm.kind}{f' on {curve}' if curve else ''} for {algorithm.name}"


def _signature_bytes(algorithm: Algorithm, key: VerificationKey) -> int:
    if algorithm.kind == "secret":
        return algorithm.tag_bytes
    if algorithm.kind == "EC":
        return 2 * CURVE_BYTES[key.curve]
    if algorithm.kind == "OKP":
        return {"Ed25519": 64, "Ed448": 114}[key.curve]
    return (key.key.key_size + 7) // 8  # type: ignore[union-attr]


def _signature_check(
    message: CoseMessage,
    signature: Signature,
    algorithm: Algorithm,
    key: VerificationKey,
    options: CoseOptions,
    checkable: bool,
) -> Check:
    clause = "RFC 9052 sections 4.4 and 6.3"
    if not checkable:
        got = "not checked: key or length do not fit"
        return Check(id="cose.signature", outcome=Outcome.NOT_COVERED, got=got, clause=clause)
    signed = _signed_bytes(message, signature, external_aad=options.external_aad)
    holds = _VERIFIERS[algorithm.kind](algorithm, key, signed, signature.value)
    return Check(
        id="cose.signature",
        outcome=_outcome(holds),
        expected="verifies over the received protected header and payload",
        got=f"{'verifies' if holds else 'does not verify'} ({algorithm.name})",
        clause=clause,
    )


def _signed_bytes(message: CoseMessage, signature: Signature, *, external_aad: bytes) -> bytes:
    """Return the bytes that a signature or MAC covers: Sig_structure or MAC_structure.

    The protected headers and the payload are taken as received, never encoded anew; an empty
    protected header counts as a zero-length string.
    """
    body = _string(2, _canonical_empty(message.protected))
    tail = _string(2, external_aad) + _string(2, message.payload)
    if message.tag == TAG_SIGN:
        sign = _string(2, _canonical_empty(signature.protected))
        return b"\x85" + _string(3, b"Signature") + body + sign + tail
    context = b"MAC0" if message.tag == TAG_MAC0 else b"Signature1"
    return b"\x84" + _string(3, context) + body + tail


def _canonical_empty(protected: bytes) -> bytes:
    """Return h'' for h'a0': RFC 9052 section 4.4 wants the empty map as a zero-length string."""
    return b"" if protected == b"\xa0" else protected


def _string(major: int, value: bytes) -> bytes:
    """Return a definite-length string in its shortest form."""
    size = len(value)
    if size < 24:
        return bytes([major << 5 | size]) + value
    for info, width in ((24, 1), (25, 2), (26, 4)):
        if size < 1 << 8 * width:
            return bytes([major << 5 | info]) + size.to_bytes(width, "big") + value
    raise UsageError("more than 4 GiB cannot be signed", source="COSE")


@cache
def _hash(name: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    return {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}[name]


@cache
def _ecdsa(name: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return ECDSA(_hash(name))


def _verify_ecdsa(algorithm: Algorithm, key: Any, signed: bytes, value: bytes) -> bool:
    signature = der_signature(value)
    return _holds(lambda: key.key.verify(signature, signed, _ecdsa(algorithm.hash)))


def _verify_eddsa(_algorithm: Algorithm, key: Any, signed: bytes, value: bytes) -> bool:
    return _holds(lambda: key.key.verify(value, signed))


def _verify_pss(algorithm: Algorithm, key: Any, signed: bytes, value: bytes) -> bool:
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS

    chosen = _hash(algorithm.hash)
    padding = PSS(MGF1(chosen), chosen.digest_size)
    return _holds(lambda: key.key.verify(value, signed, padding, chosen))


def _verify_hmac(algorithm: Algorithm, key: Any, signed: bytes, value: bytes) -> bool:
    made = hmac.digest(key.secret, signed, algorithm.hash)
    return hmac.compare_digest(made[: algorithm.tag_bytes], value)


_VERIFIERS: Final[Mapping[str, Callable[[Algorithm, Any, bytes, bytes], bool]]] = {
    "EC": _verify_ecdsa,
    "OKP": _verify_eddsa,
    "RSA": _verify_pss,
    "secret": _verify_hmac,
}


def _holds(verify: Callable[[], None]) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        verify()
    except InvalidSignature:
        return False
    return True


def sign1(
    payload: bytes,
    key: EllipticCurvePrivateKey,
    *,
    headers: Mapping[int, Any] | None = None,
) -> bytes:
    """Return a tagged COSE_Sign1 with the algorithm that fits the key, in the protected header.

    Args:
        payload: The bytes to sign.
        key: A private key on P-256, P-384 or P-521.
        headers: Further protected parameters.

    Raises:
        UsageError: The key is on another curve.
    """
    algorithm = ALGORITHMS[_algorithm_of(key)]
    protected, tbs = prepare_sign1(payload, algorithm=algorithm.id, headers=headers)
    value = raw_signature(key.sign(tbs, _ecdsa(algorithm.hash)), curve=algorithm.curve)
    return assemble_sign1(protected, payload, value)


def _algorithm_of(key: EllipticCurvePrivateKey) -> int:
    curves = {"secp256r1": -7, "secp384r1": -35, "secp521r1": -36}
    if key.curve.name not in curves:
        raise UsageError(f"no COSE algorithm signs with a key on {key.curve.name}", source="key")
    return curves[key.curve.name]


def prepare_sign1(
    payload: bytes, *, algorithm: int, headers: Mapping[int, Any] | None = None
) -> tuple[bytes, bytes]:
    """Return the encoded protected header and the bytes to be signed, for a signer elsewhere."""
    protected = write_cbor({_ALG: algorithm, **(headers or {})})
    tbs = b"\x84\x6aSignature1" + _string(2, protected) + b"\x40" + _string(2, payload)
    return protected, tbs


def assemble_sign1(protected: bytes, payload: bytes, signature: bytes) -> bytes:
    """Return the tagged message made of its parts."""
    return (
        b"\xd2\x84" + _string(2, protected) + b"\xa0" + _string(2, payload) + _string(2, signature)
    )
