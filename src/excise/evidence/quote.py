"""Strict verification of TPM2 quotes: every check is made and listed, whatever the others gave.

The steps, in their order; the code below is labelled with their numbers.

 1. The key is one the caller trusts (not answered here), a restricted, non-decrypting signing key
    that cannot leave its TPM, of sufficient size, with the name and qualified name it should have.
 2. The signature's scheme fits the key, and the key's own scheme where it is bound to one.
 3. The scheme's hash is SHA-256 or better; SHA-1 only on request.
 4. The signature holds over all bytes given.
 5. The magic says that a TPM made the structure; a restricted key signs nothing else with it.
 6. The type is a quote, and nothing follows the structure.
 7. The qualifying data is the verifier's, and not empty.
 8. The selection names exactly the PCRs whose values will be used, no more and no fewer.
 9. The PCR digest is the one of those values, by the *scheme's* hash, in the selection's order.
10. Clock and counters have not gone back since an earlier quote by the same key, the clock is
    safe, the firmware has not changed.
11. Logs are then replayed until they reach the proven PCR values (`excise.evidence.ima`).

Sources: TCG TPM 2.0 Library, Part 1 (36, timing components; 37, attestation) and Part 2
(TPMS_ATTEST, TPMS_QUOTE_INFO). What goes wrong when a step is left out: CVE-2022-0317 (selection),
CVE-2024-29038 (magic), CVE-2024-29039 (labels of the PCR values).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from excise.errors import FormatError
from excise.evidence.attestation_key import AttestationKey, read_attestation_key
from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.pcr import (
    BANK_SIZES_BYTES,
    PcrSelection,
    canonical_bank,
    format_selection,
)
from excise.evidence.quote_signature import signature_fault
from excise.evidence.quote_time import counter_advance, time_checks
from excise.evidence.tpm_structures import (
    TPM_GENERATED_VALUE,
    TPM_ST_ATTEST_QUOTE,
    Attest,
    TpmPublic,
    TpmSignature,
    digest_of,
    parse_attest,
    parse_public,
    parse_signature,
    qualified_name,
)

HIERARCHIES: Final = MappingProxyType(
    {
        "owner": 0x40000001,
        "null": 0x40000007,
        "endorsement": 0x4000000B,
        "platform": 0x4000000C,
    }
)
"""TPM_RH handle of each hierarchy; the qualified name of its primary keys starts from it."""

_REQUIRED_ATTRIBUTES: Final = ("fixedTPM", "restricted", "sign")
_WEAK_HASHES: Final = ("sha1",)
_STRONG_HASHES: Final = frozenset(BANK_SIZES_BYTES) - set(_WEAK_HASHES)
_MIN_RSA_BITS: Final = 2048
_MIN_ECC_BITS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteAppraisal(AppraisalResult):
    """What a quote proves.

    Attributes:
        attest: The parsed structure; trust it only when the verdict is PASSED.
        hash_algorithm: Hash of the signature scheme, which is also the hash of the PCR digest.
        pcrs: Value by index by bank, proven by the quote; empty unless the verdict is PASSED.
    """

    attest: Attest
    hash_algorithm: str
    pcrs: Mapping[str, Mapping[int, bytes]]

    @property
    def verdict(self) -> Outcome:
        """Return the verdict; a sound quote compared with no PCR value is NOT_COVERED."""
        verdict = verdict_of(self.checks)
        if verdict is Outcome.PASSED and not self.pcrs:
            return Outcome.NOT_COVERED
        return verdict

    def proves(self, pcrs: Mapping[str, Mapping[int, bytes]]) -> bool:
        """Return whether these are the quoted values, given that the quote itself is sound.

        For a search: a log's replay gives candidates for its PCR, and the one for which this is
        true was in the TPM when it signed.
        """
        return (
            Outcome.FAILED not in {check.outcome for check in self.checks}
            and _selected(pcrs) == _as_set(self.attest.pcr_select or ())
            and self.attest.pcr_digest
            == quote_digest(self.attest.pcr_select or (), pcrs, algorithm=self.hash_algorithm)
        )


def quote_digest(
    selection: PcrSelection, pcrs: Mapping[str, Mapping[int, bytes]], *, algorithm: str
) -> bytes:
    """Return the digest a TPM puts into a quote over these values.

    Args:
        selection: Banks and indices in the quote's order.
        pcrs: Value by index by bank; must hold every selected PCR.
        algorithm: Hash of the signature scheme (not of the bank).

    Raises:
        FormatError: A value has not its bank's size, so that it could pass for parts of two.

    Source: TPM Library Part 3, TPM2_Quote; Part 4, PCRComputeCurrentDigest.
    """
    for bank, indices in selection:
        for index in indices:
            if len(pcrs[bank][index]) != BANK_SIZES_BYTES.get(bank):
                size = len(pcrs[bank][index])
                raise FormatError(f"PCR {index} of the {bank} bank has {size} bytes", field="value")
    values = b"".join(pcrs[bank][index] for bank, indices in selection for index in indices)
    return digest_of(algorithm, values)


def verify_quote(
    attest: bytes | Attest,
    signature: bytes,
    public_key: bytes | AttestationKey,
    *,
    qualifying_data: bytes,
    pcrs: Mapping[str, Mapping[int, bytes]] | None,
    allow_sha1: bool = False,
    allow_empty_qualifying_data: bool = False,
    allow_unsafe_clock: bool = False,
    previous: Attest | bytes | None = None,
    expected_name: bytes | None = None,
    expected_firmware_version: int | None = None,
    parents: Sequence[bytes] = (),
    plain_hash: str = "sha256",
) -> QuoteAppraisal:
    """Return every check of a quote; never raises because one failed.

    Args:
        attest: TPMS_ATTEST or TPM2B_ATTEST, as `tpm2_quote -m` writes it; or one already read.
        signature: TPMT_SIGNATURE, or the plain form of `tpm2_quote -f plain`.
        public_key: TPM2B_PUBLIC, TPMT_PUBLIC, PEM or DER; or a key already read. That it belongs
            to the right TPM is the caller's to know.
        qualifying_data: The nonce the TPM was given.
        pcrs: Exactly the values that will be used. None when they are found by replay later (see
            `QuoteAppraisal.proves`): the result is then never PASSED.
        allow_sha1: Accept a SHA-1 signature.
        allow_empty_qualifying_data: Accept that no qualifying data was asked for, hence a replay.
        allow_unsafe_clock: Accept a clock that may have been higher before.
        previous: An earlier quote by the same key, already verified.
        expected_name: TPM name the key must have.
        expected_firmware_version: The firmware version, where the key shows it in clear.
        parents: Public areas above the key, the nearest first, for its qualified name.
        plain_hash: Hash of a plain signature whose key is bound to none.

    Raises:
        FormatError: Bytes that cannot be read as the structure they should be.
    """
    key = public_key if isinstance(public_key, AttestationKey) else read_attestation_key(public_key)
    parsed = attest if isinstance(attest, Attest) else _with_source("quote", parse_attest, attest)
    parsed_signature = _with_source("quote signature", parse_signature, signature)
    earlier = (
        _with_source("earlier quote", parse_attest, previous)
        if isinstance(previous, bytes)
        else previous
    )
    bound_hash = key.public.scheme_hash if key.public else None
    hash_algorithm = parsed_signature.hash_algorithm or bound_hash or canonical_bank(plain_hash)
    above = tuple(_with_source("parent key", parse_public, parent) for parent in parents)
    work = _Work(
        attest=parsed,
        signature=parsed_signature,
        key=key,
        hash_algorithm=hash_algorithm,
        qualifying_data=qualifying_data,
        values=pcrs,
        previous=earlier,
        allow_sha1=allow_sha1,
        allow_empty=allow_empty_qualifying_data,
        allow_unsafe_clock=allow_unsafe_clock,
        expected_name=expected_name,
        expected_firmware_version=expected_firmware_version,
        parents=above,
        hierarchy=_hierarchy(parsed, key, above),
    )
    checks = tuple(work.checks())
    proven: Mapping[str, Mapping[int, bytes]] = {}
    if pcrs is not None and verdict_of(checks) is Outcome.PASSED:
        proven = {bank: MappingProxyType(dict(held)) for bank, held in pcrs.items() if held}
    return QuoteAppraisal(
        subject="quote",
        checks=checks,
        facts=work.facts(),
        attest=parsed,
        hash_algorithm=hash_algorithm,
        pcrs=MappingProxyType(proven),
    )


def _with_source(source: str, parse: Any, data: bytes) -> Any:
    try:
        return parse(data)
    except FormatError as error:
        error.source = source
        raise


def _hierarchy(attest: Attest, key: AttestationKey, parents: Sequence[TpmPublic]) -> str | None:
    """Return the hierarchy in which the key has the name that the quote gives its signer."""
    if key.public is None:
        return None
    for hierarchy, handle in HIERARCHIES.items():
        name: bytes | None = handle.to_bytes(4, "big")
        for public in (*reversed(parents), key.public):
            name = qualified_name(public, name) if name is not None else None
        if name is not None and name == attest.qualified_signer:
            return hierarchy
    return None


def _selected(pcrs: Mapping[str, Mapping[int, bytes]]) -> set[tuple[str, int]]:
    return {(bank, index) for bank, held in pcrs.items() for index in held}


def _as_set(selection: PcrSelection) -> set[tuple[str, int]]:
    return {(bank, index) for bank, indices in selection for index in indices}


def _yes(condition: bool) -> Outcome:
    return Outcome.PASSED if condition else Outcome.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The inputs of one verification; each method makes the checks of one step."""

    attest: Attest
    signature: TpmSignature
    key: AttestationKey
    hash_algorithm: str
    qualifying_data: bytes
    values: Mapping[str, Mapping[int, bytes]] | None
    previous: Attest | None
    allow_sha1: bool
    allow_empty: bool
    allow_unsafe_clock: bool
    expected_name: bytes | None
    expected_firmware_version: int | None
    parents: tuple[TpmPublic, ...]
    hierarchy: str | None

    def checks(self) -> Iterator[Check]:
        yield from self._key()  # 1
        yield self._scheme()  # 2
        yield self._hash()  # 3
        yield self._signature()  # 4
        yield self._magic()  # 5
        yield from self._type()  # 6
        yield self._qualifying_data()  # 7
        yield self._pcr_selection()  # 8
        yield self._pcr_digest()  # 9
        yield from time_checks(  # 10
            self.attest,
            previous=self.previous,
            allow_unsafe_clock=self.allow_unsafe_clock,
            expected_firmware_version=self.expected_firmware_version,
        )

    def facts(self) -> dict[str, Any]:
        attest, clock = self.attest, self.attest.clock_info
        facts: dict[str, Any] = {
            "type": attest.type_name,
            "key_type": f"{self.key.type}-{self.key.size_bits}",
            "scheme": self.signature.scheme,
            "hash_algorithm": self.hash_algorithm,
            "qualified_signer": attest.qualified_signer.hex(),
            "hierarchy": self.hierarchy,
            "qualifying_data": attest.extra_data.hex(),
            "pcr_selection": format_selection(attest.pcr_select or ()),
            "pcr_digest": (attest.pcr_digest or b"").hex(),
            "clock_ms": clock.clock_ms,
            "reset_count": clock.reset_count,
            "restart_count": clock.restart_count,
            "clock_safe": clock.safe,
            "firmware_version": f"{attest.firmware_version:#018x}",
        }
        if self.key.public is not None:
            facts["key_name"] = (self.key.public.name or b"").hex()
            facts["key_attributes"] = sorted(self.key.public.attributes)
        if self.previous is not None:
            facts["resets_since_previous"] = counter_advance(
                self.attest, self.previous, counter="reset_count"
            )
        return facts

    # 1. The key.

    def _key(self) -> Iterator[Check]:
        yield Check(
            id="quote.key_trust",
            outcome=Outcome.NOT_COVERED,
            expected="a key known to belong to the TPM in question",
            clause="TPM Library Part 1, 37; TCG EK Credential Profile",
            detail="The quote cannot show whose key signed it: the caller vouches for the key "
            "(EK certificate and TPM2_MakeCredential, or enrolment).",
        )
        yield self._key_attributes()
        yield self._key_name()
        yield self._qualified_signer()
        size, minimum = self.key.size_bits, _MIN_RSA_BITS
        if self.key.type == "ECC":
            minimum = _MIN_ECC_BITS
        yield Check(
            id="quote.key_size",
            outcome=_yes(size >= minimum),
            expected=f"at least {minimum} bits",
            got=f"{self.key.type} {size} bits",
            clause="NIST SP 800-131A Rev. 2, 3",
        )

    def _key_attributes(self) -> Check:
        expected = "fixedTPM, restricted, sign; not decrypt"
        clause = "TPM Library Part 2, TPMA_OBJECT"
        public = self.key.public
        if public is None:
            return Check(
                id="quote.key_attributes",
                outcome=Outcome.NOT_COVERED,
                expected=expected,
                clause=clause,
                detail="A PEM or DER key does not say what its TPM lets it sign; an unrestricted "
                "key signs any structure its host makes up.",
            )
        attributes = public.attributes
        sound = attributes.issuperset(_REQUIRED_ATTRIBUTES) and "decrypt" not in attributes
        return Check(
            id="quote.key_attributes",
            outcome=_yes(sound),
            expected=expected,
            got=", ".join(sorted(attributes)),
            clause=clause,
        )

    def _key_name(self) -> Check:
        name = self.key.public.name if self.key.public is not None else None
        outcome, detail = Outcome.NOT_COVERED, "No expected name was given."
        if self.expected_name is not None:
            outcome, detail = _yes(name == self.expected_name), ""
            if name is None:
                outcome = Outcome.NOT_COVERED
                detail = "Only a TPM public area has a name; the key came without one."
        return Check(
            id="quote.key_name",
            outcome=outcome,
            expected=(self.expected_name or b"").hex(),
            got=(name or b"").hex(),
            clause="TPM Library Part 1, 16 (Names)",
            detail=detail,
        )

    def _qualified_signer(self) -> Check:
        hierarchy = self.hierarchy
        if hierarchy is not None:
            chain = " under the given parents" if self.parents else " as a primary key"
            outcome, detail = Outcome.PASSED, f"The key is in the {hierarchy} hierarchy{chain}."
        elif self.key.public is not None and self.parents:
            outcome, detail = Outcome.FAILED, "No hierarchy gives this name with these parents."
        else:
            outcome = Outcome.NOT_COVERED
            detail = "Needs the public areas of the key and of all keys above it."
        return Check(
            id="quote.qualified_signer",
            outcome=outcome,
            expected="the qualified name of the given key",
            got=self.attest.qualified_signer.hex(),
            clause="TPM Library Part 1, 16 (Qualified Name); Part 2, TPMS_ATTEST.qualifiedSigner",
            detail=detail,
        )

    # 2. The scheme.

    def _scheme(self) -> Check:
        public = self.key.public
        fitting = ("RSASSA", "RSAPSS") if self.key.type == "RSA" else ("ECDSA",)
        if public is not None and public.scheme is not None:
            expected = f"{public.scheme} with {public.scheme_hash}"
            fits = self.signature.scheme in (public.scheme, None)
            fits = fits and self.hash_algorithm == public.scheme_hash
            fits = fits and public.scheme in fitting
        else:
            expected = " or ".join(fitting)
            fits = self.signature.scheme in fitting
            if self.signature.scheme is None:  # plain RSA bytes carry no name
                fits = self.key.type == "RSA"
        return Check(
            id="quote.scheme",
            outcome=_yes(fits),
            expected=expected,
            got=f"{self.signature.scheme or 'plain RSA'} with {self.hash_algorithm}",
            clause="TPM Library Part 2, TPMT_SIGNATURE, TPMT_PUBLIC.parameters",
        )

    # 3. The hash.

    def _hash(self) -> Check:
        weak = self.hash_algorithm in _WEAK_HASHES
        allowed = self.hash_algorithm in _STRONG_HASHES or (weak and self.allow_sha1)
        return Check(
            id="quote.hash_algorithm",
            outcome=_yes(allowed),
            expected="SHA-256 or better" + (", or SHA-1 on request" if self.allow_sha1 else ""),
            got=self.hash_algorithm,
            clause="NIST SP 800-131A Rev. 2, 9",
            detail="Forgeable by chosen-prefix collisions." if weak else "",
        )

    # 4. The signature.

    def _signature(self) -> Check:
        fault = signature_fault(
            self.attest.raw, self.signature, self.key, hash_algorithm=self.hash_algorithm
        )
        return Check(
            id="quote.signature",
            outcome=_yes(fault is None),
            expected="a signature by the given key over the whole structure",
            got=fault or "valid",
            clause="TPM Library Part 3, TPM2_Quote",
        )

    # 5. The magic.

    def _magic(self) -> Check:
        return Check(
            id="quote.magic",
            outcome=_yes(self.attest.magic == TPM_GENERATED_VALUE),
            expected=f"{TPM_GENERATED_VALUE:#010x}",
            got=f"{self.attest.magic:#010x}",
            clause="TPM Library Part 2, TPMS_ATTEST.magic",
        )

    # 6. The type, and nothing after it.

    def _type(self) -> Iterator[Check]:
        is_quote = self.attest.type == TPM_ST_ATTEST_QUOTE
        yield Check(
            id="quote.type",
            outcome=_yes(is_quote),
            expected="TPM_ST_ATTEST_QUOTE",
            got=self.attest.type_name,
            clause="TPM Library Part 2, TPMS_ATTEST.type",
        )
        trailing = self.attest.trailing_bytes + self.signature.trailing_bytes
        yield Check(
            id="quote.trailing_bytes",
            outcome=_yes(trailing == 0) if is_quote else Outcome.NOT_COVERED,
            expected="0",
            got=str(trailing) if is_quote else "",
            clause="TPM Library Part 2, TPMS_ATTEST, TPMT_SIGNATURE",
        )

    # 7. Freshness.

    def _qualifying_data(self) -> Check:
        expected, got = self.qualifying_data, self.attest.extra_data
        detail = ""
        if not expected and not self.allow_empty:
            detail = "Empty qualifying data shows no freshness: the quote may be of any age."
        return Check(
            id="quote.qualifying_data",
            outcome=_yes(expected == got and not detail),
            expected=expected.hex() or "empty",
            got=got.hex() or "empty",
            clause="TPM Library Part 2, TPMS_ATTEST.extraData",
            detail=detail,
        )

    # 8. The selection.

    def _pcr_selection(self) -> Check:
        quoted = self.attest.pcr_select
        common = {
            "id": "quote.pcr_selection",
            "got": format_selection(quoted) if quoted is not None else "no selection",
            "clause": "TPM Library Part 2, TPMS_QUOTE_INFO.pcrSelect",
        }
        if self.values is None and quoted and _as_set(quoted):
            return Check(
                outcome=Outcome.NOT_COVERED,
                expected="exactly the PCRs whose values are used",
                detail="No PCR value was given.",
                **common,
            )
        needed = _selected(self.values or {})
        selected = [pair for bank, indices in quoted or () for pair in ((bank, i) for i in indices)]
        exact = bool(selected) and len(set(selected)) == len(selected) and set(selected) == needed
        return Check(
            outcome=_yes(exact),
            expected=_format_set(needed),
            detail="" if exact else _selection_fault(selected, needed),
            **common,
        )

    # 9. The digest.

    def _pcr_digest(self) -> Check:
        attest, values = self.attest, self.values
        outcome, expected, detail = Outcome.NOT_COVERED, "", ""
        if values is None and attest.pcr_digest is not None:
            detail = "No PCR value was given."
        elif attest.pcr_select is None or values is None:
            outcome, detail = Outcome.FAILED, "The structure holds no PCR digest."
        elif not _as_set(attest.pcr_select):
            outcome, detail = Outcome.FAILED, "The quote covers no PCR."
        elif not _as_set(attest.pcr_select) <= _selected(values):
            outcome, detail = Outcome.FAILED, "Quoted PCRs are missing among the values."
        else:
            try:
                digest = quote_digest(attest.pcr_select, values, algorithm=self.hash_algorithm)
            except FormatError as error:
                outcome, detail = Outcome.FAILED, error.reason
            else:
                outcome, expected = _yes(digest == attest.pcr_digest), digest.hex()
        return Check(
            id="quote.pcr_digest",
            outcome=outcome,
            expected=expected,
            got=(attest.pcr_digest or b"").hex(),
            clause="TPM Library Part 2, TPMS_QUOTE_INFO.pcrDigest; Part 3, TPM2_Quote",
            detail=detail,
        )


def _format_set(pairs: set[tuple[str, int]]) -> str:
    banks: dict[str, list[int]] = {}
    for bank, index in sorted(pairs):
        banks.setdefault(bank, []).append(index)
    return format_selection(tuple((bank, tuple(indices)) for bank, indices in banks.items()))


def _selection_fault(selected: list[tuple[str, int]], needed: set[tuple[str, int]]) -> str:
    if not selected:
        return "The quote covers no PCR."
    if not needed:
        return "No PCR value was given."
    faults: list[str] = []
    if missing := needed - set(selected):
        faults.append(f"not quoted: {_format_set(missing)}")
    if unused := set(selected) - needed:
        faults.append(f"quoted without a value to use: {_format_set(unused)}")
    if len(set(selected)) != len(selected):
        faults.append("a PCR is selected twice")
    text = "; ".join(faults)
    return f"{text[0].upper()}{text[1:]}."
