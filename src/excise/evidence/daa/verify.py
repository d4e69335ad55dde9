"""Verify ECDAA signatures: one, or many of one group at once.

A signature is good when, in this order of the checks:

1. `daa.issuer_proof`: the issuer proves that it knows the group's secrets.
2. `daa.proof`: c, s and N prove knowledge of the key in W, for this message, nonce and basename.
3. `daa.credential`: e(R, Y) = e(S, P₂) and e(T, P₂) = e(R + W, X): the issuer certified that key.
4. `daa.basename`: it has a pseudonym exactly when a basename is asked for.
5. `daa.revoked_keys`, `daa.revoked_pseudonyms`: it is on no list.
6. `daa.pcr_state`: where a state is claimed, the key could not sign in another.
7. `daa.quote_key`, `daa.quote_structure`, `daa.quote_pcrs`: where the signature is a TPM's quote,
   it can be no other's, and is over exactly the PCR values given.

Both equations are one product of three pairings: each is raised to a fresh random number, without
which two wrong equations could be made to cancel. The same makes one product of many signatures.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from excise.errors import UsageError
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.evidence.daa.assurance import KeyAssurance
from excise.evidence.daa.curve import G1, GENERATOR_2, add, encode_g1, negate, sum_of_multiples
from excise.evidence.daa.field import ARITHMETIC, integer
from excise.evidence.daa.pairing import pairing_product_is_one, precompute_lines
from excise.evidence.daa.quoted import QuotedState, quote_checks
from excise.evidence.daa.revocation import RevokedKeys, RevokedPseudonyms
from excise.evidence.daa.schnorr import (
    Dialect,
    ProofResult,
    check_credential_signature,
    check_issuer_key,
    check_proof,
)
from excise.evidence.daa.structures import (
    Credential,
    CredentialSignature,
    GroupPublicKey,
    IssuerPublicKey,
    Signature,
)
from excise.units import counted

RANDOMISER_BITS: Final = 128
_PAPER: Final = "Camenisch, Drijvers, Lehmann 2016; FIDO ECDAA v1.1, ECDAA-Verify"
_G2_LINES: Final = precompute_lines(GENERATOR_2)

Equation = tuple[G1, G1, G1, G1]
"""Points (R, S, T, W) that must satisfy both equations of a credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedMessage:
    """A signature and what it is said to be of.

    Attributes:
        signature: The signature.
        message: The bytes signed.
        basename: The basename it must have been signed with; None for none.
        quote: What the TPM signed along; None where the signature is no quote.
    """

    signature: Signature
    message: bytes
    basename: bytes | None = None
    quote: QuotedState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaaAppraisal(AppraisalResult):
    """The checks of one signature.

    Attributes:
        dialect: How the signer made the challenge, where the proof follows a known rule.
        pseudonym: K, by which signatures under one basename can be linked; None without.
    """

    dialect: Dialect | None = None
    pseudonym: bytes | None = None


