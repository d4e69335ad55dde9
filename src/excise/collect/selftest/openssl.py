"""OpenSSL's FIPS provider: its configurations, as `openssl fipsinstall` writes them, and its loads.

Which tests run at a load is the provider's decision, by its version and by its configuration:
3.0 runs known-answer tests once, at installation, and records that in `install-status`; from 3.1
on they run at every load. See OpenSSL's fips_config(5) and fips_module(7).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise.collect.selftest.measured import Measured, measure
from excise.collect.selftest.native import PROVIDER_LOAD, helper
from excise.collect.selftest.tree import Tree
from excise.errors import HostError

OFF: Final = "default"
ON: Final = "FIPS on load"
CACHED: Final = "FIPS, KATs at install"
LOAD_STEPS: Final = ("configuration", "provider")
# Options of fipsinstall that ask for each, in the order they are tried; "" is none.
_OPTIONS: Final = {ON: ("", "-self_test_onload"), CACHED: ("", "-self_test_oninstall")}
# Variables that would let the host's own set-up into a measurement.
SWITCHES: Final = (
    "OPENSSL_CONF",
    "OPENSSL_CONF_INCLUDE",
    "OPENSSL_MODULES",
    "LIBGCRYPT_FORCE_FIPS_MODE",
    "GNUTLS_FORCE_FIPS_MODE",
    "NSS_FIPS",
    "OPENSSL_FORCE_FIPS_MODE",
    "OPENSSL_FIPS",
    "GODEBUG",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One state of the provider.

    Attributes:
        name: Name of the configuration in captures.
        provider: Provider to load: `default` or `fips`.
        option: Option of `openssl fipsinstall` that wrote it, "" for none.
        load_configuration: OpenSSL configuration that leaves loading to the caller, or None.
        command_configuration: OpenSSL configuration under which a command uses the provider.
        keys: Keys of fipsmodule.cnf and their values.
    """

    name: str
    provider: str
    option: str = ""
    load_configuration: Path | None = None
    command_configuration: Path | None = None
    keys: dict[str, str]

    @property
    def cached(self) -> bool:
        """Return whether the configuration says that tests were run at installation."""
        return self.keys.get("install-status") == "INSTALL_SELF_TEST_KATS_RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A FIPS provider that was found, with the configurations that were made for it.

    Attributes:
        version: OpenSSL's version, such as `3.5.9`.
        module: Its shared object.
        variants: `OFF`, `ON`, `CACHED`, as far as this version has them.
        notes: What a reader should know of how they were made.
    """

    tree: Tree
    version: str
    module: Path
    libcrypto: str
    variants: tuple[Variant, ...]
    notes: tuple[str, ...]

    def load(
        self, variant: Variant, *, again: bool = False, use: bool = False, **more: str
    ) -> Measured:
        """Load a provider in a fresh process and return what was measured.

        Args:
            variant: State to load it in.
            again: Whether to run the provider's self-tests a second time afterwards.
            use: Whether to run one operation of each kind twice afterwards.
            more: Further variables of the process.

        Raises:
            HostError: If it cannot be loaded.
        """
        conf = str(variant.load_configuration or "/dev/null")
        words = [self.libcrypto, conf, variant.provider]
        words += ["again"] if again else []
        words += ["use"] if use else []
        program = helper(PROVIDER_LOAD, machine=self.tree.machine)
        return measure(
            self.tree.start(program, *words), environment=clean_environment(self.tree, **more)
        )


def clean_environment(tree: Tree, **more: str) -> dict[str, str]:
    """Return this process's environment without switches of self-tests, for a tree's programs."""
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return {**kept, **tree.environment, **more}


def find_provider(tree: Tree, *, folder: Path) -> Provider:
    """Return the FIPS provider of a tree with configurations written into a folder.

    Args:
        tree: The host or a tree of another suite.
        folder: Folder that exists; files are written into it.

    Raises:
        HostError: If there is no `openssl`, no FIPS provider, or fipsinstall fails.
    """
    said = _openssl(tree, "version").stdout
    match = re.match(r"OpenSSL (\d+\.\d+\.\d+\S*)", said)
    if match is None:
        raise HostError(f"is not OpenSSL: it says {said.strip()!r}", source="openssl version")
    modules = tree.modules or _modules_of_openssl(tree)
    module = modules / "fips.so" if modules else None
    if module is None or not module.is_file():
        raise HostError(
            f"OpenSSL {match[1]} has no FIPS provider here",
            source=f"the {tree.suite} tree",
            hint="Debian 13 has one: excise selftest bench --tree trixie",
        )
    variants = [Variant(name=OFF, provider="default", keys={})]
    notes = []
    for name, options in _OPTIONS.items():
        variant, note = _first_that_works(tree, module, folder, name, options)
        notes.append(note)
        if variant is not None:
            variants.append(variant)
    return Provider(
        tree=tree,
        version=match[1],
        module=module,
        libcrypto="libcrypto.so.3" if match[1].startswith("3.") else "libcrypto.so.4",
        variants=tuple(variants),
        notes=tuple(notes),
    )


def module_keys(text: str) -> dict[str, str]:
    """Return the keys of a fipsmodule.cnf, from all of its sections."""
    pairs = (line.split("#")[0].partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}


def _first_that_works(
    tree: Tree, module: Path, folder: Path, name: str, options: Sequence[str]
) -> tuple[Variant | None, str]:
    refused = []
    for option in options:
        path = folder / f"{re.sub(r'[^a-z]+', '-', name.lower()).strip('-')}.cnf"
        try:
            variant = _installed(tree, module, path, option, name=name)
        except HostError as error:
            refused.append(f"{option or 'no option'}: {error.reason}")
            continue
        wanted = name == CACHED
        if variant.cached is wanted:
            return variant, f"{name}: written by openssl fipsinstall {option}".rstrip() + "."
        state = "with" if variant.cached else "without"
        refused.append(f"{option or 'no option'} writes a file {state} install-status")
    return None, f"{name}: this version has no such configuration ({'; '.join(refused)})."


def _installed(tree: Tree, module: Path, path: Path, option: str, *, name: str = "") -> Variant:
    words = ["fipsinstall", "-module", str(module), "-out", str(path), "-quiet"]
    done = _openssl(tree, *words, *([option] if option else []))
    if done.returncode or not path.is_file():
        said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise HostError(f"fipsinstall failed: {said[0]}", source="openssl fipsinstall")
    section = path.read_text()
    load, command = path.with_suffix(".load.cnf"), path.with_suffix(".command.cnf")
    passive = re.sub(r"(?m)^activate\s*=.*$", "", section)
    load.write_text(_PASSIVE + passive)
    command.write_text(_ACTIVE + section)
    return Variant(
        name=name,
        provider="fips",
        option=option,
        load_configuration=load,
        command_configuration=command,
        keys=module_keys(section),
    )


_PASSIVE: Final = """config_diagnostics = 1
openssl_conf = openssl_init
[openssl_init]
providers = provider_section
[provider_section]
fips = fips_sect
"""
_ACTIVE: Final = """config_diagnostics = 1
openssl_conf = openssl_init
[openssl_init]
providers = provider_section
alg_section = algorithm_section
[provider_section]
fips = fips_sect
base = base_section
[base_section]
activate = 1
[algorithm_section]
default_properties = fips=yes
"""


def _openssl(tree: Tree, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            tree.start("openssl", *words),
            env=clean_environment(tree, OPENSSL_CONF="/dev/null"),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"could not be run: {error}", source="openssl") from error


def _modules_of_openssl(tree: Tree) -> Path | None:
    match = re.search(r'MODULESDIR: "([^"]+)"', _openssl(tree, "version", "-m").stdout)
    return Path(match[1]) if match else None
