"""The kernel's protected PCR extend, step by step: a salted session, and the HMACs of both ways.

The steps are those of drivers/char/tpm/tpm2-sessions.c: the context of an ECC P-256 primary of the
null hierarchy is loaded, a session is started with a salt that is encrypted to it, and the extend
carries an HMAC, as does its answer, which is checked. Sources: TCG TPM 2.0 Library, Part 1, 11.4.10
(KDFa, KDFe), 19.6 (sessions) and B.6, C.6 (salts).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from excise.collect.tpm.codes import (
    AES,
    CFB,
    ECC,
    NIST_P256,
    NULL,
    RH_NULL,
    SHA256,
)
from excise.collect.tpm.wire import PASSWORD, Link, Reader, Reply, sized, u16, u32
from excise.errors import HostError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

NONCE_BYTES: Final = 32
CONTINUE: Final = 0x01
# fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, noDA, restricted, decrypt.
NULL_PRIMARY_ATTRIBUTES: Final = 0x00030472
_CURVE_BYTES: Final = 32


class HmacMismatchError(HostError):
    """The HMAC of an answer is not the one that the session's key gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of the client's own work.

    Attributes:
        name: `salt`, `fill` (HMAC of the command) or `check` (HMAC of the answer).
        cpu_ns: Processor time of this thread.
    """

    name: str
    cpu_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NullPrimary:
    """The null hierarchy's ECC P-256 primary, as the kernel makes it at start.

    Attributes:
        context: TPMS_CONTEXT, as ContextLoad takes it.
        name: Name of the key: its hash algorithm and the hash of its public area.
        x: Coordinate of its public point.
        y: Coordinate of its public point.
    """

    context: bytes
    name: bytes
    x: bytes
    y: bytes


class HmacSession:
    """One HMAC session: authorises commands, and checks the HMAC of every answer.

    Attributes:
        handle: Its handle in the TPM.
        work: The client's pieces of work since they were last taken, in order.
    """

    def __init__(
        self, handle: int, *, key: bytes, nonce_tpm: bytes, keep: bool, source: str = ""
    ) -> None:
        self.handle = handle
        self.work: list[Work] = []
        self._key = key
        self._nonce_tpm = nonce_tpm
        self._nonce_caller = b""
        self._attributes = bytes([CONTINUE if keep else 0])
        self._source = source

    def authorise(self, command: int, handles: bytes, parameters: bytes) -> bytes:
        """Return TPMS_AUTH_COMMAND of a command on PCRs, whose names are their handles."""
        start = time.thread_time_ns()
        self._nonce_caller = os.urandom(NONCE_BYTES)
        digest = hashlib.sha256(u32(command) + handles + parameters).digest()
        code = self._hmac(digest, self._nonce_caller, self._nonce_tpm, self._attributes)
        area = u32(self.handle) + sized(self._nonce_caller) + self._attributes + sized(code)
        self.work.append(Work(name="fill", cpu_ns=time.thread_time_ns() - start))
        return area

    def verify(self, command: int, parameters: bytes, authorisation: bytes) -> None:
        """Check the HMAC of an answer, and take the TPM's new nonce from it.

        Raises:
            HmacMismatchError: It is not right, or there is none.
        """
        start = time.thread_time_ns()
        area = Reader(authorisation, command="an authorised command", source=self._source)
        nonce_tpm, attributes, code = area.sized(), area.take(1), area.sized()
        digest = hashlib.sha256(u32(0) + u32(command) + parameters).digest()
        expected = self._hmac(digest, nonce_tpm, self._nonce_caller, attributes)
        if not hmac.compare_digest(expected, code):
            raise HmacMismatchError(
                "the HMAC of the TPM's answer to a protected PCR_Extend is wrong: the answer was "
                "altered on its way, or another TPM gave it",
                source=self._source or None,
                hint="Nothing measured over this way can be trusted; look at what lies between",
            )
        self._nonce_tpm = nonce_tpm
        self.work.append(Work(name="check", cpu_ns=time.thread_time_ns() - start))

    def take_work(self) -> list[Work]:
        """Return the client's work since the last call, and forget it."""
        done, self.work = self.work, []
        return done

    def _hmac(self, digest: bytes, newer: bytes, older: bytes, attributes: bytes) -> bytes:
        # The PCR's own authorisation value is empty: the key is the session's alone.
        return hmac.digest(self._key, digest + newer + older + attributes, "sha256")


