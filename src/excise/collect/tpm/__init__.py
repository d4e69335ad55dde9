"""Read PCRs from a TPM and have it sign them, over any TCTI, leaving nothing behind in it.

Uses tpm2-pytss (the extra `tpm`). The attestation key is a primary key made for one quote and
flushed after it: in the endorsement hierarchy it is the same key each time, by which a verifier
can know the TPM again; in the null hierarchy it lasts until the next TPM reset and identifies
nothing. Nothing here judges a quote: that is `excise.evidence.quote`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from excise.collect.tpm.codes import PATIENCE
from excise.collect.tpm.library import quiet_tss
from excise.errors import HostError, UsageError

if TYPE_CHECKING:
    from tpm2_pytss import ESAPI, TPM2B_PUBLIC, TPML_PCR_SELECTION

KeyScheme = Literal["ecdsa", "rsassa", "rsapss"]
Hierarchy = Literal["endorsement", "null", "owner"]
Selection = Mapping[str, Sequence[int]]
PcrBanks = Mapping[str, Mapping[int, bytes]]

_BANKS: Final = {
    "sha1": 0x0004,
    "sha256": 0x000B,
    "sha384": 0x000C,
    "sha512": 0x000D,
    "sm3_256": 0x0012,
}
_BANK_NAMES: Final = {number: name for name, number in _BANKS.items()}

MAX_QUALIFYING_DATA_BYTES: Final = 64
"""TPM2B_DATA is two bytes longer than the TPM's longest digest: 34 bytes with SHA-256 alone."""

QUOTE_ATTEMPTS: Final = 16
"""How often a quote is repeated because a PCR moved between signing and reading."""

