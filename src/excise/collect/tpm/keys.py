"""Objects that the bench works with: made once below the null primary, kept as saved contexts.

They live in the null hierarchy: no owner's secret is needed, and nothing of them outlives the next
TPM reset. Between uses they are out of the TPM, which may hold three objects only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from excise.collect.tpm import capability
from excise.collect.tpm.codes import (
    BN_P256,
    ECC,
    ECDAA,
    ECDSA,
    HMAC,
    KEYED_HASH,
    NIST_P256,
    NULL,
    RH_NULL,
    RSA,
    RSASSA,
    SHA256,
)
from excise.collect.tpm.sessions import NONCE_BYTES, NullPrimary
from excise.collect.tpm.wire import PASSWORD, Link, Reader, Reply, sized, u16, u32

# fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, noDA.
_OWN: Final = 0x00000472
_SIGN: Final = 0x00040000
_DECRYPT: Final = 0x00020000
_TRIAL: Final = 3
_POLICY: Final = 1
SECRET: Final = bytes(range(32))


def ecc_template(curve: int, scheme: bytes, attributes: int) -> bytes:
    """Return TPMT_PUBLIC of an ECC key with SHA-256 as name algorithm."""
    return (
        u16(ECC) + u16(SHA256) + u32(_OWN | attributes) + sized(b"")
        + u16(NULL) + scheme + u16(curve) + u16(NULL) + sized(b"") + sized(b"")
    )  # fmt: skip


def rsa_template(scheme: bytes, attributes: int) -> bytes:
    """Return TPMT_PUBLIC of an RSA-2048 key."""
    return (
        u16(RSA) + u16(SHA256) + u32(_OWN | attributes) + sized(b"")
        + u16(NULL) + scheme + u16(2048) + u32(0) + sized(b"")
    )  # fmt: skip


def rsa_primary_template() -> bytes:
    """Return TPMT_PUBLIC of an RSA-2048 storage key, as storage root keys are."""
    attributes = u32(0x00030472)
    return (
        u16(RSA) + u16(SHA256) + attributes + sized(b"")
        + u16(0x0006) + u16(128) + u16(0x0043) + u16(NULL) + u16(2048) + u32(0) + sized(b"")
    )  # fmt: skip


KEYS: Final = {
    "ecdsa": ecc_template(NIST_P256, u16(ECDSA) + u16(SHA256), _SIGN),
    "ecdh": ecc_template(NIST_P256, u16(NULL), _DECRYPT),
    "ecdaa": ecc_template(BN_P256, u16(ECDAA) + u16(SHA256) + u16(0), _SIGN),
    "rsassa": rsa_template(u16(RSASSA) + u16(SHA256), _SIGN),
    "hmac": u16(KEYED_HASH) + u16(SHA256) + u32(_OWN | _SIGN) + sized(b"") + u16(HMAC)
    + u16(SHA256) + sized(b""),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """An object below the null primary.

    Attributes:
        private: TPM2B_PRIVATE, marshalled.
        public: TPM2B_PUBLIC, marshalled.
        context: TPMS_CONTEXT, as ContextLoad takes it.
    """

    private: bytes
    public: bytes
    context: bytes


class KeyRing:
    """Makes and loads the objects of one bench."""

    def __init__(self, link: Link, primary: NullPrimary) -> None:
        self._link = link
        self._primary = primary
        self._children: dict[str, Child] = {}

    def child(self, name: str) -> Child:
        """Return an object by name, made when it is first asked for.

        Raises:
            TpmError: The TPM cannot make it.
        """
        if name not in self._children:
            self._children[name] = self._make(name)
        return self._children[name]

    @contextmanager
    def parent(self) -> Iterator[int]:
        """Give the handle of the null primary, and flush it afterwards."""
        with self._context(self._primary.context) as handle:
            yield handle

    @contextmanager
    def loaded(self, name: str) -> Iterator[int]:
        """Give the handle of an object, and flush it afterwards."""
        with self._context(self.child(name).context) as handle:
            yield handle

    def create(self, parent: int, name: str) -> Reply:
        """Send Create for an object below a parent that is loaded."""
        sensitive, template = sized(b"") + sized(b""), KEYS.get(name, b"")
        if name == "sealed":
            sensitive = sized(b"") + sized(SECRET)
            template = sealed_template(policy_digest(self._link))
        return self._link.send(
            "Create",
            handles=u32(parent),
            parameters=sized(sensitive) + sized(template) + sized(b"") + u32(0),
            authority=PASSWORD,
        )

    def load(self, parent: int, child: Child) -> Reply:
        """Send Load for an object below a parent that is loaded."""
        return self._link.send(
            "Load",
            handles=u32(parent),
            parameters=child.private + child.public,
            authority=PASSWORD,
            makes_handle=True,
        )

    def _make(self, name: str) -> Child:
        link = self._link
        with self.parent() as parent:
            reader = Reader(self.create(parent, name).parameters, command="Create")
            private, public = sized(reader.sized()), sized(reader.sized())
            loaded = self.load(parent, Child(private=private, public=public, context=b""))
            try:
                context = link.send("ContextSave", handles=u32(loaded.handle)).parameters
            finally:
                link.flush(loaded.handle)
        return Child(private=private, public=public, context=context)

    @contextmanager
    def _context(self, context: bytes) -> Iterator[int]:
        handle = self._link.send("ContextLoad", parameters=context, makes_handle=True).handle
        try:
            yield handle
        finally:
            self._link.flush(handle)


def sealed_template(policy: bytes) -> bytes:
    """Return TPMT_PUBLIC of sealed data that a policy alone opens: fixedTPM, fixedParent, noDA."""
    return u16(KEYED_HASH) + u16(SHA256) + u32(0x00000412) + sized(policy) + u16(NULL) + sized(b"")


def policy_digest(link: Link) -> bytes:
    """Return the digest of the policy "PCR 0 is as it is now", as a trial session gives it."""
    session, _ = start_policy(link, kind=_TRIAL)
    try:
        policy_pcr(link, session)
        reply = link.send("PolicyGetDigest", handles=u32(session))
        return Reader(reply.parameters, command="PolicyGetDigest").sized()
    finally:
        link.flush(session)


def start_policy(link: Link, *, kind: int = _POLICY) -> tuple[int, Reply]:
    """Start a policy session without salt; return its handle and the answer."""
    reply = link.send(
        "StartAuthSession",
        handles=u32(RH_NULL) + u32(RH_NULL),
        parameters=sized(bytes(NONCE_BYTES)) + sized(b"") + bytes([kind]) + u16(NULL) + u16(SHA256),
        makes_handle=True,
    )
    return reply.handle, reply


def policy_pcr(link: Link, session: int) -> Reply:
    """Bind a policy session to the value of PCR 0 in the first bank in use."""
    bank = next(iter(capability.digest_banks(link)))
    return link.send(
        "PolicyPCR",
        handles=u32(session),
        parameters=sized(b"") + capability.selection({bank: (0,)}),
    )
