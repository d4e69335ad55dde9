"""The verifier without its service: evidence and challenge in, signed result and reasons out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from excise import __version__
from excise.attest.verifier.media import EvidenceType
from excise.attest.verifier.records import Answer
from excise.attest.verifier.signing import KeyRing
from excise.evidence.appraisal import (
    STRICT,
    AppraisalPolicy,
    Submodule,
    appraise_cca,
    appraise_psa,
)
from excise.evidence.cca import verify_cca_token
from excise.evidence.checks import Check, Outcome
from excise.evidence.corim import Endorsements, ReferenceStore
from excise.evidence.ear import make_ear, sign_ear
from excise.evidence.psa import TokenOptions, verify_token
from excise.evidence.trust_vector import worst


class Engine:
    """Appraises evidence against what was provisioned.

    Args:
        store: Trust anchors and reference values.
        ring: Keys that sign results.
        policy: What is asked of evidence.
        builds: The builds to appraise against; all when empty.
    """

    def __init__(
        self,
        store: ReferenceStore,
        ring: KeyRing,
        *,
        policy: AppraisalPolicy = STRICT,
        builds: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._builds = tuple(builds)
        self._used = self._chosen()
        self.ring = ring
        self.policy = policy

    @property
    def store(self) -> ReferenceStore:
        """Return what evidence is appraised against."""
        return self._used

    def add(self, build: str, held: Endorsements) -> None:
        """Take up endorsements."""
        self._store = self._store.with_build(build, held)
        self._used = self._chosen()

    def answer(self, kind: EvidenceType, evidence: bytes, *, nonce: bytes) -> Answer:
        """Return the signed result for evidence, and why it is what it is."""
        submodules, checks = self._appraise(kind, evidence, nonce)
        claims = make_ear(submodules, nonce=nonce, build=f"excise {__version__}")
        signer = self.ring.current
        return Answer(
            media_type=kind.text,
            evidence=evidence,
            result=sign_ear(claims, signer.key, key_id=signer.kid),
            verdict=_verdict(submodules, checks),
        )

    def _appraise(
        self, kind: EvidenceType, evidence: bytes, nonce: bytes
    ) -> tuple[tuple[Submodule, ...], Sequence[Check]]:
        if kind.scheme == "cca":
            token = verify_cca_token(evidence, self._used, nonce=nonce)
            checks = [check for part in token.results() for check in part.checks]
            return appraise_cca(token, self._used, policy=self.policy), checks
        # A media type that names a profile promises it; Veraison does not hold it to that.
        profile = kind.profile if self.policy.one_build else None
        verified = verify_token(
            evidence, self._used, nonce=nonce, options=TokenOptions(profile=profile)
        )
        return (appraise_psa(verified, self._used, policy=self.policy),), verified.checks

    def _chosen(self) -> ReferenceStore:
        return self._store.only(*self._builds) if self._builds else self._store


def _verdict(submodules: Sequence[Submodule], checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "status": worst(one.status for one in submodules).value,
        "submodules": [
            {
                "name": one.name,
                "status": one.status.value,
                "policy": one.policy,
                "build": one.build,
                "problem": one.problem,
                "claims": one.vector.as_dict(),
            }
            for one in submodules
        ],
        "checks": len(checks),
        "failed": [check.as_dict() for check in checks if check.outcome is Outcome.FAILED],
    }
