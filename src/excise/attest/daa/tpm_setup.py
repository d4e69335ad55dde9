"""Make a member's key in a TPM: what the TPM must offer, the key's template, where it is kept.

The key is an ECDAA key on BN_P256 with SHA-256 under the owner's storage root, for signing only,
and can leave neither the TPM nor its parent. Bound to PCRs, `userWithAuth` is clear and its policy
is one PolicyPCR over the values they have when the key is made.

Source: TCG, TPM Library Part 2, 12.2 (public areas); Part 3, TPM2_Create, TPM2_EvictControl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from excise.collect.tpm import open_tpm, patiently, read_pcrs
from excise.errors import HostError, UsageError
from excise.evidence.daa.assurance import policy_pcr_digest
from excise.evidence.tpm_structures import ECC_CURVES

if TYPE_CHECKING:
    from tpm2_pytss import ESAPI, TPM2B_PUBLIC

Selection = Mapping[str, Sequence[int]]

DEFAULT_HANDLE: Final = 0x81008DAA
"""Persistent handle in the owner's range."""

_BN_P256: Final = 0x0010
_ECDAA: Final = 0x001A
_TPM_CC_COMMIT: Final = 0x018B
_OWN: Final = 0x00000032  # fixedTPM, fixedParent, sensitiveDataOrigin
_USER_WITH_AUTH: Final = 0x00000040
_RESTRICTED: Final = 0x00010000
_SIGN: Final = 0x00040000


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmCapability:
    """Whether a TPM can hold a member's key.

    Attributes:
        curves: TPM_ECC_CURVE numbers.
        algorithms: TPM_ALG_ID numbers.
        commands: TPM_CC numbers.
    """

    curves: tuple[int, ...]
    algorithms: frozenset[int]
    commands: frozenset[int]

    def missing(self) -> tuple[str, ...]:
        """Return what the TPM lacks, in words; empty when it lacks nothing."""
        found = []
        if _BN_P256 not in self.curves:
            have = (
                ", ".join(ECC_CURVES.get(curve, f"{curve:#06x}") for curve in self.curves) or "none"
            )
            found.append(f"the curve BN_P256 (it has: {have})")
        if _ECDAA not in self.algorithms:
            found.append("the scheme ECDAA")
        if _TPM_CC_COMMIT not in self.commands:
            found.append("the command TPM2_Commit")
        return tuple(found)

    def require(self, *, tcti: str) -> None:
        """Raise unless the TPM can hold a member's key.

        Raises:
            HostError: Naming what is missing.
        """
        missing = self.missing()
        if missing:
            raise HostError(
                f"this TPM cannot hold a member's key: it lacks {', and '.join(missing)}",
                source=tcti,
                hint="Many TPMs of recent years do; another TPM, or a key in software, may do",
            )


def probe(tcti: str) -> TpmCapability:
    """Return what a TPM offers of what ECDAA needs.

    Raises:
        HostError: No TPM or no tpm2-pytss.
    """
    with open_tpm(tcti) as tpm:
        return _probe(tpm)


