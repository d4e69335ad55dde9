"""Verify a boot log against register values.

The steps, labelled in the code:

 1. The whole log is read: every byte belongs to an event or to padding.
 2. For every bank that values were given in, each register that the log extends reaches its value.
    A register that was never extended proves nothing of a log, and is not counted; one of the
    firmware's own that was extended, and by no event of the log, shows that the log was cut.
 3. Where PCR 5 falls short by exactly the events that firmware logs when the loader leaves its
    services, these are supplied: their text, and so their digest, is fixed by the specification.
 4. What the registers do not authenticate is said: event types, and data that is not what its
    digest is of.

Source: TCG PC Client Platform Firmware Profile 1.06, 3.3.4 and 10.4; RFC 9334, 8.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.eventlog import (
    EventLog,
    ReplayedRegister,
    digest,
    extend,
    read_event_log,
    replay_event_log,
    start_value,
)
from excise.evidence.eventlog_types import NAMES, SELF_DESCRIBING, type_name
from excise.evidence.pcr import canonical_bank
from excise.units import counted

_CLAUSE: Final = "TCG PC Client Platform Firmware Profile 1.06, 10.4"
_INVOCATION: Final = b"Exit Boot Services Invocation"
_SUCCESS: Final = b"Exit Boot Services Returned with Success"
_FAILURE: Final = b"Exit Boot Services Returned with Failure"
_LEFT_OUT: Final = (
    (_INVOCATION, _SUCCESS),
    (_INVOCATION, _FAILURE),
    (_INVOCATION, _FAILURE, _INVOCATION, _SUCCESS),
)
_BOOT_PCR: Final = 5
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterResult:
    """One register that the log extends, and the value given for it.

    Attributes:
        replayed: Where the log leads it.
        expected: The value given; None if none was.
        supplied: Texts of events that the log lacks and that lead to the value.
    """

    replayed: ReplayedRegister
    expected: bytes | None
    supplied: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """Return whether the log leads to the value that was given."""
        whole = self.replayed.broken_at is None and self.replayed.value == self.expected
        return self.expected is not None and (whole or bool(self.supplied))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogAppraisal(AppraisalResult):
    """What a boot log proves.

    Attributes:
        log: The log; trust its events only when the verdict is PASSED, and then only digests.
        registers: One result for each register and bank that the log extends.
    """

    log: EventLog
    registers: tuple[RegisterResult, ...]

    @property
    def verdict(self) -> Outcome:
        """Return PASSED only if a register was compared and all that were compared are reached."""
        verdict = verdict_of(self.checks)
        if verdict is Outcome.PASSED and not any(each.reached for each in self.registers):
            return Outcome.NOT_COVERED
        return verdict

    def details(self) -> tuple[str, ...]:
        """Return the value that each register is led to, one line each."""
        what = "register" if self.log.format == "ccel" else "PCR"
        return tuple(
            f"{what} {each.replayed.register} {each.replayed.bank}: {each.replayed.value.hex()} "
            f"after {counted(each.replayed.events, 'event')}"
            for each in self.registers
        )


def verify_event_log(
    data: bytes,
    *,
    pcrs: Mapping[str, Mapping[int, bytes]],
    source: str | None = None,
) -> EventLogAppraisal:
    """Return whether a boot log leads to the register values given, with every check made.

    Args:
        data: The log.
        pcrs: Values by bank and index: of PCRs, or for a CCEL of measurement registers, whose
            index 1 is RTMR 0.
        source: Its name in messages.

    Raises:
        FormatError: The data is no log at all, or a bank's name is unknown.
    """
    log = read_event_log(data, source=source)
    given: dict[str, Mapping[int, bytes]] = {}
    for name, values in pcrs.items():
        bank = canonical_bank(name)
        given[bank] = {**given.get(bank, {}), **values}
    registers = tuple(
        _result(log, replayed, given.get(replayed.bank, {}).get(replayed.register))
        for replayed in replay_event_log(log)
    )
    checks = [_whole(log), *_register_checks(log, registers, given), _types(log), _payloads(log)]
    return EventLogAppraisal(
        subject="eventlog",
        checks=tuple(checks),
        facts=_facts(log, registers),
        log=log,
        registers=registers,
    )


def _whole(log: EventLog) -> Check:
    """Step 1."""
    got = f"{len(log.events)} events, {log.padding_bytes} bytes of padding"
    if log.fault is not None:
        got = f"{len(log.events)} events, then {log.trailing_bytes} bytes unread: {log.fault}"
    return Check(
        id="eventlog.whole",
        outcome=Outcome.FAILED if log.fault is not None else Outcome.PASSED,
        expected="events to the end of the log",
        got=got,
        clause="TCG PC Client Platform Firmware Profile 1.06, 10.2",
    )


def _result(log: EventLog, replayed: ReplayedRegister, expected: bytes | None) -> RegisterResult:
    """Steps 2 and 3."""
    supplied: tuple[str, ...] = ()
    lacks = expected is not None and replayed.value != expected and replayed.broken_at is None
    if lacks and log.format != "ccel" and replayed.register == _BOOT_PCR:
        for texts in _LEFT_OUT:
            value = replayed.value
            for text in texts:
                value = extend(replayed.bank, value, digest(replayed.bank, text))
            if value == expected:
                supplied = tuple(text.decode() for text in texts)
    return RegisterResult(replayed=replayed, expected=expected, supplied=supplied)


def _register_checks(
    log: EventLog,
    registers: Iterable[RegisterResult],
    given: Mapping[str, Mapping[int, bytes]],
) -> Iterator[Check]:
    if not given:
        yield Check(
            id="eventlog.pcr",
            outcome=Outcome.NOT_COVERED,
            expected="values of the registers",
            got="none given",
            clause="RFC 9334, 8.1",
            detail="A log alone proves nothing: give PCR values, or a quote over them.",
        )
    for bank, values in given.items():
        mine = [each for each in registers if each.replayed.bank == bank]
        yield _bank_check(log, bank, mine, values)


def _bank_check(
    log: EventLog, bank: str, mine: list[RegisterResult], values: Mapping[int, bytes]
) -> Check:
    missed = [each for each in mine if each.expected is not None and not each.reached]
    reached = [each for each in mine if each.reached]
    mute = [
        index
        for index, value in values.items()
        if index not in {each.replayed.register for each in mine}
        and value not in (start_value(log, index, bank), b"\xff" * len(value))
    ]
    details = [_miss(each) for each in missed]
    details += [
        f"PCR {_BOOT_PCR} is reached with events that the log lacks: {', '.join(each.supplied)}."
        for each in reached
        if each.supplied
    ]
    if bank not in log.banks:
        details.append(f"The log has no digests of the {bank} bank, only of {_names(log.banks)}.")
    if mute:
        details.append(f"Extended by what this log does not show: {_names(sorted(mute))}.")
    # The firmware itself extends these: a log without an event of theirs was cut.
    cut = bank in log.banks and any(index in _firmware_registers(log) for index in mute)
    outcome = Outcome.PASSED if reached else Outcome.NOT_COVERED
    return Check(
        id=f"eventlog.pcr.{bank}",
        outcome=Outcome.FAILED if missed or cut else outcome,
        expected="; ".join(f"{e.replayed.register}: {(e.expected or b'').hex()}" for e in missed)
        or "each register that the log extends at its value",
        got="; ".join(f"{e.replayed.register}: {e.replayed.value.hex()}" for e in missed)
        or f"reached: {_names([e.replayed.register for e in reached])}",
        clause=_CLAUSE,
        detail=" ".join(details),
    )


def _firmware_registers(log: EventLog) -> range:
    return range(1, 3) if log.format == "ccel" else range(8)


def _miss(each: RegisterResult) -> str:
    found = each.replayed
    if found.broken_at is not None:
        return f"Event {found.broken_at} has no {found.bank} digest for register {found.register}."
    return f"Register {found.register} has another value than its {found.events} events lead to."


def _names(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def _types(log: EventLog) -> Check:
    """Step 4: a type that is not known could hide what an event means."""
    unknown = sorted({event.type for event in log.events if event.type not in NAMES})
    return Check(
        id="eventlog.types",
        outcome=Outcome.NOT_COVERED if unknown else Outcome.PASSED,
        expected="event types of the specification",
        got=f"unknown: {_names(type_name(each) for each in unknown)}" if unknown else "all known",
        clause="TCG PC Client Platform Firmware Profile 1.06, table 17",
        detail="Registers hold digests: the type of an event is only what the log says.",
    )


def _payloads(log: EventLog) -> Check:
    """Step 4: data that is not what its digest is of."""
    asked = [e for e in log.events if e.type in SELF_DESCRIBING]
    others = [event for event in asked if not _is_digest_of_data(event.digests, event.data)]
    shown = _names(f"{event.index} ({event.name})" for event in others[:_SHOWN])
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    outcome = Outcome.PASSED if asked else Outcome.NOT_COVERED
    return Check(
        id="eventlog.payloads",
        outcome=Outcome.NOT_COVERED if others else outcome,
        expected="data of variables, actions and separators as its digest says",
        got=f"{len(asked) - len(others)} of {len(asked)}"
        + (f"; not: {shown}{more}" if others else ""),
        clause=_CLAUSE,
        detail="Some firmware hashes other bytes than it logs: such data proves nothing, and the "
        "register is right nevertheless."
        if others
        else "",
    )


def _is_digest_of_data(digests: Mapping[str, bytes], data: bytes) -> bool:
    for bank in ("sha256", "sha384", "sha1", "sha512"):
        if bank in digests:
            return digests[bank] == digest(bank, data)
    return False


def _facts(log: EventLog, registers: Iterable[RegisterResult]) -> dict[str, Any]:
    types: dict[str, int] = {}
    for event in log.events:
        types[event.name] = types.get(event.name, 0) + 1
    return {
        "format": log.format,
        "banks": list(log.banks),
        "unknown_algorithms": [f"0x{each:04x}" for each in log.unknown_algorithms],
        "events": len(log.events),
        "padding_bytes": log.padding_bytes,
        "trailing_bytes": log.trailing_bytes,
        "startup_locality": log.startup_locality if log.format != "ccel" else None,
        "types": types,
        "registers": [
            {
                "register": each.replayed.register,
                "bank": each.replayed.bank,
                "value": each.replayed.value.hex(),
                "events": each.replayed.events,
                "expected": each.expected.hex() if each.expected is not None else None,
                "reached": each.reached if each.expected is not None else None,
                "supplied": list(each.supplied),
            }
            for each in registers
        ],
    }
