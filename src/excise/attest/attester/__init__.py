"""An attester in the shape of an OP-TEE one: host, trusted application, pseudo application."""

from excise.attest.attester.evidence import Attester, Measured
from excise.attest.attester.keys import (
    EMBEDDED_WARNING,
    PackedKey,
    Signer,
    generate_key,
    open_signer,
    parse_key,
)
from excise.attest.attester.session import Outcome, Verification, attest

__all__ = [
    "EMBEDDED_WARNING",
    "Attester",
    "Measured",
    "Outcome",
    "PackedKey",
    "Signer",
    "Verification",
    "attest",
    "generate_key",
    "open_signer",
    "parse_key",
]
