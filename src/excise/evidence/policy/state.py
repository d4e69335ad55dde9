"""What an appraiser knows after a part of a list, from which it goes on with the next part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """Counts over the entries judged so far; as good as the place it is kept in.

    Attributes:
        counts: Number of entries by class.
        signature_counts: Number of file entries by signature result.
        files: File entries that were compared.
        unsigned_faults: Entries without the valid signature that was required.
        boot_aggregate: Algorithm and hexadecimal digest of the boot aggregate, if one was seen.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    signature_counts: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    unsigned_faults: int = 0
    boot_aggregate: tuple[str, str] | None = None
