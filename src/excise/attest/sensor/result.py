"""A sensor's transaction as an EAR: what a relying party is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from excise.attest.sensor.records import StoredTransaction
from excise.evidence.appraisal import Submodule
from excise.evidence.checks import Outcome
from excise.evidence.ear import make_ear, sign_ear
from excise.evidence.trust_vector import (
    AFFIRMED,
    CONTRAINDICATED,
    CRYPTO_FAILED,
    NO_CLAIM,
    UNRECOGNIZED_RUNTIME,
    UNSAFE_CONFIGURATION,
    TrustVector,
    make_vector,
    uniform_vector,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SCHEME: Final = "EXCISE_SENSOR"


def sensor_ear(found: StoredTransaction, key: EllipticCurvePrivateKey) -> str:
    """Return a transaction's result as a signed EAR.

    Args:
        found: The transaction as it was kept.
        key: On P-256.
    """
    from excise import __version__

    module = Submodule(
        name=SCHEME,
        scheme=SCHEME,
        vector=_vector(found),
        policy=SCHEME,
        state_reasons=True,
        evidence=pseudonym_claims(found) or None,
    )
    claims = make_ear(
        [module],
        nonce=found.nonce,
        build=f"excise {__version__}",
        issued_s=int(found.received_s),
    )
    return sign_ear(claims, key)


def pseudonym_claims(found: StoredTransaction) -> dict[str, str]:
    """Return the pseudonym and what it is made of; {} where they are not to be believed."""
    signed = found.result.get("parts", {}).get("signature") == Outcome.PASSED
    if not signed or found.pseudonym is None:
        return {}
    basename = basename_text(found)
    return {"pseudonym": found.pseudonym, **({"basename": basename} if basename else {})}


def basename_text(found: StoredTransaction) -> str | None:
    """Return the basename as text; what is not UTF-8 in it as escapes."""
    return None if found.basename is None else found.basename.decode(errors="backslashreplace")


def _vector(found: StoredTransaction) -> TrustVector:
    parts = found.result.get("parts", {})
    if parts.get("signature") != Outcome.PASSED:
        return uniform_vector(
            CRYPTO_FAILED, "the signature is by no admitted key, or not over this session"
        )
    return make_vector(
        {
            "instance-identity": (
                AFFIRMED,
                "a key of the group that is not revoked signed it for this session",
            ),
            "executables": _executables(parts),
            "sourced-data": _sourced_data(found),
        },
        rest="nothing in the evidence tells",
    )


def _sourced_data(found: StoredTransaction) -> tuple[int, str]:
    outcomes = {check["id"]: check["outcome"] for check in found.result["checks"]}
    if found.outcome is not Outcome.PASSED:
        return CONTRAINDICATED, "the embedding is from a machine whose state was not accepted"
    if outcomes.get("sensor.state") == Outcome.PASSED:
        return AFFIRMED, "the embedding is from a machine whose state its TPM vouches for"
    return UNSAFE_CONFIGURATION, "the embedding is from a machine that says its own state"


def _executables(parts: dict[str, str]) -> tuple[int, str]:
    listed, judged = parts.get("list"), parts.get("references")
    if listed != Outcome.PASSED:
        return CONTRAINDICATED, "the measurement list does not lead to the PCR values"
    if judged is None:
        return NO_CLAIM, "the list is whole, and no reference digests were given"
    if judged == Outcome.PASSED:
        return AFFIRMED, "every measured file has a reference digest"
    return UNRECOGNIZED_RUNTIME, "some measured file has no reference digest"