def null_primary_template() -> bytes:
    """Return TPMT_PUBLIC that the kernel makes its null primary with.

    TCG TPM v2.0 Provisioning Guidance, ECC storage root key, template H: empty unique points.
    """
    return (
        u16(ECC)
        + u16(SHA256)
        + u32(NULL_PRIMARY_ATTRIBUTES)
        + sized(b"")
        + u16(AES)
        + u16(128)
        + u16(CFB)
        + u16(NULL)
        + u16(NIST_P256)
        + u16(NULL)
        + sized(b"")
        + sized(b"")
    )


def make_null_primary(link: Link) -> tuple[NullPrimary, list[Reply]]:
    """Make the null primary, save its context and flush it, as the kernel does at start.

    Raises:
        HostError: The TPM cannot, or its answer is not the key that was asked for.
    """
    made = link.send(
        "CreatePrimary",
        handles=u32(RH_NULL),
        parameters=sized(sized(b"") + sized(b"")) + sized(null_primary_template()) + sized(b"")
        + u32(0),
        authority=PASSWORD,
        makes_handle=True,
    )  # fmt: skip
    try:
        saved = link.send("ContextSave", handles=u32(made.handle))
    finally:
        flushed = link.flush(made.handle)
    public = Reader(made.parameters, command="CreatePrimary", source=link.tcti).sized()
    template = null_primary_template()
    fixed = template[: -len(sized(b"") + sized(b""))]
    point = Reader(public[len(fixed) :], command="CreatePrimary", source=link.tcti)
    if not public.startswith(fixed):
        raise HostError("the TPM made another key than was asked for", source=link.tcti)
    x, y = point.sized(), point.sized()
    name = u16(SHA256) + hashlib.sha256(public).digest()
    return NullPrimary(context=saved.parameters, name=name, x=x, y=y), [made, saved, flushed]


def start_session(
    link: Link, primary: NullPrimary, *, keep: bool
) -> tuple[HmacSession, list[Reply], list[Work]]:
    """Start an HMAC session with an encrypted salt, as tpm2_start_auth_session() does.

    Args:
        link: The TPM.
        primary: Key that the salt is encrypted to.
        keep: Whether the session outlives its first command.

    Returns:
        The session, the TPM's answers, and the client's own work.
    """
    start = time.thread_time_ns()
    salt, encrypted = make_salt(primary)
    salting = Work(name="salt", cpu_ns=time.thread_time_ns() - start)
    loaded = link.send("ContextLoad", parameters=primary.context, makes_handle=True)
    nonce = os.urandom(NONCE_BYTES)
    try:
        started = link.send(
            "StartAuthSession",
            handles=u32(loaded.handle) + u32(RH_NULL),
            parameters=sized(nonce) + sized(encrypted) + b"\0" + u16(AES) + u16(128) + u16(CFB)
            + u16(SHA256),
            makes_handle=True,
        )  # fmt: skip
    finally:
        flushed = link.flush(loaded.handle)
    start = time.thread_time_ns()
    nonce_tpm = Reader(started.parameters, command="StartAuthSession", source=link.tcti).sized()
    key = kdfa(salt, b"ATH", nonce_tpm, nonce)
    session = HmacSession(started.handle, key=key, nonce_tpm=nonce_tpm, keep=keep, source=link.tcti)
    keying = Work(name="session key", cpu_ns=time.thread_time_ns() - start)
    return session, [loaded, started, flushed], [salting, keying]


def make_salt(primary: NullPrimary) -> tuple[bytes, bytes]:
    """Return a salt, and TPMS_ECC_POINT from which the primary's TPM alone finds it: ECDH, KDFe.

    Raises:
        HostError: The primary's point is not on its curve.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    own = ec.generate_private_key(ec.SECP256R1())
    shared = own.exchange(ec.ECDH(), _public_key(primary))
    numbers = own.public_key().public_numbers()
    x, y = (value.to_bytes(_CURVE_BYTES, "big") for value in (numbers.x, numbers.y))
    theirs = primary.x.rjust(_CURVE_BYTES, b"\0")
    salt = hashlib.sha256(u32(1) + shared + b"SECRET\0" + x + theirs).digest()
    return salt, sized(x) + sized(y)


def kdfa(key: bytes, label: bytes, context_u: bytes, context_v: bytes) -> bytes:
    """Return 256 bits of KDFa with SHA-256: one round of SP 800-108 in counter mode."""
    message = u32(1) + label + b"\0" + context_u + context_v + u32(256)
    return hmac.digest(key, message, "sha256")


def _public_key(primary: NullPrimary) -> EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    x, y = int.from_bytes(primary.x, "big"), int.from_bytes(primary.y, "big")
    try:
        return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    except ValueError as error:
        raise HostError(
            f"the TPM's null primary is no key: {error}",
            hint="The TPM, or the way to it, is broken",
        ) from error
