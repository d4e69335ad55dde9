"""Tell schemathesis how bodies of evidence and endorsements become bytes."""

from __future__ import annotations

from typing import Any

import schemathesis

from excise.attest.verifier.media import ACCEPTED, ENDORSEMENT_TYPES

_TYPES = sorted({text.partition(";")[0] for text in (*ACCEPTED, *ENDORSEMENT_TYPES)})


@schemathesis.serializer(*_TYPES, *ACCEPTED, *ENDORSEMENT_TYPES)
def as_bytes(_context: Any, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return getattr(value, "data", None) or str(value).encode()
