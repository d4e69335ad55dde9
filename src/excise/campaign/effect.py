"""Did the configuration take effect? Asked before anything is measured, and on every resume."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from excise.campaign.spec import Configuration, TookEffect
from excise.capture.journal import Effect
from excise.collect.launcher import Exec, ExecResult
from excise.collect.probe import ask_probe
from excise.errors import ConnectionLost, ExciseError

Execute = Callable[[Exec], ExecResult]
ReadFile = Callable[[str], str]
SECCOMP_MODE_FILTER: Final = 2  # linux/seccomp.h
_IMA_COUNT: Final = "/sys/kernel/security/ima/runtime_measurements_count"
_TIMEOUT_NS: Final = 60_000_000_000


def read_here(path: str) -> str:
    """Return the text of a file of this machine.

    Raises:
        OSError: If it cannot be read.
    """
    return Path(path).read_text(errors="replace")


def check_effects(
    configuration: Configuration,
    *,
    execute: Execute,
    prefix: list[str],
    work_directory: str,
    read_file: ReadFile = read_here,
    ask: Callable[..., Any] = ask_probe,
) -> list[Effect]:
    """Return the answer of every check of a configuration.

    Args:
        configuration: What must be in effect.
        execute: Runs an unmeasured command.
        prefix: Words that put a command under the configuration.
        work_directory: Folder that a Landlock ruleset allows.
        read_file: Reads a file of the machine under test.
        ask: Runs its probe, as `ask_probe` does.

    Raises:
        ConnectionLost: That machine gave no answer, which says nothing of the configuration.
    """
    effects = []
    if configuration.probe:
        effects.append(_probe_effect(configuration, work_directory, ask))
    if configuration.ima_appraise is not None:
        effects.append(_appraise_effect(configuration, work_directory, ask))
    for check in (*_implied(configuration), *configuration.took_effect):
        try:
            how, expected, got, passed = _look(check, configuration, execute, prefix, read_file)
        except ConnectionLost:
            raise
        except ExciseError as error:
            how, expected, got, passed = _how(check), _wanted(check), str(error), False
        effects.append(_effect(configuration.name, how, expected, got, passed=passed))
    return effects


def effect_of_text(
    check: TookEffect, *, configuration: str, text: str, exit_code: int | None
) -> Effect:
    """Return the answer to a check that was asked elsewhere.

    Args:
        check: What was asked.
        configuration: Under which configuration.
        text: What the file held, or the command printed.
        exit_code: The command's exit code; None if it could not be run.
    """
    wanted = check.exit_code if check.command else 0
    passed = exit_code == wanted and _matches(check, text)
    got = _seen(check, text) if exit_code == wanted else f"exit code {exit_code}: {_short(text)}"
    return _effect(configuration, _how(check), _wanted(check), got, passed=passed)


def _probe_effect(
    configuration: Configuration, work_directory: str, ask: Callable[..., Any]
) -> Effect:
    """Ask the probe to put the mechanisms on itself and to prove that they hold."""
    words = ["run", "--workload", "null", "--operations", "100000", "--batches", "1"]
    expected = " ".join(configuration.probe)
    try:
        answer = ask(*words, "--directory", work_directory, *configuration.probe)
    except ConnectionLost:
        raise
    except ExciseError as error:
        return _effect(configuration.name, "probe", expected, str(error), passed=False)
    mechanism = answer.get("mechanism", {})
    got = ", ".join(f"{name}={value}" for name, value in mechanism.items())
    passed = all(_is_proven(words, mechanism) for words in _mechanisms(configuration.probe))
    return _effect(configuration.name, "probe", expected, got, passed=passed)


def _implied(configuration: Configuration) -> list[TookEffect]:
    """Return the checks of what a configuration says it boots with."""
    checks = []
    if configuration.lsm is not None:
        pattern = configuration.lsm_pattern()
        checks.append(TookEffect(file="/sys/kernel/security/lsm", matches=pattern))
    if configuration.fips is not None:
        state = str(int(configuration.fips))
        checks.append(TookEffect(file="/proc/sys/crypto/fips_enabled", equals=state))
    if configuration.measures is not None:
        # Without a policy the list holds the boot aggregate, or nothing.
        pattern = r"^([2-9]|\d\d+)$" if configuration.measures else "^[01]$"
        checks.append(TookEffect(file=_IMA_COUNT, matches=pattern))
    return checks


def _appraise_effect(
    configuration: Configuration, work_directory: str, ask: Callable[..., Any]
) -> Effect:
    """Have the probe take a file's label away and open it: refused only where IMA enforces."""
    wanted = str(configuration.ima_appraise)
    how = "probe appraise"
    try:
        answer = ask("appraise", "--directory", work_directory)
    except ConnectionLost:
        raise
    except ExciseError as error:
        return _effect(configuration.name, how, wanted, str(error), passed=False)
    mode = str(answer.get("ima_appraise"))
    opened = "opened" if answer.get("opened_without_label") else "refused"
    got = f"{mode} (a file without a label was {opened})"
    return _effect(configuration.name, how, wanted, got, passed=mode == wanted)


