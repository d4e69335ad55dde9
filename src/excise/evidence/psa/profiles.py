"""The three PSA token profiles: which key each claim has, and what its value must be.

Sources: draft-tschofenig-rats-psa-token-05 (PSA_IOT_PROFILE_1) and -10 (http://arm.com/psa/2.0.0),
RFC 9783 (tag:psacertified.org,2023:psa#tfm).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from excise.evidence.psa.lifecycle import Lifecycle, lifecycle_of
from excise.units import counted

DIGEST_SIZES: Final = (32, 48, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRule:
    """What one claim must be.

    Attributes:
        name: Attribute of the claims, and last part of the check's id.
        key: CBOR key.
        json: Name in JSON, as Veraison's psatoken spells it.
        required: Whether a token without it is refused.
        expected: The rule in words.
        fault: Returns what is wrong with a value, empty when nothing is.
        clause: Where the rule stands.
    """

    name: str
    key: int
    json: str
    required: bool
    expected: str
    fault: Callable[[Any], str]
    clause: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One profile.

    Attributes:
        name: Value of the profile claim.
        label: Short name for the command line.
        profile_key: CBOR key of the profile claim.
        profile_json: Its name in JSON.
        rules: A rule a claim, without profile and software.
        components_key: Key of the software components.
        no_measurements_key: Key of the statement that there are none; 0 where it does not exist.
        clause: The document.
    """

    name: str
    label: str
    profile_key: int
    profile_json: str
    rules: tuple[ClaimRule, ...]
    components_key: int
    no_measurements_key: int
    clause: str

    @cached_property
    def keys(self) -> frozenset[int]:
        """Return every key the profile defines."""
        own = {self.profile_key, self.components_key, self.no_measurements_key} - {0}
        return frozenset(own | {rule.key for rule in self.rules})


def digest_fault(value: Any) -> str:
    """Return what is wrong with a digest of SHA-256, SHA-384 or SHA-512."""
    if not isinstance(value, bytes):
        return "no byte string"
    return "" if len(value) in DIGEST_SIZES else f"{len(value)} bytes"


def nonce_fault(value: Any) -> str:
    """Return what is wrong with a nonce: exactly one byte string of a digest's size."""
    if isinstance(value, list):
        return f"{counted(len(value), 'nonce')} in an array"
    return digest_fault(value)


def bytes_fault(smallest: int, largest: int) -> Callable[[Any], str]:
    """Return a rule for byte strings of a length."""

    def fault(value: Any) -> str:
        if not isinstance(value, bytes):
            return "no byte string"
        return "" if smallest <= len(value) <= largest else f"{len(value)} bytes"

    return fault


def instance_fault(value: Any) -> str:
    """Return what is wrong with an instance ID: a UEID of 33 bytes whose type is RAND."""
    if not isinstance(value, bytes):
        return "no byte string"
    if len(value) != 33:
        return f"{len(value)} bytes"
    return "" if value[0] == 1 else f"UEID type {value[0]:#04x}"


def text_fault(value: Any) -> str:
    """Return what is wrong with a text that must say something."""
    if not isinstance(value, str):
        return "no text"
    return "" if value else "empty"


def pattern_fault(pattern: str) -> Callable[[Any], str]:
    """Return a rule for text of a form."""
    compiled = re.compile(pattern)

    def fault(value: Any) -> str:
        if not isinstance(value, str):
            return "no text"
        return "" if compiled.fullmatch(value) else f"{value!r}"

    return fault


def _client_fault(value: Any) -> str:
    if type(value) is not int:
        return "no integer"
    return "" if -(1 << 31) <= value < 1 << 31 else f"{value} is outside 32 bits"


def lifecycle_fault(value: Any) -> str:
    """Return what is wrong with a lifecycle claim."""
    if type(value) is not int:
        return "no integer"
    return (
        f"{value:#06x} is in no state's range" if lifecycle_of(value) is Lifecycle.INVALID else ""
    )


_BOOT_SEED: Final = ("8 to 32 bytes", bytes_fault(8, 32))
_EITHER_REFERENCE: Final = ("13 digits, or 13-5 digits", r"[0-9]{13}(-[0-9]{5})?")


_RFC_SECTIONS: Final = {
    "nonce": "section 4.1.1",
    "client_id": "section 4.1.2",
    "instance_id": "section 4.2.1",
    "implementation_id": "section 4.2.2",
    "certification_reference": "section 4.2.3",
    "lifecycle": "section 4.3.1",
    "boot_seed": "section 4.3.2",
    "vsi": "section 4.5.2",
}


