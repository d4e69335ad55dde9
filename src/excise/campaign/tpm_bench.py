"""`excise tpm bench` as a capture: each command of a TPM, in randomised blocks, and nothing left.

A run is one command or sequence of commands; its `wall_ns` is the TPM's time, from sending a
command to its answer, summed over the sequence. The client's own work for a protected extend (salt,
HMACs) is a task of its own, in processor time, so that neither is part of the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Literal

from msgspec.structs import replace

from excise import __version__
from excise.campaign.earlier import require_same, require_unfinished
from excise.campaign.schedule import runs_of_block
from excise.campaign.spec import TWIN_SUFFIX
from excise.capture.journal import Effect, Event, Record, Run, RunHead, Session
from excise.capture.manifest import Manifest
from excise.capture.store import Capture, new_id, now
from excise.clock import Clock
from excise.collect.host import boot_id, host_facts
from excise.collect.tpm import capability, tasks
from excise.collect.tpm.codes import DIGEST_BYTES
from excise.collect.tpm.info import TpmInfo, read_info
from excise.collect.tpm.keys import KeyRing
from excise.collect.tpm.sessions import make_null_primary
from excise.collect.tpm.tasks import EXTEND, MODES, NONE, TASKS, Bench, Task
from excise.collect.tpm.wire import PASSWORD, Link, TpmError, clock, open_link, u32
from excise.cost.tpm_record import CLIENT, is_bench
from excise.errors import HostError, UsageError
from excise.events.dataset import Dataset
from excise.units import counted

TPM_LAYER: Final = "tpm"
CLIENT_LAYER: Final = "client"
TWIN: Final = NONE + TWIN_SUFFIX
FEWEST: Final = 3
"""Measured runs of a task before its budget may end it."""

OnStep = Callable[[str, int, int], None]
_State = Literal["started", "resumed", "interrupted", "finished"]
_HASHES: Final = {
    0x0004: "sha1",
    0x000B: "sha256",
    0x000C: "sha384",
    0x000D: "sha512",
    0x0027: "sha3_256",
    0x0028: "sha3_384",
    0x0029: "sha3_512",
}
# A TPM that is not started, fails, is full or locked answers every command so.
_FATAL: Final = frozenset({0x100, 0x101, 0x902, 0x903, 0x904, 0x905, 0x906, 0x921, 0x922, 0x908})


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmBench:
    """How a bench ended.

    Attributes:
        runs: Runs that were measured.
        interrupted: Whether it was stopped by the user; what was measured is kept.
        skipped: What was not measured, and why, one sentence each.
        left: What is not as it was in the TPM, one line each; empty as it should be.
        verified: Answers whose HMAC was found right.
        retries: Commands that the TPM asked to send again.
    """

    path: Path
    runs: int
    interrupted: bool
    skipped: tuple[str, ...]
    left: tuple[str, ...]
    verified: int
    retries: int


@dataclass(slots=True, kw_only=True)
class _Stop:
    """Whether the user has asked to stop; a second time ends at once."""

    asked: bool = False


@dataclass(slots=True, kw_only=True)
class _Work:
    """What a bench has done so far."""

    bench: Bench
    capture: Capture
    stop: _Stop
    on_step: OnStep
    sequence: int = 0
    spent_ns: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    done: set[tuple[str, str, int]] = field(default_factory=set)


def run_tpm_bench(
    tcti: str,
    path: Path,
    *,
    blocks: int = 30,
    budget_ns: int = 5_000_000_000,
    only: Sequence[str] = (),
    pcr: int | None = None,
    allow_persistent: bool = False,
    seed: int = 1,
    on_step: OnStep | None = None,
) -> TpmBench:
    """Measure a TPM's commands into a capture; one that was interrupted is gone on with.

    Args:
        tcti: Where the TPM is, as for tpm2-tools.
        path: Capture folder to make, or that of an interrupted bench of the same TPM.
        blocks: Measured blocks; the first run of each task is one more, kept apart.
        budget_ns: TPM time after which a task that has three measured runs is not repeated.
        only: Tasks whose names contain one of these words, in any case; all by default.
        pcr: PCR to extend, 16 or 23; by default the first that is zero, reset afterwards.
        allow_persistent: Whether an NV index of the owner's may be defined for a while.
        seed: Seed of the order.
        on_step: Called with what is being done, steps done, and steps in all.

    Raises:
        UsageError: A PCR that cannot be reset, or no task of such a name.
        HostError: No TPM, a TPM in no state to be measured, or an answer whose HMAC is wrong.
        CaptureError: The capture is complete, or is something else.
    """
    if pcr is not None and pcr not in tasks.RESETTABLE_PCRS:
        raise UsageError(f"PCR {pcr} cannot be reset, so it is not extended", hint="Give 16 or 23")
    with open_link(tcti) as link, _deferred_interrupts() as stop:
        before = capability.read_state(link)
        info = read_info(link)
        _refuse_unusable(info, link)
        chosen = _choose_pcr(before, pcr, source=tcti)
        zero = _is_zero(before, chosen)
        wanted = _wanted(tuple(capability.digest_banks(link)), only)
        with ExitStack() as stack:
            work = _prepare(
                stack, link, path, info=info, pcr=chosen, zero=zero, seed=seed, stop=stop,
                allow_persistent=allow_persistent, on_step=on_step,
            )  # fmt: skip
            try:
                _measure(work, _plan(work, wanted), blocks=blocks, budget_ns=budget_ns, seed=seed)
            except BaseException:
                with contextlib.suppress(HostError):  # what went wrong first is what is told
                    _finish(work, "interrupted", _clean_up(work, before, zero=zero))
                raise
            left = _clean_up(work, before, zero=zero)
            _finish(work, "interrupted" if stop.asked else "finished", left)
    return TpmBench(
        path=path,
        runs=work.sequence,
        interrupted=stop.asked,
        skipped=tuple(work.skipped.values()),
        left=tuple(left),
        verified=work.bench.verified,
        retries=link.retries,
    )


def _prepare(
    stack: ExitStack,
    link: Link,
    path: Path,
    *,
    info: TpmInfo,
    pcr: int,
    zero: bool,
    seed: int,
    stop: _Stop,
    allow_persistent: bool,
    on_step: OnStep | None,
) -> _Work:
    """Make the null primary and open the capture; what cannot be measured costs nothing."""
    banks = capability.digest_banks(link)
    usable = tuple(bank for bank, indices in banks.items() if pcr in indices)
    if not usable:
        raise HostError(f"no PCR bank with PCR {pcr} is in use", source=link.tcti)
    primary, _ = make_null_primary(link)
    bench = Bench(link=link, primary=primary, keys=KeyRing(link, primary), pcr=pcr, banks=usable)
    manifest = _manifest(info, bench, seed, zero)
    earlier = _interrupted(path, manifest)
    capture = stack.enter_context(Capture.open(path) if earlier else Capture.create(path, manifest))
    work = _Work(
        bench=bench,
        capture=capture,
        stop=stop,
        on_step=on_step or (lambda _text, _done, _total: None),
    )
    if earlier is not None:
        _take_up(work, earlier)
        capture.replace_manifest(replace(manifest, id=capture.manifest.id))
    capture.append(_session("resumed" if earlier else "started", work.sequence))
    bench.nv_index = tasks.find_nv_index(link)
    if bench.nv_index is None and allow_persistent:
        try:
            bench.nv_index = tasks.define_nv_index(link)
        except TpmError as error:
            work.skipped[tasks.NV_READ.name] = f"{tasks.NV_READ.name}: {error.reason}."
    return work


def _interrupted(path: Path, manifest: Manifest) -> Dataset | None:
    """Return what an interrupted bench of the same TPM has measured, or None for a new capture.

    Raises:
        OutputError: There is something else, or it is complete.
    """
    found = require_unfinished(path, is_kin=is_bench)
    if found is not None:
        require_same(found, manifest, path=path, subject="TPM")
    return found


def _take_up(work: _Work, earlier: Dataset) -> None:
    """Take notice of what an earlier session has measured."""
    for row in earlier.runs.iter_rows(named=True):
        work.sequence = max(work.sequence, row["sequence"] + 1)
        if row["task"] == CLIENT:
            continue
        work.done.add((row["task"], row["configuration"], row["block"]))
        work.spent_ns[row["task"]] = work.spent_ns.get(row["task"], 0) + (row["wall_ns"] or 0)
    work.bench.verified = int(earlier.manifest.campaign.get("verified", 0))
    for task, block in {(task, block) for task, _, block in work.done}:
        work.counted[task] = work.counted.get(task, 0) + (block > 0)


def _wanted(banks: tuple[int, ...], only: Sequence[str]) -> list[Task]:
    """Return the tasks whose names contain one of the words; all without words."""
    known = [*TASKS, *tasks.bank_tasks(banks), tasks.NV_READ]
    wanted = [
        task
        for task in known
        if not only or any(word.lower() in task.name.lower() for word in only)
    ]
    if not wanted:
        names = ", ".join(task.name for task in known)
        raise UsageError(f"no command is called {', '.join(only)}", hint=f"There are: {names}")
    return wanted


def _plan(work: _Work, wanted: Sequence[Task]) -> list[Task]:
    """Return the tasks that are possible; say of the others why not."""
    bench, link = work.bench, work.bench.link
    have, curves = capability.commands(link), capability.curves(link)
    planned = []
    for task in wanted:
        reason = task.missing(have, curves)
        if task is tasks.NV_READ and bench.nv_index is None:
            reason = "no EK certificate is stored in NV; --allow-persistent defines an index"
        if reason is None:
            planned.append(task)
        else:
            work.skipped.setdefault(task.name, f"{task.name}: not measured, {reason}.")
    if any(task.name == EXTEND for task in planned):
        _prove_modes(work)
    return planned


def _prove_modes(work: _Work) -> None:
    """Extend once in each mode, and see that the PCR has the value it must have."""
    bench = work.bench
    bank = next((bank for bank in bench.banks if bank in _HASHES), None)
    if bank is None:
        work.skipped["proof"] = "No bank has a hash known here: the values of PCRs are not checked."
        return
    for mode in MODES:
        old = capability.read_pcrs(bench.link, bank, (bench.pcr,))[bench.pcr]
        verified = bench.verified
        tasks.extend(bench, mode)
        got = capability.read_pcrs(bench.link, bank, (bench.pcr,))[bench.pcr]
        digest = (tasks.DIGEST * 2)[: DIGEST_BYTES[bank]]
        expected = hashlib.new(_HASHES[bank], old + digest).digest()
        checked = "" if mode == NONE else ", HMAC of the answer right"
        seen = "" if bench.verified == verified else ", HMAC of the answer right"
        work.capture.append(
            Effect(
                configuration=mode,
                check=f"one extend of PCR {bench.pcr}, read back",
                expected=f"{expected.hex()[:16]}…{checked}",
                got=f"{got.hex()[:16]}…{seen}",
                outcome="PASSED" if got == expected and checked == seen else "FAILED",
            )
        )
        if got != expected:
            raise HostError(
                f"PCR {bench.pcr} has another value than its extend in mode {mode!r} must give",
                source=bench.link.tcti,
                hint="Another program extends it; try --pcr 23",
            )


def _measure(
    work: _Work, planned: Sequence[Task], *, blocks: int, budget_ns: int, seed: int
) -> None:
    total = len(planned) * (blocks + 1)
    for block in range(blocks + 1):
        for place, task in enumerate(planned):
            if work.stop.asked:
                return
            work.on_step(task.name, block * len(planned) + place, total)
            spent = work.spent_ns.get(task.name, 0)
            enough = work.counted.get(task.name, 0) >= FEWEST
            if task.name in work.skipped or (spent > budget_ns and enough):
                continue
            _measure_block(work, task, block, seed)
    work.on_step("done", total, total)


def _measure_block(work: _Work, task: Task, block: int, seed: int) -> None:
    """Do a task once in each of its modes; a task that the TPM refuses is not tried again."""
    arms = list(task.modes)
    if len(arms) > 1:
        arms.insert(1, TWIN)
    for head in runs_of_block(block, tasks=[task.name], arms=arms, seed=seed, warmup=0):
        if work.stop.asked:
            return
        if (task.name, head.configuration, block) in work.done:
            continue
        mode = NONE if head.configuration == TWIN else head.configuration
        try:
            records, spent_ns = _once(work.bench, task, mode, head, work.sequence)
        except TpmError as error:
            if error.code & 0xFFF in _FATAL:
                raise
            work.skipped[task.name] = f"{task.name}: {error.reason}."
            return
        work.capture.extend(records)
        work.sequence += sum(isinstance(record, Run) for record in records)
        work.spent_ns[task.name] = work.spent_ns.get(task.name, 0) + spent_ns
    work.counted[task.name] = work.counted.get(task.name, 0) + (block > 0)


def _once(
    bench: Bench, task: Task, mode: str, head: RunHead, sequence: int
) -> tuple[list[Record], int]:
    """Return the records of one run: the TPM's time, and the client's where it worked."""
    # What is measured follows a command, as in a sequence: else the first after a pause would also
    # pay for waking up the processes, buses and caches on the way.
    bench.link.send("GetTestResult")
    replies, work = task.run(bench, mode)
    tpm_ns = sum(reply.duration_ns for reply in replies)
    records: list[Record] = [_run(head, sequence, task.name, replies[0].start_ns, tpm_ns)]
    if len(replies) > 1 or len(task.modes) > 1:
        records += [
            Event(
                sequence=sequence,
                layer=TPM_LAYER,
                event=reply.command,
                start_ns=reply.start_ns,
                value=reply.duration_ns,
            )
            for reply in replies
        ]
    if work:
        client_ns = sum(each.cpu_ns for each in work)
        records.append(_run(head, sequence + 1, CLIENT, None, client_ns))
        records += [
            Event(sequence=sequence + 1, layer=CLIENT_LAYER, event=each.name, value=each.cpu_ns)
            for each in work
        ]
    return records, tpm_ns


def _run(head: RunHead, sequence: int, task: str, start_ns: int | None, wall_ns: int) -> Run:
    return Run(
        sequence=sequence,
        block=head.block,
        task=task,
        configuration=head.configuration,
        run=head.run,
        phase=head.phase,
        start_ns=start_ns,
        wall_ns=wall_ns,
    )


def _clean_up(work: _Work, before: capability.State, *, zero: bool) -> list[str]:
    """Take everything back, and return what is still not as it was before."""
    bench, link = work.bench, work.bench.link
    bench.close()
    if bench.nv_index is not None and bench.nv_index not in before.handles["nv"]:
        tasks.undefine_nv_index(link, bench.nv_index)
    if zero:
        link.send("PCR_Reset", handles=u32(bench.pcr), authority=PASSWORD)
    after = capability.read_state(link)
    kept = -1 if zero else bench.pcr
    found = [e for e in before.differences(after) if not (e.is_pcr and e.number == kept)]
    ours = [each for each in found if _is_ours(each, bench)]
    if elsewhere := [str(each) for each in found if each not in ours]:
        work.skipped["elsewhere"] = f"Others used the TPM meanwhile: {'; '.join(elsewhere)}."
    left = [str(each) for each in ours]
    work.capture.append(
        Effect(
            configuration="all",
            check="persistent handles, NV indices, objects, sessions and PCRs, before and after",
            expected="the same",
            got="; ".join(left) or "the same",
            outcome="FAILED" if left else "PASSED",
        )
    )
    return left


def _is_ours(found: capability.Difference, bench: Bench) -> bool:
    """Return whether a difference is the bench's doing: other programs use a TPM too."""
    if found.is_pcr:
        return found.number == bench.pcr
    if found.kind in ("persistent", "nv"):
        return True
    return any(found.number & 0xFFFFFF == made & 0xFFFFFF for made in bench.link.made)


