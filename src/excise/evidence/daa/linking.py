"""Which signatures belong together: one key makes one pseudonym under one basename."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from excise.evidence.daa.curve import encode_g1
from excise.evidence.daa.structures import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Signatures by what they have in common.

    Attributes:
        by_pseudonym: Names of the signatures of each pseudonym, in the order they were given.
        without_pseudonym: Names of those that have none, and that nothing links.
        copies: For each name of a signature that was there before, byte for byte: that one's name.
    """

    by_pseudonym: Mapping[bytes, tuple[str, ...]]
    without_pseudonym: tuple[str, ...]
    copies: Mapping[str, str]

    @property
    def linked(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the signatures that belong together, two or more each time."""
        return tuple(names for names in self.by_pseudonym.values() if len(names) > 1)


def link(signatures: Mapping[str, Signature]) -> Links:
    """Return which signatures are by one key under one basename.

    Nothing is verified here: the pseudonym of a signature that does not hold may be anybody's. A
    signature that is there twice is one, and belongs together with nothing by that.

    Args:
        signatures: Signatures by name.
    """
    first: dict[bytes, str] = {}
    copies: dict[str, str] = {}
    by_pseudonym: dict[bytes, list[str]] = {}
    without = []
    for name, signature in signatures.items():
        original = first.setdefault(signature.to_bytes(), name)
        if original != name:
            copies[name] = original
        elif signature.pseudonym is None:
            without.append(name)
        else:
            by_pseudonym.setdefault(encode_g1(signature.pseudonym), []).append(name)
    return Links(
        by_pseudonym={pseudonym: tuple(names) for pseudonym, names in by_pseudonym.items()},
        without_pseudonym=tuple(without),
        copies=copies,
    )