def _mechanisms(words: list[str]) -> list[list[str]]:
    """Split the probe's options: each with the words that belong to it."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not found:
            found.append([word])
        else:
            found[-1].append(word)
    return found


def _is_proven(option: list[str], mechanism: dict[str, Any]) -> bool:
    """Tell whether the probe saw its own option hold; an option we cannot judge does not."""
    match option:
        case ["--landlock"]:
            return mechanism.get("landlock_denies_outside") is True
        case ["--seccomp", count]:
            rules = mechanism.get("seccomp_rules")
            return str(rules) == count and mechanism.get("seccomp_mode") == SECCOMP_MODE_FILTER
        case ["--no-new-privs"]:
            return mechanism.get("no_new_privs") is True
    return False


def _look(
    check: TookEffect,
    configuration: Configuration,
    execute: Execute,
    prefix: list[str],
    read_file: ReadFile,
) -> tuple[str, str, str, bool]:
    if check.file is not None:
        try:
            got = read_file(check.file)
        except OSError as error:
            return _how(check), _wanted(check), f"cannot be read ({error.strerror})", False
        return _how(check), _wanted(check), _seen(check, got), _matches(check, got)
    words = check.command or ["env", "-0"]
    result = execute(
        Exec(
            argv=[*prefix, *words],
            environment=configuration.environment,
            unset=configuration.unset,
            timeout_ns=_TIMEOUT_NS,
            expect=[check.exit_code],
        )
    )
    if not result.ok:
        reason = result.error or f"exit code {result.exit_code}: {result.stderr.strip()}"
        return _how(check), _wanted(check), _short(reason), False
    if check.environment is None:
        return (
            _how(check),
            _wanted(check),
            _seen(check, result.stdout),
            _matches(check, result.stdout),
        )
    variables = dict(each.partition("=")[::2] for each in result.stdout.split("\0") if each)
    value = variables.get(check.environment)
    if value is None:
        return _how(check), _wanted(check), "not set", False
    return _how(check), _wanted(check), _short(value), _matches(check, value)


def _matches(check: TookEffect, got: str) -> bool:
    if check.equals is not None:
        return got.strip() == check.equals.strip()
    if check.contains is not None:
        return check.contains in got
    if check.matches is not None:
        return re.search(check.matches, got, re.M) is not None
    return True


def _how(check: TookEffect) -> str:
    if check.file is not None:
        return f"file {check.file}"
    if check.environment is not None:
        return f"environment {check.environment}"
    return "command " + " ".join(check.command or [])


def _wanted(check: TookEffect) -> str:
    for word, value in (
        ("equals", check.equals),
        ("contains", check.contains),
        ("matches", check.matches),
    ):
        if value is not None:
            return f"{word} {value!r}"
    return f"exit code {check.exit_code}" if check.command else "set"


def _effect(configuration: str, how: str, expected: str, got: str, *, passed: bool) -> Effect:
    outcome: Literal["PASSED", "FAILED"] = "PASSED" if passed else "FAILED"
    return Effect(
        configuration=configuration, check=how, expected=expected, got=got, outcome=outcome
    )


def _seen(check: TookEffect, text: str) -> str:
    """Return the line that was looked for, where it is there; else the beginning of all."""
    for line in text.splitlines():
        if (check.matches and re.search(check.matches, line)) or (
            check.contains and check.contains in line
        ):
            return _short(line)
    return _short(text)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:199] + "…"
