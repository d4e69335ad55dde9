"""`selftest commands` as a campaign: whole commands with self-tests off, on, and on with cache.

Every command runs under every state once a block, warm, and again with its files dropped from the
page cache. The states differ in environment variables alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise.campaign.spec import Campaign, Configuration, Task, TookEffect, checked
from excise.collect.selftest.gobuild import judge, read_build
from excise.collect.selftest.libraries import LIBRARIES, look_for
from excise.collect.selftest.native import EVICT, LIBRARY_START, helper
from excise.collect.selftest.openssl import CACHED, ON, SWITCHES, Provider, Variant, find_provider
from excise.collect.selftest.system import has_interpreter
from excise.collect.selftest.tree import Tree, cache_folder
from excise.errors import HostError, UsageError

OFF_ARM: Final = "off"
ON_ARM: Final = "on"
CACHED_ARM: Final = "on, cached status"
COLD: Final = ", cold"
GO_ON: Final = "fips140=on"
GO_OFF: Final = "fips140=off"
DEFAULT_COMMANDS: Final = (
    "openssl version",
    "openssl rand -hex 8",
    "curl --version",
    "ssh -V",
    "gpg --version",
    "python3 -c 'import ssl'",
)
_OFF_CONFIGURATION: Final = "openssl_conf = openssl_init\n[openssl_init]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A campaign of commands, and what could not be part of it.

    Attributes:
        notes: One sentence for each thing that a reader should know.
    """

    campaign: Campaign
    notes: tuple[str, ...]


def plan_commands(
    commands: Sequence[str],
    *,
    tree: Tree,
    blocks: int,
    cold: bool,
    seed: int = 1,
) -> Plan:
    """Return the campaign for commands written as in a shell.

    Args:
        commands: Commands; a set of usual ones when empty, as far as they are there.
        tree: The host, or a tree of another suite whose programs are run.
        blocks: Measured blocks.
        cold: Whether to measure each state also with its files dropped from the page cache.
        seed: Seed of the order.

    Raises:
        UsageError: If a command cannot be split into words.
        HostError: If a named command is not there, or nothing can be switched on.
    """
    notes: list[str] = []
    tasks, files, go = [], [], False
    for text in commands or DEFAULT_COMMANDS:
        words = _words(text)
        try:
            program = tree.program(words[0]) if "/" not in words[0] else Path(words[0])
        except HostError as error:
            if commands:
                raise
            notes.append(f"{text}: left out, {error.reason}.")
            continue
        # A static program has no loader of any tree.
        direct = not has_interpreter(program)
        command = [str(program), *words[1:]] if direct else tree.start(program, *words[1:])
        tasks.append(Task(name=text[:80], command=command))
        build = read_build(program)
        go = go or (build is not None and judge(build, GO_ON).tests is True)
        files += [path for path in tree.objects(program) if path not in files]
    if not tasks:
        raise HostError("none of the usual commands is here", hint="Name one")
    states = _states(tree, notes, go=go)
    if cold:
        states += [_cold(each, files) for each in states]
    campaign = Campaign(
        title=f"Self-tests in whole commands ({tree.suite})",
        configurations=states,
        tasks=tasks,
        baseline=OFF_ARM,
        blocks=blocks,
        seed=seed,
        margin="5%",
    )
    return Plan(campaign=checked(campaign, source="selftest commands"), notes=tuple(notes))


def baselines_of(campaign: Campaign) -> dict[str, str]:
    """Return, for each state that is on, the state off that it is compared with."""
    names = [each.name for each in campaign.configurations]
    return {
        name: OFF_ARM + (COLD if name.endswith(COLD) else "")
        for name in names
        if name not in (OFF_ARM, OFF_ARM + COLD)
    }


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot be split into words ({error})", source=text) from error
    if not words:
        raise UsageError("a command has no words")
    return words


def _states(tree: Tree, notes: list[str], *, go: bool) -> list[Configuration]:
    """Return off, on, and on with cached status, as far as there is something to switch."""
    folder = cache_folder() / "fips" / tree.suite
    folder.mkdir(parents=True, exist_ok=True)
    off_file = folder / "off.cnf"
    off_file.write_text(_OFF_CONFIGURATION)
    base = {**tree.environment, "OPENSSL_CONF": str(off_file)}
    # That it has an effect is known from the programs' files: see excise.collect.selftest.gobuild.
    # A program may be on by its own default, so off is said too.
    base |= {"GODEBUG": GO_OFF} if go else {}
    forced = {"GODEBUG": GO_ON} if go else {}
    proofs: list[TookEffect] = []
    for switch in LIBRARIES:
        if tree.loader is not None and switch.name != "libgcrypt":
            continue  # Debian builds the others without FIPS mode; gpg uses libgcrypt
        if tree.loader is not None or look_for(switch).state == "measured":
            forced |= switch.environment
            command = tree.start(helper(LIBRARY_START), switch.name)
            if _has_library(tree, switch.name):
                proofs.append(TookEffect(command=command, contains="fips\t1"))
    try:
        provider = find_provider(tree, folder=folder)
    except HostError as error:
        provider = None
        notes.append(f"OpenSSL is off in every state: {error.reason}.")
    if provider is None and not forced:
        raise HostError(
            "no library here has self-tests that can be switched on", hint="Try --tree trixie"
        )
    if provider is None:
        return [_off(base, None), _state(ON_ARM, base, forced, proofs)]
    notes += provider.notes
    states = [_off(base, tree)]
    for name, arm in ((ON, ON_ARM), (CACHED, CACHED_ARM)):
        variant = next((each for each in provider.variants if each.name == name), None)
        if variant is not None:
            states.append(_fips_state(arm, base, forced, proofs, provider, variant))
    return states


def _off(base: dict[str, str], tree: Tree | None) -> Configuration:
    proofs = []
    if tree is not None:
        command = tree.start("openssl", "list", "-providers")
        proofs.append(TookEffect(command=command, matches=r"\A(?![\s\S]*\bfips\b)"))
    return _state(OFF_ARM, base, {}, proofs)


def _fips_state(
    arm: str,
    base: dict[str, str],
    forced: dict[str, str],
    proofs: list[TookEffect],
    provider: Provider,
    variant: Variant,
) -> Configuration:
    path = str(variant.command_configuration)
    command = provider.tree.start("openssl", "list", "-providers")
    seen = [*proofs, TookEffect(command=command, matches=r"(?m)^\s*fips\b")]
    if variant.cached:
        seen.append(TookEffect(file=path, contains="INSTALL_SELF_TEST_KATS_RUN"))
    return _state(arm, {**base, "OPENSSL_CONF": path}, forced, seen)


def _state(
    name: str, base: dict[str, str], more: dict[str, str], proofs: list[TookEffect]
) -> Configuration:
    environment = {**base, **more}
    return Configuration(
        name=name,
        environment=environment,
        unset=[each for each in SWITCHES if each not in environment],
        took_effect=proofs,
    )


def _cold(state: Configuration, files: list[Path]) -> Configuration:
    from msgspec.structs import replace

    words = [str(helper(EVICT)), *map(str, files)]
    return replace(state, name=state.name + COLD, setup=[words])


def _has_library(tree: Tree, name: str) -> bool:
    if tree.loader is None:
        return True
    return any(any(folder.glob(f"{name}.so*")) for folder in tree.libraries)
