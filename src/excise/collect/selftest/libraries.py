"""Libraries beside OpenSSL: what is here, how each is forced into FIPS mode, what can be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from excise.collect.selftest.measured import Measured, measure
from excise.collect.selftest.native import LIBRARY_START, helper
from excise.collect.selftest.openssl import clean_environment
from excise.collect.selftest.tree import Tree, host_tree
from excise.errors import HostError

BY_LOG: Final = "the library's own log: a test lasts from the line before it to its own"
BY_CALLBACK: Final = "the library's self-test callback"
BY_STEPS: Final = "not attributed: the library announces no test, only its steps are timed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A library with an environment switch for FIPS mode.

    Attributes:
        name: Word of the helper, such as `libgcrypt`.
        environment: Variables that force FIPS mode.
        method: How its self-tests are seen.
        start: Steps that belong to the start of the library.
    """

    name: str
    environment: Mapping[str, str]
    method: str
    start: tuple[str, ...]


LIBRARIES: Final = (
    Switch(
        name="libgcrypt",
        environment={"LIBGCRYPT_FORCE_FIPS_MODE": "1"},
        method=BY_LOG,
        start=("gcry_check_version", "initialization finished"),
    ),
    Switch(
        name="gnutls",
        environment={"GNUTLS_FORCE_FIPS_MODE": "1"},
        method=BY_STEPS,
        start=("dlopen with its constructor", "gnutls_global_init"),
    ),
    Switch(
        name="nss",
        environment={"NSS_FIPS": "1"},
        method=BY_STEPS,
        start=("dlopen", "NSS_NoDB_Init, which loads softoken and freebl"),
    ),
)
WOLFSSL: Final = Switch(
    name="wolfssl",
    environment={},
    method=BY_STEPS,
    start=("dlopen with its constructor", "wolfCrypt_Init", "wolfSSL_Init"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Whether a library is here and what can be measured of its self-tests.

    Attributes:
        state: `measured`, `present` (nothing to compare) or `absent`.
        method: How children of the start are found; "" when it is not measured.
        note: Why, in one sentence.
    """

    library: str
    state: str
    version: str = ""
    method: str = ""
    note: str = ""


def start_library(switch: Switch, *, forced: bool, tree: Tree | None = None) -> Measured:
    """Start a library in a fresh process and return what was measured.

    Args:
        switch: The library.
        forced: Whether to force FIPS mode by its environment switch.
        tree: Where the library is; the host by default.

    Raises:
        HostError: If it is not there.
    """
    place = tree or host_tree()
    more = dict(switch.environment) if forced else {}
    command = place.start(helper(LIBRARY_START), switch.name)
    return measure(command, environment=clean_environment(place, **more))


def look_for(switch: Switch) -> Presence:
    """Return whether a library is here, and whether its switch has any effect.

    Raises:
        HostError: If there is no C compiler for the helper.
    """
    helper(LIBRARY_START)
    try:
        off = start_library(switch, forced=False)
    except HostError as error:
        return Presence(library=switch.name, state="absent", note=f"{error.reason}.")
    on = start_library(switch, forced=True)
    name = next(iter(switch.environment))
    if not on.fips:
        note = f"{name} has no effect here: the library was built without it, or ignores it."
        return Presence(library=switch.name, state="present", version=off.version, note=note)
    return Presence(
        library=switch.name,
        state="measured",
        version=off.version,
        method=switch.method,
        note=f"Forced by {name}.",
    )
