"""Replay a list towards the PCR values that were given, under each rule that a kernel has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from excise.errors import UsageError
from excise.evidence.ima.replay import (
    OWN,
    OWN_ZERO,
    PADDED,
    PADDED_WIDE,
    PADDED_ZERO,
    RECORDED,
    REPLAYED_BANKS,
    Chain,
    ChainSpec,
    Hit,
    Layout,
    Replay,
    Start,
    replay,
    zero,
)
from excise.evidence.ima.source import Source
from excise.evidence.pcr import BANK_SIZES_BYTES, canonical_bank

Key = tuple[int, str]
"""A register: PCR index and bank."""

DEFAULT_BANKS: Final = ("sha1", "sha256")
"""Banks replayed for display when no PCR value was given."""

_SUPPOSED_RULES: Final = (OWN_ZERO, PADDED_ZERO, RECORDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A register's value before a replay, and the rule it was reached by."""

    rule: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The PCR values given for a list.

    Attributes:
        pcr: The index that IMA extends.
        values: Value by register, in banks that can be replayed.
        unreplayable: Banks with a value of `pcr` whose hash cannot be computed here.
        boot: All values, by bank and index.
    """

    pcr: int
    values: Mapping[Key, bytes]
    unreplayable: tuple[str, ...]
    boot: Mapping[str, Mapping[int, bytes]]

    @property
    def banks(self) -> tuple[str, ...]:
        """Return the banks in which a value of IMA's PCR was given."""
        return tuple(bank for pcr, bank in self.values if pcr == self.pcr)


def targets_of(pcrs: Mapping[str, Mapping[int, bytes]], *, pcr: int) -> Targets:
    """Return the targets of a mapping of banks to indices to values.

    Raises:
        UsageError: A value has not its bank's length.
        FormatError: A bank's name is unknown.
    """
    values: dict[Key, bytes] = {}
    boot: dict[str, Mapping[int, bytes]] = {}
    unreplayable = []
    for name, given in pcrs.items():
        bank = canonical_bank(name)
        boot[bank] = {**boot.get(bank, {}), **given}
        for index, value in given.items():
            if len(value) != BANK_SIZES_BYTES[bank]:
                raise UsageError(
                    f"the value of PCR {index} has {len(value)} bytes, but the {bank} bank has "
                    f"{BANK_SIZES_BYTES[bank]}",
                    source=f"{bank}:{index}",
                    hint="Give each value under the bank it was read from.",
                )
            if bank in REPLAYED_BANKS:
                values[index, bank] = bytes(value)
        if bank not in REPLAYED_BANKS and pcr in given:
            unreplayable.append(bank)
    return Targets(pcr=pcr, values=values, unreplayable=tuple(unreplayable), boot=boot)


