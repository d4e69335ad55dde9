"""Plain values worth showing beside the checks of a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from excise.evidence.ima.attempt import Attempt, BankResult
from excise.evidence.ima.coverage import Coverage
from excise.evidence.ima.replay import Place, Replay

if TYPE_CHECKING:
    from excise.evidence.ima.explain import Explanation
    from excise.evidence.ima.resume import Resumed


def facts_of(
    tried: Attempt,
    coverage: Coverage,
    explanations: Iterable[Explanation],
    resumed: Resumed,
    *,
    names: Mapping[int, bytes],
    pcr: int,
) -> dict[str, Any]:
    """Return the facts of a verified list, for text, JSON and reports."""
    found = tried.first
    return {
        "format": found.layout.format,
        "byte_order": found.layout.byte_order,
        "header_bank": found.layout.header_bank,
        "detected_from": {"entries": found.detect_records, "fitting": found.detect_verified},
        "kexec_header": found.kexec,
        "names_ambiguous": found.layout.format == "ascii",
        "meeting": resumed.meeting.value,
        "entries": coverage.entries,
        "new_entries": found.entries,
        "covered_entries": coverage.covered_entries,
        "match_index": coverage.match.index if coverage.match else None,
        "match_end_offset": coverage.match_end,
        "tail_entries": coverage.tail_entries,
        "uncovered_entries_by_pcr": dict(coverage.other_entries),
        "trailing_bytes": found.trailing_bytes,
        "padding_bytes": found.padding_bytes,
        **_findings(found, names),
        "kexec_boots": max(0, sum(e.pcr == pcr for e in found.boot_aggregates.items) - 1),
        "banks": [_bank(result) for result in tried.results],
        "replayed": {
            f"{chain.bank}:{register.pcr}": chain.value.hex()
            for register in found.registers
            if register.entries
            for chain in register.chains
            if chain.broken_at is None
        },
        "explanations": [explanation.as_dict() for explanation in explanations],
    }


def _findings(found: Replay, names: Mapping[int, bytes]) -> dict[str, Any]:
    """Return what was found in single entries: all are counted, the first thousand shown."""
    return {
        "templates": dict(found.templates),
        "violations": {
            "count": found.violations.count,
            "places": [_place(place, names) for place in found.violations.items],
        },
        "bad_template_hashes": {
            "count": found.bad_hashes.count,
            "places": [
                {**_place(bad.place, names), "expected": bad.expected.hex(), "got": bad.got.hex()}
                for bad in found.bad_hashes.items
            ],
        },
        "malformed": {
            "count": found.malformed.count,
            "places": [
                {**_place(bad.place, names), "field": bad.field, "reason": bad.reason}
                for bad in found.malformed.items
            ],
        },
        "boot_aggregates": [
            {
                **_place(entry.place, {}),
                "pcr": entry.pcr,
                "algorithm": entry.algorithm,
                "digest": entry.digest.hex(),
            }
            for entry in found.boot_aggregates.items
        ],
    }


def _place(place: Place, names: Mapping[int, bytes]) -> dict[str, int | str]:
    found: dict[str, int | str] = {
        "index": place.index,
        "offset": place.offset,
        "line": place.line,
    }
    if place.index in names:
        found["name"] = names[place.index].decode("utf-8", "backslashreplace")
    return found


def _bank(result: BankResult) -> dict[str, Any]:
    return {
        "bank": result.bank,
        "pcr": result.pcr,
        "reached": result.reached,
        "rule": result.rule,
        "expected": result.expected.hex(),
        "got": result.expected.hex() if result.reached else result.value.hex(),
        "match_index": result.hit.place.index if result.hit else None,
        "covered_entries": result.covered_entries,
        "tail_entries": result.entries - result.covered_entries if result.reached else None,
    }
