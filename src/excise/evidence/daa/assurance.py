"""What a signature proves beyond membership: it depends on what the issuer asks of a member's key.

The signature hides which member made it, so a verifier can rely only on what every member had to
show: the weakest kind of key that the group admits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from excise.errors import FormatError, UsageError
from excise.evidence.pcr import ALGORITHM_BANKS

_TPM_CC_POLICY_PCR: Final = 0x0000017F


class KeyProtection(StrEnum):
    """Where a member's key lives, as far as the issuer has seen it proven; weakest first."""

    SOFTWARE = "software"
    TPM = "tpm"
    CERTIFIED_TPM = "certified-tpm"

    @property
    def rank(self) -> int:
        """Return a number that is higher for a stronger proof."""
        return list(KeyProtection).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAssurance:
    """What an issuer had proven about a key, or asks of every key.

    Attributes:
        protection: Where the key lives.
        pcr_policy: Digest of the PolicyPCR the key is bound to; None where it is bound to none.
        selection: The PCRs of that policy, such as `sha256:0,7`; empty where there is none.
        quoting: Whether the key is restricted, so that a quote by it is one of the TPM's.
    """

    protection: KeyProtection
    pcr_policy: bytes | None = None
    selection: str = ""
    quoting: bool = False

    def proves(self) -> tuple[str, ...]:
        """Return what a valid signature proves, one sentence each."""
        found = ["The signer holds a key that the issuer admitted to the group."]
        if self.protection is not KeyProtection.SOFTWARE:
            found.append(
                "The key cannot leave the TPM that made it: the issuer saw that TPM open a "
                "challenge made out to the key's name."
            )
        if self.protection is KeyProtection.CERTIFIED_TPM:
            found.append("That TPM is one its maker vouches for: its EK certificate was checked.")
        if self.pcr_policy is not None:
            found.append(
                f"When it signed, the PCRs {self.selection or '(selection not given)'} had the "
                "values of the key's policy."
            )
        if self.quoting:
            found.append("PCR values in a quote by it are those its TPM had.")
        return tuple(found)

    def leaves_open(self) -> tuple[str, ...]:
        """Return what it does not prove, one sentence each."""
        found = []
        if self.protection is KeyProtection.SOFTWARE:
            found.append("The key may have been copied to any number of machines.")
        if self.protection is KeyProtection.TPM:
            found.append(
                "The TPM may be a program: no EK certificate was checked, so whoever runs it can "
                "read the key."
            )
        if self.pcr_policy is None and not self.quoting:
            found.append(
                "Nothing follows for the state of the machine: the key signs whatever its host "
                "hands it, also PCR values that no TPM holds."
            )
        return tuple(found)

    def as_dict(self) -> dict[str, str | bool | None]:
        """Return the assurance as plain values."""
        return {
            "protection": self.protection.value,
            "pcr_policy": self.pcr_policy.hex() if self.pcr_policy is not None else None,
            "selection": self.selection,
            "quoting": self.quoting,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Return the assurance that `as_dict` gave.

        Raises:
            FormatError: A value is missing or of the wrong kind.
        """
        try:
            policy = values["pcr_policy"]
            return cls(
                protection=KeyProtection(str(values["protection"])),
                pcr_policy=bytes.fromhex(str(policy)) if policy is not None else None,
                selection=str(values["selection"]),
                quoting=values.get("quoting", False) is True,
            )
        except (KeyError, ValueError) as error:
            raise FormatError(f"no rule of admission ({error})", field="rule") from None


def policy_pcr_digest(pcrs: Mapping[str, Mapping[int, bytes]]) -> bytes:
    """Return the SHA-256 policy digest of one PolicyPCR over these values.

    Args:
        pcrs: Value by index by bank; banks in the order of the policy's selection.

    Raises:
        UsageError: No value, an unknown bank, or an index beyond 23.

    Source: TPM Library Part 3, TPM2_PolicyPCR: H(0…0 ‖ TPM_CC_PolicyPCR ‖ pcrs ‖ digestTPM).
    """
    numbers = {name: number for number, name in ALGORITHM_BANKS.items()}
    selections, values = [], hashlib.sha256()
    for bank, held in pcrs.items():
        if bank not in numbers or not held or not 0 <= min(held) <= max(held) <= 23:
            raise UsageError(f"no PCR policy over {bank}:{','.join(map(str, held)) or 'nothing'}")
        bits = sum(1 << index for index in held)
        selections.append(numbers[bank].to_bytes(2, "big") + b"\x03" + bits.to_bytes(3, "little"))
        for index in sorted(held):
            values.update(held[index])
    if not selections:
        raise UsageError("a PCR policy over no PCR")
    parts = (
        bytes(32),
        _TPM_CC_POLICY_PCR.to_bytes(4, "big"),
        len(selections).to_bytes(4, "big"),
        *selections,
        values.digest(),
    )
    return hashlib.sha256(b"".join(parts)).digest()
