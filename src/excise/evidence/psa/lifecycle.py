"""Security lifecycle states of a PSA root of trust, by the high byte of the claim.

Source: RFC 9783 section 4.3.1.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Lifecycle(StrEnum):
    """A state; the low byte of the claim is free for the implementation."""

    UNKNOWN = "unknown"
    ASSEMBLY = "assembly-and-test"
    PROVISIONING = "psa-rot-provisioning"
    SECURED = "secured"
    NON_PSA_ROT_DEBUG = "non-psa-rot-debug"
    RECOVERABLE_DEBUG = "recoverable-psa-rot-debug"
    DECOMMISSIONED = "decommissioned"
    INVALID = "invalid"


_STATES: Final = {
    0x00: Lifecycle.UNKNOWN,
    0x10: Lifecycle.ASSEMBLY,
    0x20: Lifecycle.PROVISIONING,
    0x30: Lifecycle.SECURED,
    0x40: Lifecycle.NON_PSA_ROT_DEBUG,
    0x50: Lifecycle.RECOVERABLE_DEBUG,
    0x60: Lifecycle.DECOMMISSIONED,
}

TRUSTWORTHY: Final = frozenset({Lifecycle.SECURED, Lifecycle.NON_PSA_ROT_DEBUG})
"""States in which nobody but the root of trust reaches its secrets: RFC 9783 section 4.3.1."""


def lifecycle_of(value: int) -> Lifecycle:
    """Return the state of a lifecycle claim; values outside the seven ranges are INVALID."""
    return _STATES.get(value >> 8, Lifecycle.INVALID) if 0 <= value <= 0xFFFF else Lifecycle.INVALID