class DaaVerifier:
    """Verifies the signatures of one group; made once, since its key takes time to prepare.

    Args:
        group: The group's key; with the issuer's proof in it, that is checked too.
        revoked_keys: Secret keys that are refused; None when there is no list.
        revoked_pseudonyms: Pseudonyms that are refused; None when there is no list.
        assurance: What the group's issuer asks of every member's key; None when not known.
    """

    def __init__(
        self,
        group: GroupPublicKey | IssuerPublicKey,
        *,
        revoked_keys: RevokedKeys | None = None,
        revoked_pseudonyms: RevokedPseudonyms | None = None,
        assurance: KeyAssurance | None = None,
    ) -> None:
        self._issuer_check = _issuer_check(group)
        key = group.group
        self._x, self._y = precompute_lines(key.x), precompute_lines(key.y)
        self._revoked_keys = revoked_keys
        self._revoked_pseudonyms = revoked_pseudonyms
        self._assurance = assurance

    @property
    def assurance(self) -> KeyAssurance | None:
        """What the group's issuer asks of every member's key; None when not known."""
        return self._assurance

    def verify(
        self,
        signature: Signature,
        *,
        message: bytes,
        basename: bytes | None = None,
        pcr_policy: bytes | None = None,
        quote: QuotedState | None = None,
    ) -> DaaAppraisal:
        """Return every check of one signature.

        Args:
            signature: The signature.
            message: The bytes it must be of.
            basename: The basename it must be with; None for one without a pseudonym.
            pcr_policy: Digest of the PolicyPCR over the PCR values that come with the message, when
                they are to be believed; None when no state is claimed.
            quote: What the TPM signed along, where the signature is one of its quotes.

        Raises:
            UsageError: An empty basename.
        """
        item = SignedMessage(signature=signature, message=message, basename=basename, quote=quote)
        return self.verify_batch([item], pcr_policy=pcr_policy)[0]

    def verify_batch(
        self, items: Sequence[SignedMessage], *, pcr_policy: bytes | None = None
    ) -> tuple[DaaAppraisal, ...]:
        """Return every check of each signature, with one product of pairings for all that hold.

        Where the product is not 1, halves of it are tried until the wrong ones are found.

        Raises:
            UsageError: An empty basename.
        """
        proofs = [_proof(item) for item in items]
        certified = self._certified([_equation(item.signature) for item in items])
        return tuple(
            self._appraise(item, proof, good, pcr_policy)
            for item, proof, good in zip(items, proofs, certified, strict=True)
        )

    def check_credential(
        self, credential: Credential, signature: CredentialSignature, *, member: G1
    ) -> bool:
        """Return whether a credential is the issuer's, for this member's key Q."""
        points = (credential.a, credential.b, credential.c, credential.d)
        return check_credential_signature(credential, signature, member=member) and self._hold(
            [points]
        )

    def _certified(self, equations: list[Equation]) -> list[bool]:
        if not equations or self._hold(equations):
            return [True] * len(equations)
        if len(equations) == 1:
            return [False]
        middle = len(equations) // 2
        return self._certified(equations[:middle]) + self._certified(equations[middle:])

    def _hold(self, equations: list[Equation]) -> bool:
        """Return whether e(R, Y) = e(S, P₂) and e(T, P₂) = e(R + W, X) hold for all of them."""
        with_y: list[tuple[G1, int]] = []
        with_p2: list[tuple[G1, int]] = []
        with_x: list[tuple[G1, int]] = []
        for index, (r, s, t, w) in enumerate(equations):
            # One factor may be 1: only the others' being random keeps terms from cancelling.
            first = integer(1) if index == 0 else _randomiser()
            second = _randomiser()
            with_y.append((r, first))
            with_p2 += [(negate(s), first), (t, second)]
            total = add(r, w)
            if total is not None:
                with_x.append((negate(total), second))
        return pairing_product_is_one(
            [
                (sum_of_multiples(with_y), self._y),
                (sum_of_multiples(with_p2), _G2_LINES),
                (sum_of_multiples(with_x), self._x),
            ]
        )

    def _appraise(
        self, item: SignedMessage, proof: ProofResult, certified: bool, pcr_policy: bytes | None
    ) -> DaaAppraisal:
        signature = item.signature
        checks = [
            self._issuer_check,
            _proof_check(proof),
            _credential_check(certified),
            _basename_check(item),
        ]
        if self._revoked_keys is not None:
            checks.append(_revoked_key_check(self._revoked_keys, signature))
        if self._revoked_pseudonyms is not None:
            checks.append(_revoked_pseudonym_check(self._revoked_pseudonyms, item))
        if pcr_policy is not None:
            checks.append(_pcr_state_check(self._assurance, pcr_policy))
        if item.quote is not None:
            checks += quote_checks(item.quote, self._assurance)
        pseudonym = encode_g1(signature.pseudonym) if signature.pseudonym is not None else None
        return DaaAppraisal(
            subject="daa",
            checks=tuple(checks),
            facts=_facts(proof, pseudonym, self._assurance),
            dialect=proof.dialect,
            pseudonym=pseudonym,
        )


def _randomiser() -> int:
    return integer(secrets.randbits(RANDOMISER_BITS) | 1 << RANDOMISER_BITS)


def _equation(signature: Signature) -> Equation:
    return signature.r, signature.s_point, signature.t, signature.w


def _proof(item: SignedMessage) -> ProofResult:
    if item.basename is not None and not item.basename:
        raise UsageError("an empty basename", hint="Leave it out to verify without a pseudonym")
    signature = item.signature
    return check_proof(
        base=signature.s_point,
        public=signature.w,
        c=signature.c,
        s=signature.s,
        nonce=signature.nonce,
        message=item.message,
        basename=item.basename,
        pseudonym=signature.pseudonym,
        attest=item.quote.attest if item.quote is not None else None,
    )


def _outcome(good: bool) -> Outcome:
    return Outcome.PASSED if good else Outcome.FAILED