def _rules(
    keys: Mapping[str, int],
    *,
    clause: str,
    section: str,
    boot_seed: tuple[str, Callable[[Any], str]],
    boot_seed_required: bool,
    certification: tuple[str, str],
    certification_json: str,
) -> tuple[ClaimRule, ...]:
    words, pattern = certification
    table: tuple[tuple[str, str, bool, str, Callable[[Any], str]], ...] = (
        ("nonce", "psa-nonce", True, "one byte string of 32, 48 or 64 bytes", nonce_fault),
        ("client_id", "psa-client-id", True, "a signed 32-bit integer", _client_fault),
        ("instance_id", "psa-instance-id", True, "33 bytes, the first 0x01", instance_fault),
        ("implementation_id", "psa-implementation-id", True, "32 bytes", bytes_fault(32, 32)),
        ("lifecycle", "psa-security-lifecycle", True, "a state's range", lifecycle_fault),
        ("boot_seed", "psa-boot-seed", boot_seed_required, *boot_seed),
        ("certification_reference", certification_json, False, words, pattern_fault(pattern)),
        ("vsi", "psa-verification-service-indicator", False, "text, not empty", text_fault),
    )
    return tuple(
        ClaimRule(
            name=name,
            key=keys[name],
            json=json,
            required=required,
            expected=expected,
            fault=fault,
            clause=f"{clause} {section or _RFC_SECTIONS[name]}",
        )
        for name, json, required, expected, fault in table
    )


_P1_KEYS: Final = {
    "client_id": -75001,
    "lifecycle": -75002,
    "implementation_id": -75003,
    "boot_seed": -75004,
    "certification_reference": -75005,
    "nonce": -75008,
    "instance_id": -75009,
    "vsi": -75010,
}
_P2_KEYS: Final = {
    "client_id": 2394,
    "lifecycle": 2395,
    "implementation_id": 2396,
    "boot_seed": 2397,
    "certification_reference": 2398,
    "nonce": 10,
    "instance_id": 256,
    "vsi": 2400,
}

PROFILE_1: Final = Profile(
    name="PSA_IOT_PROFILE_1",
    label="1",
    profile_key=-75000,
    profile_json="psa-profile",
    rules=_rules(
        _P1_KEYS,
        clause="draft-tschofenig-rats-psa-token-05",
        section="section 3",
        boot_seed=("32 bytes", bytes_fault(32, 32)),
        boot_seed_required=True,
        # The draft asks for EAN-13 alone; TF-M writes the longer form under profile 1 too.
        certification=_EITHER_REFERENCE,
        certification_json="psa-hwver",
    ),
    components_key=-75006,
    no_measurements_key=-75007,
    clause="draft-tschofenig-rats-psa-token-05",
)
PROFILE_2: Final = Profile(
    name="http://arm.com/psa/2.0.0",
    label="2",
    profile_key=265,
    profile_json="eat-profile",
    rules=_rules(
        _P2_KEYS,
        clause="draft-tschofenig-rats-psa-token-10",
        section="section 4",
        boot_seed=_BOOT_SEED,
        boot_seed_required=False,
        certification=_EITHER_REFERENCE,
        certification_json="psa-certification-reference",
    ),
    components_key=2399,
    no_measurements_key=0,
    clause="draft-tschofenig-rats-psa-token-10",
)
PROFILE_TFM: Final = Profile(
    name="tag:psacertified.org,2023:psa#tfm",
    label="tfm",
    profile_key=265,
    profile_json="eat-profile",
    rules=_rules(
        {**_P2_KEYS, "boot_seed": 268},
        clause="RFC 9783",
        section="",  # one for each claim
        boot_seed=_BOOT_SEED,
        boot_seed_required=False,
        certification=("13-5 digits", r"[0-9]{13}-[0-9]{5}"),
        certification_json="psa-certification-reference",
    ),
    components_key=2399,
    no_measurements_key=0,
    clause="RFC 9783",
)

PROFILES: Final = (PROFILE_1, PROFILE_2, PROFILE_TFM)
PROFILE_OF_NAME: Final[Mapping[str, Profile]] = {profile.name: profile for profile in PROFILES}
ALL_KEYS: Final = frozenset().union(*(profile.keys for profile in PROFILES))
