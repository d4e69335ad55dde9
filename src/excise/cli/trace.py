"""`excise trace`: what every hook of the security framework costs, and in which system call."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from excise.cli.options import FormatOption, JsonOption, print_json, print_report, split_words
from excise.collect.trace import Backend, TraceRequest
from excise.errors import UsageError
from excise.units import counted

if TYPE_CHECKING:
    from excise.cost.hook_trace import HookTrace

_EVERYTHING = "all processes"
_PAIRS, _PAIRS_WITHIN_S = 10, 10.0


def trace(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND]",
            help="The command to trace, with what it starts.",
            show_default=False,
        ),
    ] = None,
    hooks: Annotated[
        str | None,
        typer.Option(
            "--hooks",
            help="Hooks or their callers, by * and ?, joined by commas. [default: security_*]",
            show_default=False,
        ),
    ] = None,
    lsm: Annotated[
        str | None,
        typer.Option(
            "--lsm",
            help="Also all functions of these modules: selinux, apparmor, tomoyo, landlock, ima …",
            show_default=False,
        ),
    ] = None,
    functions: Annotated[
        str | None,
        typer.Option("--functions", help="Any other functions, by * and ?.", show_default=False),
    ] = None,
    tpm: Annotated[bool, typer.Option("--tpm", help="Functions of a TPM extend.")] = False,
    ima: Annotated[bool, typer.Option("--ima", help="Functions of IMA and EVM.")] = False,
    by: Annotated[
        Literal["syscall", "function"],
        typer.Option("--by", help="Each hook in each system call, or all of its calls together."),
    ] = "syscall",
    backend: Annotated[
        Backend | None,
        typer.Option(
            "--backend",
            metavar="BACKEND",
            help=f"{', '.join(get_args(Backend))}. [default: the first that the kernel offers]",
            show_default=False,
        ),
    ] = None,
    pid: Annotated[
        str | None,
        typer.Option("--pid", "-p", help="Processes, joined by commas.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All processes; needs --duration.")
    ] = False,
    duration: Annotated[
        float | None,
        typer.Option("--duration", help="Seconds, then end.", show_default=False, min=0.001),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="Capture to write.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the configuration. [default: the security modules that are on]",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(
            "--pairs",
            help="Pairs of runs of the command, without the tracer and with it, to see what it "
            "costs; 0 for a command that may run only once. [default: 10, as long as they take "
            f"less than {_PAIRS_WITHIN_S:g} s]",
            show_default=False,
            min=0,
        ),
    ] = None,
    subtract: Annotated[
        bool, typer.Option("--subtract", help="Take the tracer's own cost out of the figures.")
    ] = False,
    buffer_kib: Annotated[
        int, typer.Option("--buffer-kb", help="Each processor's buffer.", min=1)
    ] = 8192,
    most_mb: Annotated[
        float | None,
        typer.Option(
            "--most-mb",
            help="End the trace when it is so large. [default: half of the free space]",
            show_default=False,
            min=0.001,
        ),
    ] = None,
    interruptions: Annotated[
        bool,
        typer.Option(
            "--interruptions/--no-interruptions",
            help="Also record interrupts and switches to other tasks.",
        ),
    ] = True,
    restore: Annotated[
        bool, typer.Option("--restore", help="Put back what a killed trace has left.")
    ] = False,
    list_hooks: Annotated[
        bool, typer.Option("--list", help="List this kernel's hooks, by group.")
    ] = False,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            help="With --list: the hooks of this vmlinux, which has symbols.",
            show_default=False,
        ),
    ] = None,
    lsmpmon: Annotated[
        bool,
        typer.Option(
            "--lsmpmon",
            help="As LSMPMON: `--lsmpmon start`, `--lsmpmon stop`, or a command; prints hook, min, "
            "max, ave, count.",
        ),
    ] = False,
    unit: Annotated[
        Literal["ns", "cycles"], typer.Option("--unit", help="With --lsmpmon: of durations.")
    ] = "ns",
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trace hooks: how often each is called, in which system call, and how long it takes.

    Everything that is changed in the kernel's tracing is put back, also at Ctrl-C.

    Example: excise trace --lsm apparmor -o ls.excise -- ls -l /etc

    Example: excise trace --hooks 'inode_*,file_*' --pid 4242 --duration 5
    """
    if restore:
        _restore(as_json=as_json)
        return
    if list_hooks:
        _list_hooks(kernel, as_json=as_json)
        return
    if kernel is not None:
        raise UsageError("needs --list", source=f"--kernel {kernel}")
    monitor = lsmpmon and words in (["start"], ["stop"])
    if unit == "cycles" and backend is None:
        backend = "kprobe"
    request = TraceRequest(
        hooks=split_words(hooks),
        modules=split_words(lsm),
        functions=split_words(functions),
        tpm=tpm,
        ima=ima,
        backend=backend,
        pids=_pids(pid),
        everything=everything or monitor,
        duration_s=duration,
        interruptions=interruptions,
        buffer_kib=buffer_kib,
        most_bytes=None if most_mb is None else round(most_mb * 1e6),
        pairs=_pairs(pairs, runs=bool(words) and not monitor, ends=duration is not None),
        pairs_within_s=_PAIRS_WITHIN_S if pairs is None else None,
    )
    cycles = unit == "cycles"
    show = partial(
        _print,
        by_syscall=by == "syscall",
        lsmpmon=lsmpmon,
        format_name=format_name,
        as_json=as_json,
    )
    if monitor:
        assert words is not None
        _monitor(words[0], request, cycles=cycles, subtract=subtract, show=show)
        return
    _trace(
        request,
        words or [],
        output=output,
        name=name,
        subtract=subtract,
        cycles=cycles,
        show=show,
    )