def _finish(work: _Work, state: _State, left: Sequence[str]) -> None:
    bench, manifest = work.bench, work.capture.manifest
    notes = [*manifest.notes, *work.skipped.values()]
    if bench.verified:
        notes.append(f"The HMACs of all {bench.verified:,} answers to protected extends are right.")
    if bench.link.retries:
        notes.append(
            f"The TPM asked {counted(bench.link.retries, 'time')} to send a command again; a "
            "command's time "
            "is that of its last sending."
        )
    if left:
        notes.append(f"The TPM is not as it was: {'; '.join(left)}.")
    campaign = {**manifest.campaign, "verified": bench.verified}
    work.capture.replace_manifest(replace(manifest, notes=notes, campaign=campaign))
    work.capture.append(_session(state, work.sequence))


def _manifest(info: TpmInfo, bench: Bench, seed: int, zero: bool) -> Manifest:
    words = " ".join(filter(None, [info.maker or info.manufacturer, info.vendor_string]))
    banks = f"in {counted(len(bench.banks), 'bank')}, as the kernel does"
    kept = "" if zero else " It was not zero before and is not reset."
    return Manifest(
        id=new_id(),
        created=now(),
        title=f"TPM commands: {words}, firmware {info.firmware}",
        origin="measured",
        excise_version=__version__,
        baseline=NONE,
        twin=TWIN,
        paired=True,
        seed=seed,
        campaign={
            "tpm": "bench",
            "banks": len(bench.banks),
            "configurations": [{"name": name} for name in MODES],
        },
        host_facts=[*host_facts(), *info.facts()],
        clocks=[clock(), Clock(name="CLOCK_THREAD_CPUTIME_ID (client's work)", resolution_ns=1.0)],
        notes=[
            f"Extends are of PCR {bench.pcr} {banks}.{kept}",
            *info.notes,
        ],
    )


