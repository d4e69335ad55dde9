"""Which hooks of a kernel a traced workload fired, by group."""

from __future__ import annotations

from dataclasses import dataclass

from excise.cost.hook_trace import HookTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoverage:
    """The hooks of one group, such as `inode`; each hook is in exactly one of the four.

    Attributes:
        group: As `lsm_hook_defs.h` groups them.
        fired: Called by the workload.
        never: Traced, and not called.
        not_asked_for: Traceable, and not traced.
        out_of_reach: Without a function that calls the modules and can be traced.
    """

    group: str
    fired: tuple[str, ...]
    never: tuple[str, ...]
    not_asked_for: tuple[str, ...]
    out_of_reach: tuple[str, ...]

    @property
    def hooks(self) -> int:
        """Return how many hooks the group has."""
        parts = (self.fired, self.never, self.not_asked_for, self.out_of_reach)
        return sum(map(len, parts))

    @property
    def reachable(self) -> int:
        """Return how many of them the trace could have seen."""
        return len(self.fired) + len(self.never)


def coverage_by_group(found: HookTrace) -> list[GroupCoverage]:
    """Return the coverage of every group of the kernel's hooks, in the kernel's order.

    A hook counts as fired if the function that calls it was. Empty for a trace that does not have
    its kernel's catalogue.
    """
    traced, never = set(found.summary.functions), set(found.never)
    groups: dict[str, tuple[list[str], list[str], list[str], list[str]]] = {}
    for hook in found.summary.hooks:
        fired, silent, not_asked_for, out_of_reach = groups.setdefault(hook.group, ([], [], [], []))
        if hook.function is None:
            out_of_reach.append(hook.hook)
        elif hook.function not in traced:
            not_asked_for.append(hook.hook)
        elif hook.function in never:
            silent.append(hook.hook)
        else:
            fired.append(hook.hook)
    return [
        GroupCoverage(
            group=group,
            fired=tuple(fired),
            never=tuple(silent),
            not_asked_for=tuple(not_asked_for),
            out_of_reach=tuple(out_of_reach),
        )
        for group, (fired, silent, not_asked_for, out_of_reach) in groups.items()
    ]