def _probe(tpm: ESAPI) -> TpmCapability:
    from tpm2_pytss import TPM2_CAP

    _, curves = patiently(lambda: tpm.get_capability(TPM2_CAP.ECC_CURVES, 0, 128))
    _, algorithm = patiently(lambda: tpm.get_capability(TPM2_CAP.ALGS, _ECDAA, 1))
    _, command = patiently(lambda: tpm.get_capability(TPM2_CAP.COMMANDS, _TPM_CC_COMMIT, 1))
    return TpmCapability(
        curves=tuple(int(curve) for curve in curves.data.eccCurves),
        algorithms=frozenset(int(entry.alg) for entry in algorithm.data.algorithms),
        commands=frozenset(int(entry) & 0xFFFF for entry in command.data.command),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmKeyPlace:
    """Where a member's key is, and what its use takes.

    Attributes:
        tcti: The TPM, as for tpm2-tools.
        handle: Persistent handle.
        public: TPM2B_PUBLIC.
        selection: The PCRs it is bound to; empty for none.
    """

    tcti: str
    handle: int
    public: bytes
    selection: Selection


def create_key(
    tcti: str,
    *,
    handle: int = DEFAULT_HANDLE,
    bound_to: Selection | None = None,
    quoting: bool = False,
    clear: bool = False,
    replace: bool = False,
    owner_auth: bytes = b"",
) -> TpmKeyPlace:
    """Make a member's key in a TPM and keep it at a persistent handle.

    Args:
        tcti: The TPM, as for tpm2-tools.
        handle: Where to keep it.
        bound_to: PCRs whose present values the key is bound to; None for none.
        quoting: Whether to make it restricted, so that it can quote and signs nothing that could
            be taken for a quote.
        clear: Whether to clear the TPM before: every key of its owner is lost.
        replace: Whether an object at the handle may be deleted.
        owner_auth: Password of the owner hierarchy.

    Raises:
        HostError: No TPM, no ECDAA in it, or a handle that is taken.
        UsageError: A handle outside the owner's range, or a PCR selection that names nothing.
    """
    if not 0x81000000 <= handle <= 0x817FFFFF:
        raise UsageError(f"{handle:#010x} is no persistent handle of the owner (0x81000000…)")
    policy, selection = b"", dict(bound_to or {})
    if selection:
        values = read_pcrs(tcti, selection=selection)
        policy = policy_pcr_digest({bank: values[bank] for bank in selection})
    with open_tpm(tcti) as tpm:
        from tpm2_pytss import ESYS_TR

        _probe(tpm).require(tcti=tcti)
        if clear:
            patiently(lambda: tpm.clear(ESYS_TR.LOCKOUT))
        tpm.tr_set_auth(ESYS_TR.OWNER, owner_auth)
        _make_room(tpm, handle, replace=replace, tcti=tcti)
        public = _create(tpm, handle, _template(policy, quoting=quoting))
    return TpmKeyPlace(tcti=tcti, handle=handle, public=public, selection=selection)


def _make_room(tpm: ESAPI, handle: int, *, replace: bool, tcti: str) -> None:
    from tpm2_pytss import ESYS_TR, TPM2_CAP

    _, held = patiently(lambda: tpm.get_capability(TPM2_CAP.HANDLES, handle, 1))
    if handle not in [int(entry) for entry in held.data.handles]:
        return
    if not replace:
        raise HostError(
            f"the persistent handle {handle:#010x} is taken",
            source=tcti,
            hint="Choose another (--handle), or have it replaced (--replace)",
        )
    old = tpm.tr_from_tpmpublic(handle)
    patiently(lambda: tpm.evict_control(ESYS_TR.OWNER, old, handle))


def _create(tpm: ESAPI, handle: int, wanted: TPM2B_PUBLIC) -> bytes:
    from tpm2_pytss import ESYS_TR, TPM2B_PUBLIC, TPM2B_SENSITIVE_CREATE

    template = TPM2B_PUBLIC.parse("ecc256:null:aes128cfb", objectAttributes=_storage_attributes())
    root, *_ = patiently(
        lambda: tpm.create_primary(TPM2B_SENSITIVE_CREATE(), template, ESYS_TR.OWNER)
    )
    try:
        private, public, *_ = patiently(lambda: tpm.create(root, TPM2B_SENSITIVE_CREATE(), wanted))
        key = patiently(lambda: tpm.load(root, private, public))
    finally:
        tpm.flush_context(root)
    try:
        patiently(lambda: tpm.evict_control(ESYS_TR.OWNER, key, handle))
    finally:
        tpm.flush_context(key)
    return bytes(public.marshal())


def _storage_attributes() -> Any:
    from tpm2_pytss import TPMA_OBJECT

    return (
        TPMA_OBJECT.FIXEDTPM
        | TPMA_OBJECT.FIXEDPARENT
        | TPMA_OBJECT.SENSITIVEDATAORIGIN
        | TPMA_OBJECT.USERWITHAUTH
        | TPMA_OBJECT.NODA
        | TPMA_OBJECT.RESTRICTED
        | TPMA_OBJECT.DECRYPT
    )


def _template(policy: bytes, *, quoting: bool) -> TPM2B_PUBLIC:
    """Return the public area asked for: sign only, from this TPM, never to leave it."""
    from tpm2_pytss import TPM2B_PUBLIC

    attributes = _OWN | _SIGN | (0 if policy else _USER_WITH_AUTH) | _RESTRICTED * quoting
    area = b"".join(
        (
            bytes.fromhex("0023000b"),  # TPM_ALG_ECC, nameAlg SHA-256
            attributes.to_bytes(4, "big"),
            len(policy).to_bytes(2, "big") + policy,
            bytes.fromhex("0010001a000b0000"),  # no symmetric, ECDAA with SHA-256, count 0
            bytes.fromhex("00100010"),  # BN_P256, no KDF
            bytes(4),  # x and y, which the TPM chooses
        )
    )
    public, _ = TPM2B_PUBLIC.unmarshal(len(area).to_bytes(2, "big") + area)
    return public


def find_key(tcti: str, *, handle: int) -> TpmKeyPlace:
    """Return the place of a key that is in the TPM already, such as one another program made.

    Raises:
        HostError: No TPM, or no key at the handle.
    """
    with open_tpm(tcti) as tpm:
        object_ = patiently(lambda: tpm.tr_from_tpmpublic(handle))
        public, *_ = patiently(lambda: tpm.read_public(object_))
        return TpmKeyPlace(tcti=tcti, handle=handle, public=bytes(public.marshal()), selection={})


def selection_text(selection: Selection) -> str:
    """Return a PCR selection as tpm2-tools write it: `sha256:0,7`."""
    return "+".join(f"{bank}:{','.join(map(str, held))}" for bank, held in selection.items())
