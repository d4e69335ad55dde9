"""Did the configuration take effect? Answered from what the guest itself reported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from excise.capture.journal import Effect
from excise.errors import EffectError

Rule = Literal["equals", "contains", "word", "at_least", "at_most", "absent", "matches"]
_UNKNOWN = re.compile(r'Unknown kernel command line parameters "([^"]*)"')
_READ_EARLIER = frozenset({"nokaslr"})  # by the decompressor, so the kernel proper calls it unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a fact of the guest must say.

    Attributes:
        fact: Name of the fact, or `attempt.NAME` for the outcome of an attempt.
        rule: How it is compared.
        expected: With what. `word` looks in a list parted by commas or blanks.
    """

    fact: str
    rule: Rule
    expected: str

    def check(self, facts: Mapping[str, str], *, configuration: str) -> Effect:
        """Return the answer for one guest's facts."""
        got = facts.get(self.fact)
        passed = self._holds(got)
        shown = "not reported" if got is None else _short(got)
        return Effect(
            configuration=configuration,
            check=f"guest {self.fact}",
            expected=f"{self.rule.replace('_', ' ')} {self.expected}".strip(),
            got=shown,
            outcome="PASSED" if passed else "FAILED",
        )

    def _holds(self, got: str | None) -> bool:
        if got is None:
            return self.rule == "absent"
        match self.rule:
            case "equals":
                return got == self.expected
            case "contains":
                return self.expected in got
            case "word":
                return self.expected in re.split(r"[,\s]+", got)
            case "at_least" | "at_most":
                number = re.search(r"-?\d+", got)
                if number is None:
                    return False
                value, bound = int(number[0]), int(self.expected)
                return value >= bound if self.rule == "at_least" else value <= bound
            case "matches":
                return re.search(self.expected, got) is not None
            case "absent":
                return False


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."


def check_effects(
    facts: Mapping[str, str],
    *,
    expectations: Sequence[Expectation],
    cmdline: str,
    configuration: str,
    dmesg: str,
    refused: str = "",
) -> tuple[Effect, ...]:
    """Return every answer: command line, unknown words in it, set-up, the preset's expectations.

    Args:
        facts: What the guest reported.
        expectations: What the preset asks for.
        cmdline: The command line it was given.
        configuration: Name for the answers.
        dmesg: The kernel's log.
        refused: What the guest's set-up said about a step that failed, or "".
    """
    got_cmdline = facts.get("cmdline")
    words = " ".join(_UNKNOWN.findall(dmesg)).split()
    unknown = " ".join(word for word in words if word not in _READ_EARLIER)
    own = [
        Effect(
            configuration=configuration,
            check="guest cmdline",
            expected=f"equals {cmdline}",
            got=got_cmdline if got_cmdline is not None else "not reported",
            outcome="PASSED" if got_cmdline == cmdline else "FAILED",
        ),
        Effect(
            configuration=configuration,
            check="guest dmesg: unknown kernel command line parameters",
            expected="none",
            got=unknown or "none",
            outcome="FAILED" if unknown else "PASSED",
        ),
        Effect(
            configuration=configuration,
            check="guest set-up",
            expected="every step done",
            got=refused or "every step done",
            outcome="FAILED" if refused else "PASSED",
        ),
    ]
    if refused:  # nothing was measured, and what would prove it was not attempted
        return tuple(own)
    return (*own, *(e.check(facts, configuration=configuration) for e in expectations))


def require_effects(effects: Sequence[Effect], *, configuration: str, kernel: str) -> None:
    """Raise if a check failed.

    Raises:
        EffectError: It lists every failed check with what was expected and found.
    """
    failed = [effect for effect in effects if effect.outcome == "FAILED"]
    if failed:
        listed = "; ".join(f"{e.check}: expected {e.expected}, got {e.got}" for e in failed)
        raise EffectError(
            f"configuration {configuration} did not take effect on kernel {kernel}: {listed}",
            hint="Check the preset's parameters against what this kernel supports",
        )
