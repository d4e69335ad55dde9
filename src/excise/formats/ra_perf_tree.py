"""Iterations and nesting of RA_PERF measurements.

One iteration of `optee_remote_attestation` is one run. Its host `total` closes it. Where the log
holds the secure console alone, the trusted application's `cmd_total` closes it; where it holds
only the core's lines, `perf_flush` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from excise.capture.journal import Event, Loss, Phase, Run
from excise.formats.model import DEFAULT_CONFIGURATION, Options
from excise.formats.text import loss
from excise.units import counted

_SIGN_STEPS: Final = ("sign_key_setup", "sign_tbs_hash", "sign_ecdsa", "sign_verify")
_CORE_STEPS: Final = (
    *("ocotp_srk", "ocotp_lifecycle", "instance_id", "hash_ta", "hash_tee"),
    *("cbor_encode", "cose_sign1"),
)
# Innermost container first known; the next is used where a container's own line is missing.
PARENTS: Final[dict[str, str]] = {
    "ta|cmd_total": "host|evidence_get",
    "ta|pta_invoke": "ta|cmd_total",
    "pta|cmd_total": "ta|pta_invoke",
    "pta|perf_flush": "ta|pta_invoke",
    **{f"pta|{step}": "pta|cmd_total" for step in _CORE_STEPS},
    **{f"pta|{step}": "pta|cose_sign1" for step in _SIGN_STEPS},
    "pta|blackkey_encap": "pta|convert_total",
}
_UNKNOWN_PARENT: Final = {
    "ta": "ta|cmd_total",
    "pta": "pta|cmd_total",
    "verifier": "host|veraison_post_evidence",
}
_KNOWN_HOST: Final = frozenset(
    {"veraison_new_session", "evidence_get", "print_evidence", "veraison_post_evidence", "total"}
)
_SENSOR: Final = frozenset({"capture", "embed", "collect", "send"})  # of excise sensor transaction
_KNOWN_TOP: Final = frozenset({"pta|keypair_generate", "pta|convert_total", "pta|cntfrq"})
_ONCE: Final = frozenset({"teec_init", "teec_open_session"})
# Commands of their own: the host line that closes each, and the lines that belong to it.
_KEY_COMMANDS: Final[dict[str, frozenset[str]]] = {
    "blackkey_generate": frozenset({"keypair_generate", "perf_flush"}),
    "blackkey_convert": frozenset({"blackkey_encap", "convert_total", "perf_flush"}),
}
_SECURE: Final = "-secure"
_REPEATED: Final = frozenset({"pta|keypair_generate", "pta|perf_flush"})


_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """One measurement line.

    Attributes:
        name: `layer|event`.
        line: Line number from 1.
        value_us: Duration in microseconds; Hz for `cntfrq`.
        key: `embedded`, `plain`, `black` or `-`.
        labels: Further `name=value` pairs, sorted and joined by `,`.
    """

    name: str
    line: int
    layer: str
    event: str
    value_us: float
    key: str
    labels: str

    @property
    def value_ns(self) -> int:
        """Return the duration in nanoseconds."""
        return round(self.value_us * 1000.0)


@dataclass(slots=True)
class Tree:
    """Runs and events of one log."""

    runs: list[Run] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Group:
    """The lines of one run; `total` is the line that measured all of it, if it was found."""

    task: str
    marks: Sequence[Mark]
    total: Mark | None
    opens: bool = False  # the first iteration after the client was started


def build(marks: Sequence[Mark], options: Options, losses: list[Loss]) -> Tree:
    """Return the runs and nested events; append what is incomplete to `losses`."""
    tree = Tree()
    host = [mark for mark in marks if mark.layer == "host"]
    loops = any(mark.event in _KNOWN_HOST | _SENSOR for mark in host)
    if not loops:
        groups = _group(marks, _secure_closer(marks), options.source, losses)
        tree.notes.append("no host lines: a run is what the secure side measured of one command")
    elif _split(marks):
        groups = _paired(marks, options.source, losses, tree.notes)
    else:
        groups = _group(marks, "host|total", options.source, losses)
    _emit(groups, options, tree)
    names = {mark.name for mark in marks}
    unknown = sorted(name for name in names if not _is_known(name))[:_SHOWN]
    if unknown:
        tree.notes.append(f"events that the grammar does not list: {', '.join(unknown)}")
    return tree


def _is_known(name: str) -> bool:
    layer, _, event = name.partition("|")
    if layer == "host":
        return event in {*_KNOWN_HOST, *_SENSOR, *_ONCE, *_KEY_COMMANDS, "perf_flush"}
    return layer == "verifier" or name in PARENTS or name in _KNOWN_TOP


def _secure_closer(marks: Iterable[Mark]) -> str:
    has_ta = any(mark.name == "ta|cmd_total" for mark in marks)
    return "ta|cmd_total" if has_ta else "pta|perf_flush"


def _split(marks: Sequence[Mark]) -> bool:
    """Whether the secure console and the host's output stand one after the other.

    The side then changes once, and the console has lines of several commands.
    """
    sides = [mark.layer == "host" for mark in marks if mark.event not in _ONCE]
    changes = sum(1 for before, after in pairwise(sides) if before != after)
    if changes != 1 or all(mark.name != "host|total" for mark in marks):
        return False
    secure = Counter(mark.name for mark in marks if mark.layer != "host")
    return any(count > 1 for count in secure.values())


def _paired(
    marks: Sequence[Mark], source: str, losses: list[Loss], notes: list[str]
) -> list[_Group]:
    """Return the iterations of two logs in one file, the n-th of one with the n-th of the other."""
    host = [mark for mark in marks if mark.layer == "host"]
    secure = [mark for mark in marks if mark.layer != "host"]
    by_host = _group(host, "host|total", source, losses)
    by_secure = _group(secure, _secure_closer(secure), source, losses)
    loops = [group for group in by_host if group.task.startswith("attestation")]
    evidence = [group for group in by_secure if group.task == "evidence"]
    whole = all(group.total for group in [*loops, *evidence])
    if len(loops) != len(evidence) or not whole:
        notes.append(
            f"secure console ({counted(len(evidence), 'command')}) and host "
            f"({counted(len(loops), 'iteration')}) stand "
            "apart and do not pair: they are kept as tasks of their own"
        )
        return [*by_host, *by_secure]
    notes.append("secure console and host stand apart: paired in the order of each")
    pairs = {id(group): other for group, other in zip(loops, evidence, strict=True)}
    rest = [group for group in by_secure if group.task != "evidence"]
    joined = [
        _Group(group.task, [*_all(pairs[id(group)]), *group.marks], group.total, group.opens)
        if id(group) in pairs
        else group
        for group in by_host
    ]
    return [*joined, *rest]


def _all(group: _Group) -> list[Mark]:
    return [*group.marks, *([group.total] if group.total else [])]


class _Grouper:
    """Cuts a stream of lines into runs, each closed by one kind of line."""

    def __init__(self, closer: str, source: str, losses: list[Loss]) -> None:
        self.closer = closer
        self.groups: list[_Group] = []
        self._source = source
        self._losses = losses
        self._marks: list[Mark] = []
        self._names: set[str] = set()
        self._opens = True  # whether the next iteration is the first since the client started

    def close(self, total: Mark | None, reason: str = "") -> None:
        """End the open run; without the line that closes it, say why in a loss."""
        marks, self._marks, self._names = self._marks, [], set()
        if total is None and not marks:
            return
        task = _task(marks, total)
        if total is None and not task.endswith(_SECURE):
            self._losses.append(loss(self._source, marks[-1].line, reason))
        self.groups.append(_Group(task, marks, total, self._opens))
        self._opens = False

    def add(self, mark: Mark) -> None:
        """Take the next line."""
        name = mark.name
        if name == "pta|cntfrq":
            # It begins each batch of the core: on the secure console alone, also a new command.
            if not self.closer.startswith("host") and "pta|perf_flush" in self._names:
                self.close(None, f"a new batch of lines before {self.closer}")
        elif mark.layer == "host" and mark.event in _ONCE:
            self.close(None, f"the client was started again before {self.closer}")
            self.groups.append(_Group(mark.event, (), mark))
            self._opens = True
        elif name == "host|perf_flush":
            self.groups.append(_Group("perf_flush", (), mark))  # printed after the total
        elif mark.layer == "host" and mark.event in _KEY_COMMANDS:
            self._close_command(mark)
        elif name == self.closer:
            self._close_with(mark)
        else:
            if name in self._names and name not in _REPEATED:
                self.close(None, f"a second {name} before {self.closer}: that line is lost")
            self._marks.append(mark)
            self._names.add(name)

    def _close_command(self, mark: Mark) -> None:
        members = _KEY_COMMANDS[mark.event]
        mine = [m for m in self._marks if m.event in members]
        self._marks = [m for m in self._marks if m.event not in members]
        self.close(None, f"{mark.event} ended before {self.closer}")
        self.groups.append(_Group(mark.event, mine, mark))

    def _close_with(self, mark: Mark) -> None:
        if self.closer != "pta|perf_flush":
            self.close(mark)
            return
        # Printing is no part of the core's command: the command's own total closes the run.
        total = next((m for m in self._marks if m.name == "pta|cmd_total"), None)
        self._marks = [m for m in self._marks if m is not total]
        self.close(total, "the batch has no pta|cmd_total")
        self.groups.append(_Group("perf_flush", (), mark))


def _group(marks: Iterable[Mark], closer: str, source: str, losses: list[Loss]) -> list[_Group]:
    """Return the runs of a stream of lines, closed by the named line.

    A line that the open run already has means that the closing line of that run is lost.
    """
    grouper = _Grouper(closer, source, losses)
    for mark in marks:
        grouper.add(mark)
    grouper.close(None, f"the log ends before {closer}")
    return grouper.groups


def _task(marks: Sequence[Mark], total: Mark | None) -> str:
    """Return the task of a closed run."""
    names = {mark.event for mark in marks}
    host = {mark.event for mark in marks if mark.layer == "host"}
    if host or (total is not None and total.layer == "host"):
        if host & _SENSOR:
            return "transaction"
        served = any(event.startswith("veraison_") for event in host)
        return "attestation" if served else "attestation-no-server"
    for command, members in _KEY_COMMANDS.items():
        if names and names <= members and names != {"perf_flush"}:
            return command + _SECURE
    return "evidence"


def _emit(groups: Sequence[_Group], options: Options, tree: Tree) -> None:
    """Append the groups as runs and events, numbered in order."""
    modes = {mode for group in groups if (mode := _key_mode(group)) != "-"}
    seen: Counter[tuple[str, str]] = Counter()
    for sequence, group in enumerate(groups):
        mode = _key_mode(group)
        task = options.task if options.task and group.task.startswith("attest") else group.task
        configuration = _configuration(mode, modes, options)
        run = seen[task, configuration]
        seen[task, configuration] += 1
        tree.runs.append(
            Run(
                sequence=sequence,
                block=run,
                task=task,
                configuration=configuration,
                run=run,
                phase=_phase(group, run),
                wall_ns=group.total.value_ns if group.total else None,
                error=None if group.total else "the line that measures the whole run is missing",
            )
        )
        tree.events.extend(_events(sequence, group, mode, inner_total=options.inner_total))


def _phase(group: _Group, run: int) -> Phase:
    """Return `first` for the first iteration, `warmup` for the first of each later start."""
    if not group.opens:
        return "measured"
    return "first" if run == 0 else "warmup"


def _key_mode(group: _Group) -> str:
    """Return the key mode of most lines of a run; `-` where none tells."""
    keys = Counter(mark.key for mark in _all(group) if mark.key != "-")
    return keys.most_common(1)[0][0] if keys else "-"


def _configuration(mode: str, modes: set[str], options: Options) -> str:
    """Return the configuration: the key mode, or the name given, or both where they differ."""
    if options.configuration is None:
        return mode if mode != "-" else DEFAULT_CONFIGURATION
    if mode == "-" or len(modes) < 2:
        return options.configuration
    return f"{options.configuration}/{mode}"


def _events(sequence: int, group: _Group, mode: str, *, inner_total: bool) -> list[Event]:
    """Return the child events of one run, each under its nearest container that is present."""
    marks = _all(group) if inner_total else group.marks
    present = {mark.name for mark in marks}
    whole = group.total.name if inner_total and group.total else None
    return [
        Event(
            sequence=sequence,
            layer=mark.layer,
            event=mark.event,
            value=float(mark.value_ns),
            unit="ns",
            parent=None if mark.name == whole else _parent(mark, present) or whole,
            labels=_labels(mark, mode),
        )
        for mark in marks
    ]


def _parent(mark: Mark, present: set[str]) -> str | None:
    name: str | None = PARENTS.get(mark.name)
    if name is None and mark.name not in _KNOWN_TOP:
        name = _UNKNOWN_PARENT.get(mark.layer)
    while name is not None and name not in present:
        name = PARENTS.get(name)
    return name


def _labels(mark: Mark, mode: str) -> str:
    """Return further labels, and the key only where it is not that of the run."""
    if not mark.labels and mark.key in (mode, "-"):
        return ""
    own = [f"key={mark.key}"] if mark.key not in (mode, "-") else []
    return ",".join(sorted([*own, *(mark.labels.split(",") if mark.labels else [])]))
