"""`excise lab`: kernels in QEMU under every security configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from excise.cli import lab_boot, lab_demo, lab_hmac, lab_kernel, lab_trace
from excise.cli.lab_options import JobsOption, KernelOption, MachineOption, PresetsOption
from excise.cli.lab_output import guests_output
from excise.cli.options import (
    BriefOption,
    FormatOption,
    JsonOption,
    capture_written_later,
    checked,
    print_json,
    print_report,
    require_one_of,
    split_words,
)
from excise.cli.steps import guests_bar
from excise.errors import UsageError
from excise.units import counted, parse_hex

if TYPE_CHECKING:
    from excise.lab import GuestResult, Machine, Plan, Preset

app = typer.Typer(
    no_args_is_help=True,
    help="Boot real kernels in QEMU under security configurations; count instructions.",
)

app.add_typer(lab_kernel.app, name="kernel")
app.command("boot")(lab_boot.boot)
app.command("hmac")(lab_hmac.hmac)

app.command("demo")(lab_demo.demo)
app.command("trace")(lab_trace.trace)

ModulesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--modules",
        help="Folder lib/modules/RELEASE of a kernel given by path; once for each --kernel.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        help="Capture to write, or to go on with.",
        callback=capture_written_later,
        show_default=False,
    ),
]
WorkloadOption = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        help="syscalls, or some of them joined by commas (null, open_close, create_0k/ext4, ...).",
    ),
]


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List presets and the kernels that are already in the cache.

    Example: excise lab list
    """
    from excise.lab import presets
    from excise.lab.kernel_build import built_kernels
    from excise.lab.packages import cached

    kernels = [name for name in cached() if name.startswith("linux-image-")]
    kernels += [built.name for built in built_kernels()]
    if as_json:
        found = [
            {"name": p.name, "summary": p.summary, "cmdline": p.command_line()}
            for p in presets().values()
        ]
        print_json({"presets": found, "kernels": kernels})
        return
    for preset in presets().values():
        typer.echo(f"{preset.name:<20} {preset.summary}")
    for name in kernels:
        typer.echo(f"kernel {name}")