def _session(state: _State, runs: int) -> Session:
    return Session(
        state=state,
        at=now(),
        runs_done=runs,
        excise_version=__version__,
        boot_id=boot_id(),
    )


def _refuse_unusable(info: TpmInfo, link: Link) -> None:
    if info.in_lockout:
        raise HostError(
            "the TPM is in lockout after failed authorisations",
            source=link.tcti,
            hint="Wait for its recovery time, or clear it with `tpm2_dictionarylockout -c`",
        )
    if info.null_name is None:
        raise HostError(
            f"the TPM makes no ECC P-256 primary in its null hierarchy ({info.notes[0][:-1]})",
            source=link.tcti,
            hint="Protected extends need one; this TPM cannot be measured for them",
        )


def _choose_pcr(state: capability.State, pcr: int | None, *, source: str) -> int:
    """Return a resettable PCR that is zero, or the one that was asked for."""
    if pcr is not None:
        return pcr
    for candidate in tasks.RESETTABLE_PCRS:
        if _is_zero(state, candidate):
            return candidate
    raise HostError(
        "PCR 16 and PCR 23 both hold a value, which extending would lose",
        source=source,
        hint="Name the one that may be changed: --pcr 16 or --pcr 23",
    )


def _is_zero(state: capability.State, pcr: int) -> bool:
    values = [held[pcr] for held in state.pcrs.values() if pcr in held]
    return not any(any(value) for value in values)


@contextmanager
def _deferred_interrupts() -> Iterator[_Stop]:
    """Let a command end before Ctrl-C or SIGTERM does: a TPM left in mid-answer keeps objects.

    The second signal ends at once. Off the main thread signals are left as they are.
    """
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
