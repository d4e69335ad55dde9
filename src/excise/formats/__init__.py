"""Foreign formats: bytes to typed records, with what was lost. One file a format."""