@dataclass(frozen=True, slots=True, kw_only=True)
class BankResult:
    """What the replay says of one value that was given.

    Attributes:
        pcr: The PCR index.
        bank: The bank.
        expected: The value given.
        rule: The rule under which it was reached; `None` if it was not.
        hit: Where it was reached; `None` if it was not, or at the very start.
        at_start: Whether the replay began with this value.
        value: The register after the last entry, under `rule` or else the bank's own digests.
        entries: Entries of the register.
        broken_at: Position of the first entry whose value could not be known.
    """

    pcr: int
    bank: str
    expected: bytes
    rule: str | None
    hit: Hit | None
    at_start: bool
    value: bytes
    entries: int
    broken_at: int | None

    @property
    def reached(self) -> bool:
        """Return whether a part of the list leads to the value."""
        return self.rule is not None

    @property
    def covered_entries(self) -> int:
        """Return how many entries of the register lead to the value."""
        return self.hit.register_entries if self.hit else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One replay of a list from one start.

    Attributes:
        start: Where it started.
        states: The registers before it; empty for zeros.
        first: The pass under the banks' expected rules.
        second: The pass under the other rules, made when a value was not reached by the first.
        results: One for each value given, of registers that the list extends.
    """

    start: Start
    states: Mapping[Key, State]
    first: Replay
    second: Replay | None
    results: tuple[BankResult, ...]

    @property
    def entry_start(self) -> Start:
        """Return the place of the first entry that was read, after a kexec header."""
        offset = self.first.first[0] if self.first.first else self.start.offset
        return Start(offset=offset, index=self.start.index, line=self.start.line)

    @property
    def reached(self) -> bool:
        """Return whether every value given was reached, and there was one."""
        return bool(self.results) and all(result.reached for result in self.results)

    @property
    def covers(self) -> bool:
        """Return whether a value covers an entry that was read."""
        return any(result.covered_entries for result in self.results)


def attempt(
    source: Source,
    targets: Targets,
    *,
    layout: Layout,
    start: Start | None = None,
    states: Mapping[Key, State] | None = None,
    suppose: bool = True,
) -> Attempt:
    """Replay a list towards its targets: first under the expected rules, then under the others.

    Args:
        source: The list.
        targets: The values looked for.
        layout: What is known of the layout.
        start: Where to start.
        states: Registers at the start; zeros where not given.
        suppose: Whether rules that no kernel has are carried in the second pass, as explanations.

    Raises:
        OSError: The file cannot be read.
    """
    start, states = start or Start(), states or {}
    others = [(bank, OWN) for bank in targets.banks or DEFAULT_BANKS]
    first = replay(
        source,
        chains=_first_chains(targets, states),
        others=others,
        layout=layout,
        start=start,
    )
    missed = [
        key
        for key, value in targets.values.items()
        if _entries(first, key[0]) and not _is_reached(first, states, key, value)
    ]
    second = None
    if missed and first.entries:
        # The same records once more: `end` keeps out what was appended to the file meanwhile.
        second = replay(
            source,
            chains=_second_chains(targets, states, missed, first, suppose),
            others=others,
            layout=first.layout,
            start=Start(offset=(first.first or (0, 0))[0], index=start.index, line=start.line),
            end_offset=first.end.offset,
        )
    results = tuple(
        _result(key, value, states.get(key), first, second)
        for key, value in targets.values.items()
        if key[0] == targets.pcr or _entries(first, key[0])
    )
    return Attempt(start=start, states=states, first=first, second=second, results=results)


def _entries(result: Replay, pcr: int) -> int:
    register = result.register(pcr)
    return register.entries if register else 0


def _first_chains(targets: Targets, states: Mapping[Key, State]) -> Iterator[ChainSpec]:
    keys = [*targets.values, *(key for key in states if key not in targets.values)]
    if not targets.banks:
        keys += [(targets.pcr, bank) for bank in DEFAULT_BANKS if (targets.pcr, bank) not in keys]
    for pcr, bank in keys:
        state = states.get((pcr, bank), State(rule=OWN, value=zero(bank)))
        yield ChainSpec(
            pcr=pcr,
            bank=bank,
            rule=state.rule,
            start=state.value,
            target=targets.values.get((pcr, bank)),
        )


def kernel_rules(bank: str, state: State | None) -> tuple[str, ...]:
    """Return the rules that a kernel may have for a bank, the likelier first.

    A bank that was reached by padded digests may turn out, at its first violation, to be one whose
    violations are as wide as the bank.
    """
    if state is not None:
        return (PADDED, PADDED_WIDE) if state.rule == PADDED else (state.rule,)
    return (OWN,) if bank == "sha1" else (OWN, PADDED, PADDED_WIDE)


def _second_chains(
    targets: Targets,
    states: Mapping[Key, State],
    missed: Iterable[Key],
    first: Replay,
    suppose: bool,
) -> Iterator[ChainSpec]:
    for key in missed:
        pcr, bank = key
        state = states.get(key)
        rules = list(kernel_rules(bank, state)[1:])
        if suppose and state is None:
            rules += [
                rule
                for rule in _SUPPOSED_RULES
                if (rule != PADDED_ZERO or bank != "sha1")
                and (rule != RECORDED or bank == first.layout.header_bank)
            ]
        for rule in rules:
            yield ChainSpec(
                pcr=pcr,
                bank=bank,
                rule=rule,
                start=state.value if state else zero(bank),
                target=targets.values[key],
            )


def _is_reached(result: Replay, states: Mapping[Key, State], key: Key, value: bytes) -> bool:
    state = states.get(key)
    chain = result.chain(*key, state.rule if state else OWN)
    return (chain is not None and chain.hit is not None) or (
        state is not None and state.value == value
    )


def _result(
    key: Key, expected: bytes, state: State | None, first: Replay, second: Replay | None
) -> BankResult:
    pcr, bank = key
    expected_rule = state.rule if state else OWN
    own = first.chain(pcr, bank, expected_rule)
    chosen: Chain | None = own if own and own.hit else None
    at_start = state is not None and state.value == expected
    if chosen is None and second is not None and not at_start:
        carried = (second.chain(pcr, bank, rule) for rule in kernel_rules(bank, state)[1:])
        chosen = next((chain for chain in carried if chain and chain.hit), None)
    shown = chosen or own
    return BankResult(
        pcr=pcr,
        bank=bank,
        expected=expected,
        rule=chosen.rule if chosen else expected_rule if at_start else None,
        hit=chosen.hit if chosen and not at_start else None,
        at_start=at_start,
        value=shown.value if shown else zero(bank),
        entries=_entries(first, pcr),
        broken_at=shown.broken_at if shown else None,
    )
