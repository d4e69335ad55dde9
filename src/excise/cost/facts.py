"""May two captures be compared? Their host facts decide, and the differences are listed."""

from __future__ import annotations

from excise.capture.manifest import Fact, Manifest
from excise.errors import Refused


def disagreements(first: Manifest, second: Manifest) -> tuple[str, ...]:
    """Return one line for each fact that must agree and does not.

    Facts that only one of the two captures has are listed too: unknown is not equal. Imported and
    reference data carry no facts; they disagree in nothing, and are compared as "order unknown".
    """
    if not first.host_facts or not second.host_facts:
        return ()
    ours, theirs = _by_name(first), _by_name(second)
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        one, two = ours.get(name), theirs.get(name)
        if (one is None or two is None or one.value != two.value) and _matters(one, two):
            lines.append(f"{name}: {_shown(one)} against {_shown(two)}")
    return tuple(lines)


def require_agreement(first: Manifest, second: Manifest, *, force: bool) -> tuple[str, ...]:
    """Return the differences when forced, () when there are none.

    Raises:
        Refused: If there are differences and the comparison is not forced.
    """
    lines = disagreements(first, second)
    if lines and not force:
        raise Refused(
            f"the captures were made under different conditions ({len(lines)})",
            differences=lines,
            hint="Measure both in one campaign, or compare anyway with --force",
        )
    return lines


def _by_name(manifest: Manifest) -> dict[str, Fact]:
    return {fact.name: fact for fact in manifest.host_facts}


def _matters(one: Fact | None, two: Fact | None) -> bool:
    return any(fact is not None and fact.must_agree for fact in (one, two))


def _shown(fact: Fact | None) -> str:
    if fact is None:
        return "not recorded"
    if fact.private:
        return "(private value)"
    return "unknown" if fact.value is None else str(fact.value)
