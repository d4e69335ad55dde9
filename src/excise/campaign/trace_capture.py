"""A trace of hooks as a capture: run, read, and written down with its raw trace."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from excise import __version__
from excise.capture import store
from excise.capture.journal import Run, Session
from excise.capture.manifest import Fact, Manifest
from excise.clock import Clock
from excise.collect import trace as collect
from excise.collect.host import boot_id, host_facts
from excise.collect.trace import TraceRequest
from excise.cost.hook_trace import HookTrace, read_hook_trace, trace_records


def read_folder(folder: Path, *, subtract: bool = False, cycles: bool = False) -> HookTrace:
    """Return the trace that the probe left in a folder; see `read_hook_trace`.

    Raises:
        FormatError: If it cannot be read.
    """
    return read_hook_trace(
        folder / collect.TRACE,
        summary=(folder / collect.SUMMARY).read_bytes(),
        calibration=(folder / collect.CALIBRATION).read_bytes(),
        subtract=subtract,
        cycles=cycles,
    )


def traced(
    folder: Path,
    request: TraceRequest,
    *,
    command: Sequence[str] = (),
    subtract: bool = False,
    cycles: bool = False,
) -> tuple[HookTrace, int]:
    """Trace into a folder; return what the trace says and the exit code, as `run_trace` gives it.

    Raises:
        HostError: If this kernel cannot trace, or a tracer is in use.
        UsageError: If nothing is called as asked for.
    """
    code = collect.run_trace(request, folder=folder, command=command)
    return read_folder(folder, subtract=subtract, cycles=cycles), code


def traced_into(
    path: Path,
    request: TraceRequest,
    *,
    task: str,
    command: Sequence[str] = (),
    name: str | None = None,
    subtract: bool = False,
    cycles: bool = False,
) -> tuple[HookTrace, int]:
    """Trace into a new capture; the raw trace is kept in it, whatever becomes of its reading.

    Args:
        path: The capture to make.
        request: What to trace.
        task: Name of the task in tables.
        command: The command; none to trace processes that run.
        name: Name of the configuration; by default the security modules that are on.
        subtract: Take the tracer's own cost out of the rows.
        cycles: Give durations in cycles where they are.

    Raises:
        CaptureError: If the path exists.
        HostError: If this kernel cannot trace, or a tracer is in use; no capture is left then.
    """
    facts = host_facts()
    manifest = Manifest(
        id=store.new_id(),
        created=store.now(),
        title=f"Hooks of {task}",
        origin="measured",
        excise_version=__version__,
        host_facts=facts,
    )
    capture = store.Capture.create(path, manifest)
    with capture:
        capture.append(
            Session(state="started", at=store.now(), excise_version=__version__, boot_id=boot_id())
        )
        try:
            code = collect.run_trace(request, folder=path / store.RAW, command=command)
        except BaseException:
            if not collect.has_summary(path / store.RAW):
                shutil.rmtree(path)
            raise
        found = read_folder(path / store.RAW, subtract=subtract, cycles=cycles)
        arm = name or found.summary.lsm or "host"
        capture.replace_manifest(
            replace(
                manifest,
                host_facts=[*facts, *_facts(found)],
                clocks=[Clock(name=f"trace clock {found.summary.clock}")],
            )
        )
        capture.extend(
            [
                *_runs(found, task=task, arm=arm),
                *found.losses,
                *trace_records(found, task=task, configuration=arm),
                Session(state="finished", at=store.now(), runs_done=1),
            ]
        )
    return found, code


def _facts(found: HookTrace) -> list[Fact]:
    known = found.summary
    return [
        Fact(name="trace.backend", value=known.backend, must_agree=True, note=known.reason),
        Fact(name="trace.functions", value=len(known.functions), unit="1"),
        Fact(name="trace.instance", value=known.instance is not None),
        Fact(name="trace.clock", value=known.clock),
        Fact(name="trace.subtracted", value=found.subtracted, must_agree=True),
    ]


def _runs(found: HookTrace, *, task: str, arm: str) -> list[Run]:
    """Return the traced run, under a name of its own: it is not the task as it is untraced."""
    return [
        Run(
            sequence=0,
            block=0,
            task=f"{task} (traced)",
            configuration=arm,
            run=0,
            phase="measured",
            wall_ns=found.summary.wall_ns,
            exit_code=found.summary.exit_code,
        )
    ]
