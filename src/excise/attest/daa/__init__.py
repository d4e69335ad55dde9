"""The roles of direct anonymous attestation: issuer, member in software, member in a TPM."""
