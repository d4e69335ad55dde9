"""Why a PCR value is not reached: the nearest explanations, and what each of them would give.

An explanation never turns a failed check into a passed one; it tells where to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from excise import _core
from excise.evidence.checks import Check, Outcome
from excise.evidence.ima.attempt import Attempt, BankResult, Targets, kernel_rules
from excise.evidence.ima.replay import (
    OWN,
    OWN_ZERO,
    PADDED,
    PADDED_WIDE,
    PADDED_ZERO,
    RECORDED,
    ChainSpec,
    Layout,
    Place,
    replay,
    zero,
)
from excise.evidence.ima.source import Source
from excise.evidence.pcr import BANK_SIZES_BYTES

_RULE_TEXTS: Final = {
    PADDED: "zero-padded SHA-1 digests, violations as 20 bytes of 0xff",
    PADDED_WIDE: "zero-padded SHA-1 digests, violations as 0xff over the bank's width",
    OWN_ZERO: "violations extended as zeros",
    PADDED_ZERO: "zero-padded SHA-1 digests, violations extended as zeros",
    RECORDED: "the template hashes as the list shows them, whatever its data hashes to",
}
_HINTS: Final = {
    OWN_ZERO: "whatever extended the PCR fed the zeros that the list shows for violations",
    PADDED_ZERO: "whatever extended the PCR fed the zeros that the list shows for violations",
    RECORDED: "template data was changed, and the hashes beside it were left as they were",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One explanation that was tried.

    Attributes:
        id: Stable identifier, such as `dropped-entry`.
        bank: The bank it was tried in.
        reaches: Whether the value given is reached under it; `None` when it was not tried.
        value: What the register would be after the last entry, hex; empty where there is no
            single value.
        detail: One sentence.
    """

    id: str
    bank: str
    reaches: bool | None
    value: str = ""
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values."""
        return {
            "id": self.id,
            "bank": self.bank,
            "reaches": self.reaches,
            "value": self.value,
            "detail": self.detail,
        }


def explain(
    source: Source, targets: Targets, tried: Attempt, boot_aggregate: Check
) -> tuple[Explanation, ...]:
    """Try the nearest explanations for every value that was not reached.

    Args:
        source: The list.
        targets: The values given.
        tried: The failed attempt.
        boot_aggregate: The check of the boot_aggregate entries.

    Returns:
        All explanations tried, those that reach a value first.

    Raises:
        OSError: The file cannot be read.
    """
    failed = [r for r in tried.results if r.pcr == targets.pcr and not r.reached and r.entries]
    if not failed:
        return ()
    found = [
        *(e for result in failed for e in _register_values(result)),
        *(e for result in failed for e in _rules(tried, result)),
        *_other_order(source, tried, failed),
        *_searched(source, tried, failed),
    ]
    if tried.first.fault is not None and tried.first.fault.truncated:
        text = "The list ends inside an entry: the value may be that of entries missing here."
        found.append(Explanation(id="cut-list", bank=failed[0].bank, reaches=None, detail=text))
    if boot_aggregate.outcome is Outcome.FAILED:
        text = "The list's boot_aggregate is not that of the PCRs given: it is from another boot."
        found.append(Explanation(id="other-boot", bank=failed[0].bank, reaches=None, detail=text))
    return tuple(sorted(found, key=lambda e: e.reaches is not True))


def _register_values(result: BankResult) -> Iterator[Explanation]:
    """Name values that need no list."""
    if not any(result.expected):
        yield Explanation(
            id="reset-value",
            bank=result.bank,
            reaches=True,
            value=result.expected.hex(),
            detail="The value is that of a register nothing was extended into since its reset.",
        )
    size_bytes = BANK_SIZES_BYTES[result.bank]
    once = _core.ima_digest(result.bank, bytes(size_bytes) + b"\xff" * size_bytes)
    if once == result.expected:
        yield Explanation(
            id="capped-bank",
            bank=result.bank,
            reaches=True,
            value=once.hex(),
            detail="The register was extended once with 0xff and no more: the bank was shut.",
        )


def _rules(tried: Attempt, result: BankResult) -> Iterator[Explanation]:
    if tried.second is None:
        return
    real = kernel_rules(result.bank, tried.states.get((result.pcr, result.bank)))
    for rule, text in _RULE_TEXTS.items():
        chain = tried.second.chain(result.pcr, result.bank, rule)
        if chain is None or (rule in (OWN_ZERO, PADDED_ZERO) and not tried.first.violations.count):
            continue
        reaches = chain.hit is not None
        hint = f": {_HINTS[rule]}" if reaches and rule in _HINTS else ""
        tested = "A kernel's rule" if rule in real else "Supposed"
        yield Explanation(
            id=rule,
            bank=result.bank,
            reaches=reaches,
            value=(
                chain.hit.states[result.pcr, result.bank, rule] if chain.hit else chain.value
            ).hex(),
            detail=f"{tested}: {text}{hint}.",
        )


def _other_order(source: Source, tried: Attempt, failed: list[BankResult]) -> Iterator[Explanation]:
    """Try the byte order that was not used."""
    layout = tried.first.layout
    order = "big" if layout.byte_order == "little" else "little"
    other = Layout(format=layout.format, byte_order=order, header_bank=layout.header_bank)
    chains = [_spec(tried, result, OWN) for result in failed]
    again = replay(source, chains=chains, layout=other, start=tried.entry_start)
    for result in failed:
        chain = again.chain(result.pcr, result.bank)
        read = f"{again.entries} entries can be read in {order}-endian order"
        yield Explanation(
            id="byte-order",
            bank=result.bank,
            reaches=chain is not None and chain.hit is not None,
            value=chain.value.hex() if chain and again.entries else "",
            detail=f"{read}, {again.bad_hashes.count} of them with a wrong template hash.",
        )


def _spec(tried: Attempt, result: BankResult, rule: str) -> ChainSpec:
    state = tried.states.get((result.pcr, result.bank))
    return ChainSpec(
        pcr=result.pcr,
        bank=result.bank,
        rule=rule,
        start=state.value if state else zero(result.bank),
        target=result.expected,
    )


_COST: Final = {"sha1": 0, "sha256": 1, "sha512": 2, "sha384": 3, "sm3_256": 4}


def _searched(source: Source, tried: Attempt, failed: list[BankResult]) -> Iterator[Explanation]:
    """Search one lost or misplaced extend: in the cheapest bank, then check it in the others."""
    ordered = sorted(failed, key=lambda result: _COST[result.bank])
    found: tuple[str, Place] | None = None
    for result in ordered:
        rules = kernel_rules(result.bank, tried.states.get((result.pcr, result.bank)))
        rules = rules if tried.first.violations.count else rules[:2]
        for rule in rules:
            entries, count, answer = _search(source, tried, _spec(tried, result, rule), found)
            if answer is None:
                continue
            supposition, raw_place, reached = answer
            place = Place(*raw_place)
            found = (supposition, place)
            yield Explanation(
                id=f"{supposition}-entry",
                bank=result.bank,
                reaches=True,
                value=result.expected.hex(),
                detail=_search_text(supposition, place, reached, rule),
            )
            break
        else:
            if found is None and result is ordered[0]:
                yield Explanation(
                    id="dropped-or-swapped-entry",
                    bank=result.bank,
                    reaches=False,
                    detail=f"Leaving out one entry, or swapping two neighbours, was tried on the "
                    f"last {count} of {entries} entries.",
                )
                return
            yield Explanation(
                id=f"{found[0] if found else 'dropped'}-entry",
                bank=result.bank,
                reaches=False,
                detail="What explains another bank does not explain this one.",
            )


def _search_text(supposition: str, place: Place, reached: int, rule: str) -> str:
    what = (
        f"The value is reached at entry {reached} if {place} was listed but not extended"
        if supposition == "dropped"
        else f"The value is reached at entry {reached} if {place} and the next were extended in "
        "the other order"
    )
    why = ": its extend failed, or the entry was put in" if supposition == "dropped" else ""
    return f"{what}{why} (rule {rule})."


def _search(
    source: Source, tried: Attempt, spec: ChainSpec, only: tuple[str, Place] | None
) -> tuple[int, int, tuple[str, tuple[int, int, int], int] | None]:
    layout, start = tried.first.layout, tried.entry_start
    return _core.ima_search(
        source.native,
        spec.native(),
        known=(layout.format, layout.byte_order, layout.header_bank),
        start=(start.offset, start.index, start.line),
        end=tried.first.end.offset,
        only=(only[0], only[1].index) if only else None,
    )