def _issuer_check(group: GroupPublicKey | IssuerPublicKey) -> Check:
    if isinstance(group, GroupPublicKey):
        return Check(
            id="daa.issuer_proof",
            outcome=Outcome.NOT_COVERED,
            expected="a proof over X and Y",
            got="a group key without one",
            clause=_PAPER,
            detail="The key was taken as it is; the issuer's key (354 bytes) holds the proof.",
        )
    good = check_issuer_key(group)
    return Check(
        id="daa.issuer_proof",
        outcome=_outcome(good),
        expected="a proof over X and Y",
        got="it holds" if good else "it does not hold",
        clause=_PAPER,
    )


def _proof_check(proof: ProofResult) -> Check:
    detail = ""
    if proof.dialect is Dialect.OWN_CHALLENGE:
        detail = (
            "The TPM chose the challenge itself, as some firmware does: it binds no message, and "
            "anybody could have made this."
        )
    return Check(
        id="daa.proof",
        outcome=_outcome(proof.holds),
        expected="knowledge of the key, for this message, nonce and basename",
        got=f"dialect: {proof.dialect}" if proof.dialect is not None else "it does not hold",
        clause=_PAPER,
        detail=detail,
    )


def _credential_check(certified: bool) -> Check:
    return Check(
        id="daa.credential",
        outcome=_outcome(certified),
        expected="e(R, Y) = e(S, P₂) and e(T, P₂) = e(R + W, X)",
        got="both hold" if certified else "not both hold",
        clause=_PAPER,
    )


def _basename_check(item: SignedMessage) -> Check:
    asked, given = item.basename is not None, item.signature.pseudonym is not None
    return Check(
        id="daa.basename",
        outcome=_outcome(asked == given),
        expected="a pseudonym" if asked else "no pseudonym",
        got="a pseudonym" if given else "no pseudonym",
        clause=_PAPER,
        detail="Whether it is of this basename is part of the proof." if asked and given else "",
    )


def _revoked_key_check(revoked: RevokedKeys, signature: Signature) -> Check:
    hit = revoked.revokes(base=signature.s_point, public=signature.w)
    return Check(
        id="daa.revoked_keys",
        outcome=_outcome(not hit),
        expected=f"none of {counted(len(revoked.keys), 'revoked key')}",
        got="a revoked key" if hit else "none of them",
        clause=_PAPER,
    )


def _revoked_pseudonym_check(revoked: RevokedPseudonyms, item: SignedMessage) -> Check:
    expected = f"none of {counted(len(revoked.pseudonyms), 'revoked pseudonym')}"
    pseudonym = item.signature.pseudonym
    detail = ""
    if pseudonym is None:
        got, good = "no pseudonym, so that the list cannot be applied", False
    elif revoked.basename is not None and revoked.basename != item.basename:
        got, good = "the list is of another basename, so that it cannot be applied", False
    else:
        good = not revoked.revokes(pseudonym)
        got = "none of them" if good else "a revoked pseudonym"
        if revoked.basename is None:
            detail = "The list does not say its basename; under another one it revokes nothing."
    return Check(
        id="daa.revoked_pseudonyms",
        outcome=_outcome(good),
        expected=expected,
        got=got,
        clause=_PAPER,
        detail=detail,
    )


def _pcr_state_check(assurance: KeyAssurance | None, wanted: bytes) -> Check:
    bound = assurance.pcr_policy if assurance is not None else None
    if bound is None:
        got = "keys that are bound to no state" if assurance is not None else "unknown keys"
    else:
        got = bound.hex()
    return Check(
        id="daa.pcr_state",
        outcome=_outcome(bound == wanted),
        expected=f"every key bound to the PCR policy {wanted.hex()}",
        got=got,
        clause="TPM Library Part 3, TPM2_PolicyPCR",
        detail="" if bound == wanted else "A host can have any PCR values signed by such a key.",
    )


def _facts(
    proof: ProofResult, pseudonym: bytes | None, assurance: KeyAssurance | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "dialect": proof.dialect.value if proof.dialect is not None else None,
        "pseudonym": pseudonym.hex() if pseudonym is not None else None,
        "arithmetic": ARITHMETIC,
    }
    if assurance is not None:
        facts["key"] = assurance.protection.value
        facts["proves"] = " ".join(assurance.proves())
        facts["leaves_open"] = " ".join(assurance.leaves_open())
    return facts
