"""The answer of `selftest check`: does anybody pay for self-tests while FIPS is off?"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from excise.collect.selftest.observe import Observation, ObservedTest, observe
from excise.collect.selftest.system import (
    Evidence,
    environment_evidence,
    fips_enabled,
    gcrypt_evidence,
    kernel_evidence,
    openssl_evidence,
    process_evidence,
)
from excise.units import counted


class Answer(StrEnum):
    """Does it pay for self-tests while FIPS is off?"""

    YES = "yes"
    NO = "no"
    NOT_COVERED = "not covered"


_EXIT_CODES = {Answer.YES: 1, Answer.NO: 0, Answer.NOT_COVERED: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An answer with its evidence.

    Attributes:
        subject: What was asked about.
        fips_on: Whether the kernel's FIPS switch is on: then self-tests are what was asked for.
        tests: Self-tests that were seen to run.
        ended: How the command ended; None where none was run.
    """

    subject: str
    answer: Answer
    fips_on: bool
    evidence: tuple[Evidence, ...]
    tests: tuple[ObservedTest, ...] = ()
    ended: str | None = None

    @property
    def exit_code(self) -> int:
        """Return 1 for yes, 0 for no, 4 where it cannot be seen."""
        return _EXIT_CODES[self.answer]

    @property
    def tests_ns(self) -> int:
        """Return the time in self-tests, in nanoseconds."""
        return sum(test.duration_ns or 0 for test in self.tests)


def check_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    fips_on: bool | None = None,
) -> Check:
    """Run a command under observation and say whether it pays for self-tests while FIPS is off.

    Args:
        command: The command and its words.
        environment: Its whole environment; this process's by default.
        fips_on: The kernel's FIPS switch; read from the kernel when None.

    Raises:
        HostError: If the command cannot be started or traced.
    """
    variables = dict(os.environ if environment is None else environment)
    on = bool(fips_enabled()) if fips_on is None else fips_on
    seen = observe(command, environment=variables)
    rows = [*kernel_evidence(), *_seen(seen)]
    ran = bool(seen.tests or seen.modes)
    if ran:
        given = dict(each.split("=", 1) for each in seen.switches)
        rows += _causes({**variables, **given})
    return Check(
        subject=shlex.join([Path(command[0]).name, *command[1:]]),
        answer=_answer(ran=ran, on=on, unseen=bool(seen.unseen)),
        fips_on=on,
        evidence=tuple(rows),
        tests=seen.tests,
        ended=seen.ended,
    )


def check_process(pid: int, *, fips_on: bool | None = None) -> Check:
    """Say whether a running process has paid, from what it has loaded and is set to.

    Raises:
        HostError: If there is no such process, or it may not be looked at.
    """
    on = bool(fips_enabled()) if fips_on is None else fips_on
    rows = process_evidence(pid)
    return _from_rows(f"process {pid}", [*kernel_evidence(), *rows], on)


def check_system(*, fips_on: bool | None = None) -> Check:
    """Say whether this system is set up so that processes pay without asking."""
    on = bool(fips_enabled()) if fips_on is None else fips_on
    rows = [*kernel_evidence(), gcrypt_evidence(), *openssl_evidence(os.environ)]
    rows += environment_evidence(os.environ)
    return _from_rows("this system", rows, on)


def _from_rows(subject: str, rows: Sequence[Evidence], on: bool) -> Check:
    points = {each.points for each in rows}
    answer = _answer(ran="yes" in points, on=on, unseen="unseen" in points)
    return Check(subject=subject, answer=answer, fips_on=on, evidence=tuple(rows))


def _answer(*, ran: bool, on: bool, unseen: bool) -> Answer:
    if ran:
        return Answer.NO if on else Answer.YES
    return Answer.NOT_COVERED if unseen else Answer.NO


def _seen(seen: Observation) -> list[Evidence]:
    rows = []
    for library in dict.fromkeys(test.library for test in seen.tests):
        tests = [test for test in seen.tests if test.library == library]
        programs = ", ".join(dict.fromkeys(test.program for test in tests))
        took = sum(test.duration_ns or 0 for test in tests) / 1e6
        found = f"{counted(len(tests), 'self-test')} ran in {programs}, {took:.1f} ms"
        rows.append(Evidence(source=f"observed {library}", found=found, points="yes"))
    rows += [
        Evidence(source="observed", found=f"FIPS mode is on in {each}", points="yes")
        for each in seen.modes
    ]
    rows += [Evidence(source="observed", found=each, points="unseen") for each in seen.unseen]
    if not rows:
        libraries = ", ".join(seen.libraries) or "no cryptographic library"
        found = f"no self-test ran; loaded: {libraries}; every program could be seen into"
        rows.append(Evidence(source="observed", found=found, points="no"))
    return rows


def _causes(environment: Mapping[str, str]) -> list[Evidence]:
    """Return the switches that explain self-tests, as far as they are set outside the program."""
    rows = [*environment_evidence(environment), gcrypt_evidence(), *openssl_evidence(environment)]
    causes = [each for each in rows if each.points == "yes"]
    if causes:
        return causes
    found = "no switch or configuration asks for them: the program itself does"
    return [Evidence(source="cause", found=found)]