def _pids(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in split_words(text))
    except ValueError as error:
        raise UsageError("expected process ids", source=f"--pid {text}") from error


def _pairs(given: int | None, *, runs: bool, ends: bool) -> int:
    """Return how many pairs to run: none where a time limit would end both runs alike."""
    if not runs:
        return 0
    return given if given is not None else 0 if ends else _PAIRS


def _trace(
    request: TraceRequest,
    words: list[str],
    *,
    output: str | None,
    name: str | None,
    subtract: bool,
    cycles: bool,
    show: Callable[..., None],
) -> None:
    import tempfile

    subjects = [bool(words), bool(request.pids), request.everything]
    if sum(subjects) != 1:
        raise UsageError(
            "trace one of: a command, --pid, --all", hint="excise trace -- COMMAND, or --help"
        )
    if request.everything and request.duration_s is None:
        raise UsageError("--all needs --duration, else it would never end")
    pids = ", ".join(map(str, request.pids))
    task = shlex.join(words) if words else f"process {pids}" if pids else _EVERYTHING
    from excise.campaign.trace_capture import traced, traced_into

    if output is not None:
        found, code = traced_into(
            Path(output),
            request,
            command=words,
            task=task,
            name=name,
            subtract=subtract,
            cycles=cycles,
        )
    else:
        with tempfile.TemporaryDirectory(prefix="excise-trace-") as folder:
            found, code = traced(
                Path(folder), request, command=words, subtract=subtract, cycles=cycles
            )
    show(found, title=f"Hooks of {task}")
    if output is not None:
        typer.echo(f"Wrote {output}", err=True)
    if code:
        typer.echo(f"The command ended with exit code {code}.", err=True)
        raise typer.Exit(code)


def _print(
    found: HookTrace,
    *,
    title: str,
    by_syscall: bool,
    lsmpmon: bool,
    format_name: str | None,
    as_json: bool,
) -> None:
    from excise.report.hooks import build_hook_trace, lost_lines, lsmpmon_text

    if lsmpmon and not (as_json or format_name):
        typer.echo(lsmpmon_text(found), nl=False)
        for line in lost_lines(found):
            typer.echo(f"excise: lost: {line}", err=True)
        return
    report = build_hook_trace(found, title=title, by_syscall=by_syscall)
    print_report(report, format_name=format_name, as_json=as_json)


def _monitor(
    word: str,
    request: TraceRequest,
    *,
    cycles: bool,
    subtract: bool,
    show: Callable[..., None],
) -> None:
    from excise.campaign.trace_capture import read_folder
    from excise.collect.trace import forget_monitor, start_monitor, stop_monitor

    if word == "start":
        folder = start_monitor(request)
        typer.echo(f"Started; `excise trace --lsmpmon stop` prints the result ({folder})", err=True)
        return
    found = read_folder(stop_monitor(), subtract=subtract, cycles=cycles)
    show(found, title=f"Hooks of {_EVERYTHING}")
    forget_monitor()


def _restore(*, as_json: bool) -> None:
    from excise.collect.trace import restore

    restored = restore()
    if as_json:
        print_json({"restored": restored})
    else:
        typer.echo(
            f"Restored what {counted(restored, 'trace')} had left."
            if restored
            else "Nothing is left."
        )


def _list_hooks(kernel: str | None, *, as_json: bool) -> None:
    from excise.collect.trace import catalogue

    found: Any = catalogue(None if kernel is None else Path(kernel))
    if as_json:
        print_json(found)
        return
    groups: dict[str, list[dict[str, Any]]] = {}
    for hook in found["hooks"]:
        groups.setdefault(hook["group"], []).append(hook)
    traceable = sum(hook["function"] is not None for hook in found["hooks"])
    typer.echo(
        f"Linux {found['kernel_release']}: {len(found['hooks'])} hooks, {traceable} of them "
        f"traceable ({found['source']})"
    )
    for group, members in groups.items():
        typer.echo(f"\n{group} ({len(members)})")
        for hook in members:
            callers = _callers(hook["callers"])
            typer.echo(f"  {hook['hook']:<34} {hook['function'] or 'not traceable'}{callers}")
    typer.echo(f"\nCallers by the calls in the kernel's text: {found['call_sites']}")
    if found["module_functions"]:
        typer.echo("\nFunctions of the modules that can be traced:")
    for module in found["module_functions"]:
        typer.echo(f"  {module['pattern']:<12} {module['functions']:>5}")


def _callers(callers: list[dict[str, Any]] | None) -> str:
    """Return who calls a hook, in brackets; the number of calls where it is more than one."""
    if not callers:
        return ""
    times = [(each["function"], each["sites"]) for each in callers]
    words = [name if sites == 1 else f"{name} ×{sites}" for name, sites in times]
    return f"  ({', '.join(words)})"
