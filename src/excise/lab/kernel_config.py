"""Build options of the lab's own kernels: fragments, and whether each option took effect.

Kconfig drops an option whose dependencies are missing without a word, and a kernel that lacks it
would only show that in a guest. So every option of a fragment is looked up in the final
configuration; options that only newer kernels offer are told apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from excise.errors import HostError, UsageError

_SET = re.compile(r"(CONFIG_[A-Za-z0-9_]+)=(.+)")
_UNSET = re.compile(r"# (CONFIG_[A-Za-z0-9_]+) is not set")
# Merged in 6.13 and 6.15; the second needs BTF as well.
_OFFERED_LATER: Final = frozenset({"CONFIG_FUNCTION_GRAPH_RETADDR", "CONFIG_FUNCTION_TRACE_ARGS"})
# Variants: options that differ from the common fragment.
VARIANTS: Final[Mapping[str, str]] = {
    "own": "",
    "own:no-hmac": "# CONFIG_TCG_TPM2_HMAC is not set\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Options to put over a default configuration.

    Attributes:
        text: Lines of Kconfig's own form; a later line wins.
        options: Wanted value by option, None for one that must not be set.
    """

    text: str
    options: Mapping[str, str | None]


def own_fragment(variant: str = "own", *, more: str = "", source: str = "fragment") -> Fragment:
    """Return the fragment of a variant of the lab's own kernel.

    Args:
        variant: One of `VARIANTS`.
        more: Further lines, which win over the lab's own.
        source: What to call those lines in errors.

    Raises:
        UsageError: If a line is neither an option, a comment, nor empty.
    """
    own = resources.files("excise.lab").joinpath("own_kernel.config").read_text()
    if variant not in VARIANTS:
        raise UsageError(f"no variant {variant}", hint=f"Variants: {', '.join(VARIANTS)}")
    text = own + VARIANTS[variant]
    options = _parse(text, source="own_kernel.config") | _parse(more, source=source)
    return Fragment(text=text + more, options=options)


def _parse(text: str, *, source: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if match := _SET.fullmatch(line):
            found[match[1]] = None if match[2] == "n" else match[2]
        elif match := _UNSET.fullmatch(line):
            found[match[1]] = None
        elif line and not line.startswith("#"):
            raise UsageError(
                f"line {number} is no build option: {line[:60]}",
                source=source,
                hint='Write CONFIG_NAME=y or "# CONFIG_NAME is not set"',
            )
    return found


def read_config(text: str) -> dict[str, str]:
    """Return the options that a kernel's `.config` sets, by name."""
    return {match[1]: match[2] for line in text.splitlines() if (match := _SET.fullmatch(line))}


def require_options(fragment: Fragment, *, config: Mapping[str, str], source: str) -> list[str]:
    """Return the options that this kernel does not offer yet, having required all others.

    Args:
        fragment: What was asked for.
        config: What the final configuration sets.
        source: Name of the kernel's source, for the error.

    Raises:
        HostError: If an option did not take effect; all such are named.
    """
    wrong, later = [], []
    for name, wanted in fragment.options.items():
        got = config.get(name)
        if got == wanted:
            continue
        if got is None and name in _OFFERED_LATER:
            later.append(name.removeprefix("CONFIG_"))
        else:
            wrong.append(f"{name.removeprefix('CONFIG_')} is {got or 'not set'}")
    if wrong:
        raise HostError(
            f"{len(wrong)} build options did not take effect: {', '.join(wrong)}",
            source=source,
            hint="An option they depend on is missing, or this kernel does not have them",
        )
    return later
