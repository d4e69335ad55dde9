"""An attester in the shape of an OP-TEE one: host, trusted application, pseudo application."""

from excise.attest.attester.evidence import (
    IMPLEMENTATION_ID,
    Attester,
    Measured,
    application_of,
    host_boot_seed,
    system_of,
)
from excise.attest.attester.keys import (
    EMBEDDED_WARNING,
    PackedKey,
    Signer,
    generate_key,
    labels_of,
    mode_of,
    open_signer,
    parse_key,
)
from excise.attest.attester.session import Attested, Verification, attest, verification

__all__ = [
    "EMBEDDED_WARNING",
    "IMPLEMENTATION_ID",
    "Attested",
    "Attester",
    "Measured",
    "PackedKey",
    "Signer",
    "Verification",
    "application_of",
    "attest",
    "generate_key",
    "host_boot_seed",
    "labels_of",
    "mode_of",
    "open_signer",
    "parse_key",
    "system_of",
    "verification",
]
