"""The trustworthiness vector of an attestation result: eight claims, their tiers, the status.

Sources: draft-ietf-rats-ar4si section 2.3 (claims and values); draft-ietf-rats-ear section 3
(status); veraison/ear for the order of tiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

CLAIM_NAMES: Final = (
    "instance-identity",
    "configuration",
    "executables",
    "file-system",
    "hardware",
    "runtime-opaque",
    "storage-opaque",
    "sourced-data",
)

MALFUNCTION, NO_CLAIM, UNEXPECTED_EVIDENCE, CRYPTO_FAILED = -1, 0, 1, 99
"""Values that mean the same in every claim."""

AFFIRMED: Final = 2
APPROVED_BOOT: Final = 3
UNRECOGNIZED_RUNTIME: Final = 33
UNSAFE_CONFIGURATION: Final = 32
CONTRAINDICATED: Final = 96

_GENERIC: Final = {
    MALFUNCTION: "the verifier failed",
    NO_CLAIM: "no claim is made",
    UNEXPECTED_EVIDENCE: "the evidence is of a kind that was not expected",
    CRYPTO_FAILED: "the evidence did not pass cryptographic validation",
}
_MEANINGS: Final[Mapping[str, Mapping[int, str]]] = {
    "instance-identity": {
        2: "the device is known and not compromised",
        96: "the device is known and not to be trusted",
        97: "the device is unknown",
    },
    "configuration": {
        2: "the configuration is approved",
        3: "the configuration has no known vulnerability",
        32: "the configuration has known weaknesses",
        96: "the configuration is unacceptable",
    },
    "executables": {
        2: "all running software is recognised and approved",
        3: "the software loaded at boot is recognised and approved",
        32: "some software is recognised and has known weaknesses",
        33: "some software is not recognised",
        96: "some software is recognised as malicious or refused",
    },
    "file-system": {
        2: "the files are recognised and approved",
        32: "some files are not recognised",
        96: "some files are malicious",
    },
    "hardware": {
        2: "hardware and firmware are genuine",
        32: "hardware or firmware is genuine and has known weaknesses",
        96: "hardware or firmware is genuine and not to be trusted",
        97: "hardware or firmware is not recognised",
    },
    "runtime-opaque": {
        2: "memory is protected from everything outside",
        32: "memory is protected from software outside",
        96: "memory can be seen from outside",
    },
    "storage-opaque": {
        2: "secrets are sealed by keys in hardware",
        32: "secrets are sealed by keys that are protected otherwise",
        96: "secrets lie open",
    },
    "sourced-data": {
        2: "the data comes from attested sources",
        32: "the data comes from sources that are partly attested",
        96: "the data comes from sources not to be trusted",
    },
}


class Status(StrEnum):
    """Tier of a claim or of a whole appraisal, from the best to the worst."""

    NONE = "none"
    AFFIRMING = "affirming"
    WARNING = "warning"
    CONTRAINDICATED = "contraindicated"


_ORDER: Final = tuple(Status)
STATUS_NUMBERS: Final = {
    0: Status.NONE,
    2: Status.AFFIRMING,
    32: Status.WARNING,
    96: Status.CONTRAINDICATED,
}
"""Tiers as numbers, which some results carry instead of their names."""


def tier_of(value: int) -> Status:
    """Return the tier of a claim's value, -128 to 127."""
    if -1 <= value <= 1:
        return Status.NONE
    if -32 <= value <= 31:
        return Status.AFFIRMING
    if -96 <= value <= 95:
        return Status.WARNING
    return Status.CONTRAINDICATED


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst tier; none of them is NONE, which sorts below affirming."""
    return max(statuses, key=_ORDER.index, default=Status.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustClaim:
    """One claim and why it has its value.

    Attributes:
        name: One of CLAIM_NAMES.
        value: -128 to 127.
        reason: Why, in a sentence without a full stop.
    """

    name: str
    value: int
    reason: str

    @property
    def tier(self) -> Status:
        """Return the claim's tier."""
        return tier_of(self.value)

    @property
    def meaning(self) -> str:
        """Return what the value means."""
        return meaning_of(self.name, self.value)


def meaning_of(name: str, value: int) -> str:
    """Return what a value means in a claim; a value without a name means its tier."""
    known = _GENERIC.get(value) or _MEANINGS.get(name, {}).get(value)
    return known or f"{tier_of(value)} (value {value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustVector:
    """All eight claims, in the order of CLAIM_NAMES."""

    claims: tuple[TrustClaim, ...]

    @property
    def status(self) -> Status:
        """Return the worst tier of the claims."""
        return worst(claim.tier for claim in self.claims)

    def values(self) -> dict[str, int]:
        """Return value by name."""
        return {claim.name: claim.value for claim in self.claims}

    def reasons(self) -> dict[str, str]:
        """Return reason by name."""
        return {claim.name: claim.reason for claim in self.claims}

    def as_dict(self) -> list[dict[str, Any]]:
        """Return every claim with its tier, its meaning and its reason."""
        return [
            {
                "claim": claim.name,
                "value": claim.value,
                "tier": claim.tier.value,
                "meaning": claim.meaning,
                "reason": claim.reason,
            }
            for claim in self.claims
        ]


def make_vector(given: Mapping[str, tuple[int, str]], *, rest: str) -> TrustVector:
    """Return a vector; claims not given have no value, for the reason `rest`."""
    return TrustVector(
        claims=tuple(
            TrustClaim(name=name, value=value, reason=reason)
            for name in CLAIM_NAMES
            for value, reason in (given.get(name, (NO_CLAIM, rest)),)
        )
    )


def uniform_vector(value: int, reason: str) -> TrustVector:
    """Return a vector in which every claim has one value, for one reason."""
    return make_vector(dict.fromkeys(CLAIM_NAMES, (value, reason)), rest=reason)