RETRY_DEADLINE_S: Final = 30.0
"""How long a TPM may go on answering "later" before it counts as unusable."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedQuote:
    """One TPM2_Quote and what is needed to verify it.

    Attributes:
        attest: TPMS_ATTEST, the bytes that were signed.
        signature: TPMT_SIGNATURE.
        public: TPM2B_PUBLIC of the attestation key.
        pcrs: Value by index by bank; their digest is the quoted one.
        hierarchy: Hierarchy of the attestation key.
        attempts: How many quotes it took until no PCR moved.
    """

    attest: bytes
    signature: bytes
    public: bytes
    pcrs: PcrBanks
    hierarchy: str
    attempts: int

    def files(self) -> Mapping[str, bytes]:
        """Return the evidence by file name, as it is put into a capture.

        `quote.attest`, `quote.signature` and `quote.public` are the TPM's own structures;
        `quote.pcrs` has a line `bank:index value` for each PCR.
        """
        rows = (
            f"{bank}:{index} {value.hex()}\n"
            for bank, held in self.pcrs.items()
            for index, value in held.items()
        )
        return MappingProxyType(
            {
                "quote.attest": self.attest,
                "quote.signature": self.signature,
                "quote.public": self.public,
                "quote.pcrs": "".join(rows).encode("ascii"),
            }
        )


def allocated_pcrs(tcti: str) -> Mapping[str, tuple[int, ...]]:
    """Return the PCR indices of every bank that is in use; SHA-1 is often switched off.

    Banks of hashes unknown here are left out, since nothing here could select them.

    Raises:
        HostError: No TPM or no tpm2-pytss.
    """
    with open_tpm(tcti) as tpm:
        return _allocated(tpm)


def _allocated(tpm: ESAPI) -> Mapping[str, tuple[int, ...]]:
    from tpm2_pytss import TPM2_CAP

    _, capability = patiently(lambda: tpm.get_capability(TPM2_CAP.PCRS, 0, 16))
    entries = capability.data.assignedPCR
    banks: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        bank = _BANK_NAMES.get(int(entry.hash))
        indices = tuple(index for _, index in _labels([entry])) if bank is not None else ()
        if bank is not None and indices:
            banks[bank] = indices
    return MappingProxyType(banks)


def pcr_reader(tpm: ESAPI) -> Callable[[], PcrBanks]:
    """Return a function that reads all PCRs of an open TPM, while none of them changes.

    Args:
        tpm: As `open_tpm` gives it; it may do other work between two reads.

    Raises:
        HostError: The TPM does not tell which PCRs it has; from the function: they never rest.
    """
    selection = _allocated(tpm)
    return lambda: _freeze(read_consistently(tpm, selection))


def read_pcrs(tcti: str, *, selection: Selection) -> PcrBanks:
    """Return PCR values by index by bank, all read while none of them changed.

    Args:
        tcti: Where the TPM is, as for tpm2-tools: `device:/dev/tpmrm0`, `swtpm:path=…`.
        selection: PCR indices by bank.

    Raises:
        UsageError: The selection names no PCR or an unknown bank.
        HostError: No TPM, no tpm2-pytss, a bank the TPM does not have, or PCRs that never rest.
    """
    with open_tpm(tcti) as tpm:
        return _freeze(read_consistently(tpm, _checked(selection)))


def quote(
    tcti: str,
    *,
    qualifying_data: bytes,
    selection: Selection,
    key: KeyScheme = "ecdsa",
    hierarchy: Hierarchy = "endorsement",
) -> SignedQuote:
    """Return a quote over PCRs by a fresh attestation key, and the values it was made over.

    The values are read before and after signing; the set whose digest was signed is returned, and
    when a PCR moved in between so that neither fits, the TPM is asked again.

    Args:
        tcti: Where the TPM is, as for tpm2-tools.
        qualifying_data: What the quote is bound to: a nonce or a digest, not empty.
        selection: PCR indices by bank.
        key: Scheme of the key: P-256 with ECDSA, or RSA-2048; always with SHA-256.
        hierarchy: Where the key is made; `endorsement` gives the same key each time.

    Raises:
        UsageError: Empty or too long qualifying data, or a selection that names nothing.
        HostError: No TPM, no tpm2-pytss, a key or bank the TPM cannot do, or PCRs that never rest.
    """
    if not 1 <= len(qualifying_data) <= MAX_QUALIFYING_DATA_BYTES:
        raise UsageError(
            f"qualifying data of {len(qualifying_data)} bytes; a TPM takes 1 to "
            f"{MAX_QUALIFYING_DATA_BYTES}"
        )
    wanted = _checked(selection)
    with open_tpm(tcti) as tpm, attestation_key(tpm, key, hierarchy) as (handle, public):
        before = read_consistently(tpm, wanted)
        for attempt in range(1, QUOTE_ATTEMPTS + 1):
            attest, signature, digest = sign_quote(tpm, handle, wanted, qualifying_data)
            after = read_consistently(tpm, wanted)
            for values in (before, after):
                if _digest(values, wanted) == digest:
                    return SignedQuote(
                        attest=attest,
                        signature=signature,
                        public=public,
                        pcrs=_freeze(values),
                        hierarchy=hierarchy,
                        attempts=attempt,
                    )
            before = after
    raise HostError(
        f"a PCR moved during each of {QUOTE_ATTEMPTS} quotes",
        source=tcti,
        hint="Wait until the system is quiet, or leave PCR 10 out",
    )


def _checked(selection: Selection) -> dict[str, tuple[int, ...]]:
    wanted: dict[str, tuple[int, ...]] = {}
    for bank, indices in selection.items():
        if bank not in _BANKS:
            raise UsageError(f"unknown PCR bank {bank!r}", hint=f"Known: {', '.join(_BANKS)}")
        chosen = tuple(sorted(set(indices)))
        if chosen and not 0 <= chosen[0] <= chosen[-1] <= 23:
            raise UsageError(f"PCR {chosen[0 if chosen[0] < 0 else -1]} is not within 0..23")
        if chosen:
            wanted[bank] = chosen
    if not wanted:
        raise UsageError("the PCR selection is empty")
    return wanted


def _freeze(values: PcrBanks) -> PcrBanks:
    return MappingProxyType({bank: MappingProxyType(dict(held)) for bank, held in values.items()})


def _digest(values: PcrBanks, wanted: Mapping[str, tuple[int, ...]]) -> bytes:
    # The keys made here all sign with SHA-256, and the quote's PCR digest uses the same hash.
    held = b"".join(values[bank][index] for bank, indices in wanted.items() for index in indices)
    return hashlib.sha256(held).digest()


@contextmanager
def open_tpm(tcti: str) -> Iterator[ESAPI]:
    """Open a TPM for a block of commands, and name what it refuses.

    Args:
        tcti: Where the TPM is, as for tpm2-tools.

    Raises:
        HostError: No TPM or no tpm2-pytss, or a command in the block that the TPM refuses.
    """
    with quiet_tss():
        import tpm2_pytss

        try:
            tpm = tpm2_pytss.ESAPI(tcti)
        except (tpm2_pytss.TSS2_Exception, RuntimeError, ValueError) as error:
            raise HostError(
                f"no TPM answers: {error}",
                source=tcti,
                hint="Name it as for tpm2-tools, such as device:/dev/tpmrm0",
            ) from None
        try:
            yield tpm
        except tpm2_pytss.TSS2_Exception as error:
            raise HostError(f"the TPM refuses: {error}", source=tcti) from None
        finally:
            tpm.close()


def patiently(call: Callable[[], _T], *, deadline_s: float = RETRY_DEADLINE_S) -> _T:
    """Return the result of a TPM command, repeated while the TPM asks for it."""
    from tpm2_pytss import TSS2_Exception

    pause_s = 0.005
    until = time.monotonic() + deadline_s
    while True:
        try:
            return call()
        except TSS2_Exception as error:
            if int(error.rc) & 0xFFFF not in PATIENCE or time.monotonic() >= until:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)


def tpm_selection(wanted: Mapping[str, Sequence[int]]) -> TPML_PCR_SELECTION:
    """Return a PCR selection as the TSS takes it, banks in the order given."""
    from tpm2_pytss import TPML_PCR_SELECTION, TPMS_PCR_SELECTION

    entries = []
    for bank, indices in wanted.items():
        bitmap = bytearray(3)
        for index in indices:
            bitmap[index // 8] |= 1 << index % 8
        entries.append(
            TPMS_PCR_SELECTION(hash=_BANKS[bank], sizeofSelect=3, pcrSelect=bytes(bitmap))
        )
    return TPML_PCR_SELECTION(entries)


def read_consistently(
    tpm: ESAPI, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[int, bytes]]:
    """Return PCR values of an open TPM, all read while none of them changed."""
    for _ in range(QUOTE_ATTEMPTS):
        values, counters = _read_once(tpm, wanted)
        if len(counters) == 1:
            return {bank: dict(sorted(held.items())) for bank, held in values.items()}
    raise HostError(f"a PCR moved during each of {QUOTE_ATTEMPTS} reads")


def _read_once(
    tpm: ESAPI, wanted: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, dict[int, bytes]], set[int]]:
    """Return the values, and the PCR update counters seen; more than one means they moved."""
    values: dict[str, dict[int, bytes]] = {bank: {} for bank in wanted}
    counters: set[int] = set()
    while True:
        left = {
            bank: [index for index in indices if index not in values[bank]]
            for bank, indices in wanted.items()
        }
        left = {bank: indices for bank, indices in left.items() if indices}
        if not left:
            return values, counters
        chosen = tpm_selection(left)
        counter, selection, digests = patiently(partial(tpm.pcr_read, chosen))
        counters.add(int(counter))
        labels = _labels(selection)
        if not labels or len(labels) != len(digests):
            missing = ", ".join(left)
            raise HostError(f"the TPM has no such PCRs in its banks: {missing}")
        for (bank, index), digest in zip(labels, digests, strict=True):
            values[bank][index] = bytes(digest)


def _labels(selection: Any) -> list[tuple[str, int]]:
    return [
        (_BANK_NAMES[int(entry.hash)], 8 * place + bit)
        for entry in selection
        for place, byte in enumerate(bytes(entry.pcrSelect)[: int(entry.sizeofSelect)])
        for bit in range(8)
        if byte >> bit & 1
    ]


@contextmanager
def attestation_key(
    tpm: ESAPI, scheme: KeyScheme, hierarchy: Hierarchy
) -> Iterator[tuple[Any, bytes]]:
    """Make a restricted signing key, and flush it whatever happens.

    Raises:
        HostError: If the TPM makes no such key.
    """
    from tpm2_pytss import ESYS_TR, TPM2B_SENSITIVE_CREATE, TSS2_Exception

    roots = {
        "endorsement": ESYS_TR.ENDORSEMENT,
        "null": ESYS_TR.RH_NULL,
        "owner": ESYS_TR.OWNER,
    }
    template = _key_template(scheme)
    try:
        handle, public, *_ = patiently(
            lambda: tpm.create_primary(TPM2B_SENSITIVE_CREATE(), template, roots[hierarchy])
        )
    except TSS2_Exception as error:
        raise HostError(
            f"the TPM makes no {scheme} key in the {hierarchy} hierarchy: {error}",
            hint="Another scheme, or the null hierarchy, may do",
        ) from None
    try:
        yield handle, public.marshal()
    finally:
        tpm.flush_context(handle)


def _key_template(scheme: KeyScheme) -> TPM2B_PUBLIC:
    from tpm2_pytss import TPM2B_PUBLIC, TPMA_OBJECT

    if scheme not in _TEMPLATES:
        raise UsageError(f"unknown key scheme {scheme!r}", hint=f"Known: {', '.join(_TEMPLATES)}")
    attributes = (
        TPMA_OBJECT.FIXEDTPM
        | TPMA_OBJECT.FIXEDPARENT
        | TPMA_OBJECT.SENSITIVEDATAORIGIN
        | TPMA_OBJECT.USERWITHAUTH
        | TPMA_OBJECT.RESTRICTED
        | TPMA_OBJECT.SIGN_ENCRYPT
    )
    return TPM2B_PUBLIC.parse(_TEMPLATES[scheme], objectAttributes=attributes)


_TEMPLATES: Final = {
    "ecdsa": "ecc256:ecdsa-sha256:null",
    "rsassa": "rsa2048:rsassa-sha256:null",
    "rsapss": "rsa2048:rsapss-sha256:null",
}


def sign_quote(
    tpm: ESAPI, handle: Any, wanted: Mapping[str, tuple[int, ...]], qualifying_data: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return TPMS_ATTEST, TPMT_SIGNATURE and the quoted PCR digest.

    Raises:
        HostError: If the TPM quotes other PCRs than asked.
    """
    from tpm2_pytss import TPM2B_DATA, TPMS_ATTEST

    selection, data = tpm_selection(wanted), TPM2B_DATA(qualifying_data)
    quoted, signature = patiently(lambda: tpm.quote(handle, selection, data))
    attest = bytes(quoted.attestationData)
    parsed, _ = TPMS_ATTEST.unmarshal(attest)
    info = parsed.attested.quote
    expected = [(bank, index) for bank, indices in wanted.items() for index in indices]
    if _labels(info.pcrSelect) != expected:
        raise HostError("the TPM quotes other PCRs than asked: a bank is not allocated")
    return attest, signature.marshal(), bytes(info.pcrDigest)
