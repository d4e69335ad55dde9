"""The roles of remote attestation as running programs, on what `evidence` verifies."""