@app.command("compare")
def compare_(
    preset: PresetsOption = "none",
    kernel: KernelOption = None,
    modules: ModulesOption = None,
    machine: MachineOption = None,
    workload: WorkloadOption = "syscalls",
    twins: Annotated[int, typer.Option("--twins", help="A/A guests.", min=1, max=3)] = 2,
    jobs: JobsOption = 1,
    output: OutputOption = None,
    brief: BriefOption = False,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the instructions of system calls under several presets, or in two kernels.

    The guest's clock is the number of instructions, so a repetition prints the same numbers. A/A
    guests, which differ in something irrelevant, show the noise floor.

    Example: excise lab compare --preset none,apparmor,selinux-enforcing

    Example: excise lab compare --kernel 6.1 --kernel 6.12 --format markdown
    """
    from excise.lab import compare, kernel_jobs, preset_jobs
    from excise.lab.comparison import twin_jobs
    from excise.report.lab import build_lab_comparison

    names = split_words(preset)
    machines = _machines(machine, kernel, modules, mode="count")
    only = () if workload == "syscalls" else split_words(workload)
    if len(machines) > 1:
        if len(names) != 1:
            raise UsageError("compare several kernels under one preset, or presets on one kernel")
        planned = kernel_jobs(machines, preset=names[0], only=only)
        title = f"Kernels under the preset {names[0]}"
    else:
        planned = preset_jobs(machines[0], presets=names, only=only)
        title = f"Presets on kernel {Path(machines[0].kernel).name}"
    everything = [planned[0], *twin_jobs(planned[0], number=twins), *planned[1:]]
    with guests_output(output, jobs=everything, title=title) as to, guests_bar() as show:
        found = compare(
            planned,
            twins=twins,
            parallel=jobs,
            kept=to.kept,
            on_progress=show,
            on_result=to.add,
        )
    report = build_lab_comparison(found, title=title)
    print_report(report, format_name=format_name, as_json=as_json, brief=brief)
    _say_written(output)
    if found.failures:
        raise found.failures[0].error


def _mode(text: str) -> None:
    require_one_of(("count", "tpm"), text)


@app.command("run")
def run_(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND]", help="A command of the guest's busybox.", show_default=False
        ),
    ] = None,
    preset: PresetsOption = "none",
    kernel: KernelOption = None,
    modules: ModulesOption = None,
    machine: MachineOption = None,
    workload: Annotated[
        str,
        typer.Option(
            "--workload", "-w", help="syscalls, files:N, exec:N, boot, or names of system calls."
        ),
    ] = "syscalls",
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            parser=checked(_mode, "str"),
            help="count (instructions, no TPM) or tpm (time, software TPM). [default: the "
            "machine's, else tpm]",
            show_default=False,
        ),
    ] = None,
    quote: Annotated[
        str | None,
        typer.Option(
            "--quote", metavar="HEX", help="Ask for a quote that signs this.", show_default=False
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            "--root",
            help="initramfs, or debian: a small Debian with systemd. [default: initramfs]",
            show_default=False,
        ),
    ] = None,
    jobs: JobsOption = 1,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one workload in a guest per preset; bring back figures, proof and evidence.

    Example: excise lab run --preset ima-measure --workload files:100 -o ima.excise

    Example: excise lab run --preset none,ima-measure --root debian --workload boot -o boot.excise

    Example: excise lab run --preset selinux-enforcing -- cat /sys/fs/selinux/enforce
    """
    from excise.lab import GuestFailure, GuestJob, run_all
    from excise.lab import preset as preset_of

    found_machine = _machines(machine, kernel, modules, mode=mode, root=root)[0]
    nonce = parse_hex(quote, option="--quote") if quote is not None else None
    planned = [
        GuestJob(
            configuration=name,
            machine=found_machine,
            preset=preset_of(name),
            plan=_plan(preset_of(name), workload, words or []),
            qualifying_data=nonce,
        )
        for name in split_words(preset)
    ]
    title = f"Lab: {' '.join(words) if words else workload}"
    with guests_output(output, jobs=planned, title=title) as to, guests_bar() as show:
        outcomes = run_all(planned, parallel=jobs, kept=to.kept, on_progress=show, on_result=to.add)
    results = [each for each in outcomes if not isinstance(each, GuestFailure)]
    described = [_described(result, qualifying_data=nonce) for result in results]
    if as_json:
        print_json(described)
    else:
        for result, value in zip(results, described, strict=True):
            _print_guest(result, value)
    _say_written(output)
    for outcome in outcomes:
        if isinstance(outcome, GuestFailure):
            raise outcome.error


@app.command("shell")
def shell(
    preset: Annotated[str, typer.Option("--preset", "-p", help="Preset.")] = "none",
    kernel: KernelOption = None,
    modules: ModulesOption = None,
    machine: MachineOption = None,
) -> None:
    """Open a shell in a guest, set up as its preset says. Leave it with `exit`.

    Example: excise lab shell --preset ima-measure
    """
    from excise.lab import preset as preset_of
    from excise.lab.shell import open_shell

    open_shell(_machines(machine, kernel, modules, mode="tpm")[0], preset=preset_of(preset))


def _machines(
    path: str | None,
    kernels: list[str] | None,
    modules: list[str] | None,
    *,
    mode: str | None,
    root: str | None = None,
) -> list[Machine]:
    import msgspec

    from excise.lab import Machine, read_machine
    from excise.lab.machine import DEBIAN_MEMORY_MIB

    base = read_machine(Path(path)) if path else Machine(mode="tpm")
    wanted = mode or base.mode
    folders = modules or []
    if len(folders) > len(kernels or []):
        raise UsageError("--modules belongs to a --kernel, in the same order")
    changes: list[dict[str, Any]] = [{"kernel": name} for name in kernels or [base.kernel]]
    for change, folder in zip(changes, folders, strict=False):
        change["modules"] = folder
    for change in changes:
        if root is not None:
            change["rootfs"] = root
            least = DEBIAN_MEMORY_MIB if root == "debian" else 0
            change["memory_mib"] = max(base.memory_mib, least)
    try:
        return [
            msgspec.convert({**msgspec.to_builtins(base), "mode": wanted, **change}, Machine)
            for change in changes
        ]
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from error


def _plan(preset: Preset, workload: str, words: list[str]) -> Plan:
    from excise.lab import workloads

    if words:
        return workloads.command(*words, preset=preset)
    if distinct := workloads.distinct(workload):
        return distinct
    if workload == "boot":
        return workloads.boot_only()
    only = () if workload == "syscalls" else split_words(workload)
    return workloads.syscalls(preset, only=only)


def _described(result: GuestResult, *, qualifying_data: bytes | None) -> dict[str, Any]:
    from excise.lab import verify_guest_quote, verify_ima

    evidence: dict[str, Any] = {}
    if {"pcrs.txt", "binary_runtime_measurements"} <= result.evidence.keys():
        evidence["ima"] = verify_ima(result).as_dict()
    if qualifying_data is not None:
        evidence["quote"] = verify_guest_quote(result, qualifying_data=qualifying_data).as_dict()
    return {
        "configuration": result.configuration,
        "kernel": result.kernel.release,
        "clock": result.clock,
        "wall_s": round(result.wall_s, 3),
        "marks_ns": result.marks_ns,
        "effects": [
            {"check": e.check, "expected": e.expected, "got": e.got, "outcome": e.outcome}
            for e in result.effects
        ],
        "steps": [
            {
                "task": s.step.task,
                "exit_code": s.exit_code,
                "stdout": s.stdout.decode("utf-8", "replace"),
                "stderr": s.stderr.decode("utf-8", "replace"),
                "ima_entries": s.ima_entries,
            }
            for s in result.steps
        ],
        "evidence": evidence,
    }


def _print_guest(result: GuestResult, value: dict[str, Any]) -> None:
    passed = sum(effect.outcome == "PASSED" for effect in result.effects)
    typer.echo(
        f"{result.configuration}: kernel {result.kernel.release}, clock: {result.clock}, "
        f"{passed} of {counted(len(result.effects), 'check')} of its configuration passed"
    )
    for step in result.steps:
        if step.probe is None:
            typer.echo(step.stdout.decode("utf-8", "replace"), nl=False)
            typer.echo(step.stderr.decode("utf-8", "replace"), nl=False, err=True)
            if step.exit_code:
                typer.echo(f"  {step.step.task}: exit code {step.exit_code}")
            if step.ima_entries:
                typer.echo(
                    f"  {step.step.task}: {counted(step.ima_entries, 'entry', 'entries')} in "
                    "the IMA list"
                )
        else:
            unit = "instructions" if result.machine.mode == "count" else "ns"
            figure = f"{min(step.probe.op_ns):>14,.1f} {unit} per operation"
            typer.echo(f"  {step.step.task:<18} {figure}")
    if "systemd_time" in result.facts:
        typer.echo(f"  {result.facts['systemd_time'].splitlines()[0]}")
    for name, appraised in value["evidence"].items():
        typer.echo(f"  evidence {name}: {appraised['verdict']}")


def _say_written(output: str | None) -> None:
    if output is not None:
        typer.echo(f"wrote {output}", err=True)
