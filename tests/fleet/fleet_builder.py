"""Writes fleets: hosts with lists, PCR values, quotes and boot logs, right unless changed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eventlog_builder import agile_log, boot, registers_after
from excise.evidence.policy import Policy, PolicyBuilder
from excise.fleet.engines import PoolEngine
from excise.fleet.records import HostJob, HostState, Settings
from excise.fleet.rounds import FleetRound, find_hosts, verify_fleet
from excise.fleet.stores import StateStore
from excise.fleet.worker import Batch, appraise_batch
from ima_builder import Entry, binary_list, boot_aggregate, files, ng, pcrs_after
from quote_builders import AttestFields, QuoteCase, ecc_key, pem, tpm2b_public

LIST = "binary_runtime_measurements"
SHARED = 40


def entries_of(host: str, *, more: Sequence[Entry] = ()) -> list[Entry]:
    """Return a host's entries: files that all hosts have, one of its own, and more."""
    return [*files(SHARED), ng(f"/srv/{host}", host.encode()), *more]


def pcr_text(pcrs: Mapping[str, Mapping[int, bytes]]) -> str:
    lines = []
    for bank, values in pcrs.items():
        lines.append(f"{bank}:")
        lines += [f"  {index}: 0x{value.hex().upper()}" for index, value in values.items()]
    return "\n".join(lines) + "\n"


def write_host(
    fleet: Path, host: str, entries: Sequence[Entry] | None = None, *, tail: Sequence[Entry] = ()
) -> Path:
    """Write a host: its list, longer by `tail` than its PCR values cover, and the values."""
    listed = entries_of(host) if entries is None else list(entries)
    folder = fleet / host
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIST).write_bytes(binary_list([*listed, *tail]))
    (folder / "pcrs.txt").write_text(pcr_text(pcrs_after(listed, "sha1", "sha256")))
    return folder


def write_fleet(fleet: Path, hosts: int) -> list[str]:
    names = [f"host-{number:03d}" for number in range(hosts)]
    for name in names:
        write_host(fleet, name)
    return names


def policy_for(entries: Sequence[Entry]) -> Policy:
    """Return a policy that allows the files of the entries."""
    builder = PolicyBuilder()
    for entry in entries:
        digest, name = entry.values["d-ng"], entry.values["n-ng"]
        assert isinstance(digest, bytes)
        assert isinstance(name, bytes)
        builder.add_digest(name[:-1], algorithm="sha256", digest=digest[-32:])
    return builder.compile()


def fleet_policy(names: Sequence[str], *, more: Sequence[Entry] = ()) -> Policy:
    own = [entry for name in names for entry in entries_of(name)[SHARED:]]
    return policy_for([*files(SHARED), *own, *more])


@dataclass(frozen=True)
class Attested:
    """A host with a quote over PCRs 0 to 10, a boot log and a list; the key is its own."""

    host: str
    nonce: bytes = b"the verifier's nonce"
    clock_ms: int = 5_000
    key: str = "ak"

    def write(self, fleet: Path, entries: Sequence[Entry] | None = None) -> Path:
        boot_pcrs = {8: bytes(32), 9: bytes(32)} | registers_after(boot(), "sha256")["sha256"]
        listed = [
            boot_aggregate(boot_pcrs),
            *(entries_of(self.host) if entries is None else entries),
        ]
        values = {"sha256": dict(sorted((boot_pcrs | pcrs_after(listed)["sha256"]).items()))}
        digest = hashlib.sha256(b"".join(values["sha256"].values())).digest()
        case = QuoteCase(
            fields=AttestFields(
                extra_data=self.nonce,
                clock_ms=self.clock_ms,
                selection=(("sha256", tuple(range(11))),),
                pcr_digest=digest,
            ),
            key=ecc_key(self.key),
            values=values,
        )
        folder = fleet / self.host
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LIST).write_bytes(binary_list(listed))
        (folder / "binary_bios_measurements").write_bytes(agile_log(boot(), "sha256"))
        (folder / "quote.attest").write_bytes(case.attest)
        (folder / "quote.signature").write_bytes(case.signature)
        (folder / "quote.public").write_bytes(tpm2b_public(case.key))
        (folder / "quote.nonce").write_text(self.nonce.hex())
        (folder / "quote.pcrs").write_text(pcr_text(values))
        return folder

    def write_key(self, keys: Path) -> None:
        keys.mkdir(exist_ok=True)
        (keys / f"{self.host}.pem").write_bytes(pem(ecc_key(self.key)))


def run_round(
    fleet: Path | str,
    *,
    policy: Policy | None = None,
    store: StateStore | None = None,
    engine: object = None,
    keys: Mapping[str, bytes] | None = None,
    **settings: object,
) -> FleetRound:
    """Make a round, in this process unless an engine is given."""
    from excise.fleet.engines import InlineEngine

    chosen = Settings(policy_digest=policy.digest if policy else None, **settings)  # type: ignore[arg-type]
    return verify_fleet(
        find_hosts([str(fleet)]),
        engine=engine or InlineEngine(),  # type: ignore[arg-type]
        settings=chosen,
        policy=policy,
        store=store,
        keys=keys,
    )


def by_host(done: FleetRound) -> dict[str, HostState]:
    return {state.host: state for state in done.states()}


def outcome_of(state: HostState, check: str) -> str:
    return next(row.outcome for row in state.checks if row.check == check)


def _leave_half_a_result() -> None:
    """Die as a worker does that is killed while it writes: a length, and fewer bytes."""
    queue = multiprocessing.current_process()._args[1]  # type: ignore[attr-defined]
    queue._wlock.acquire()
    os.write(queue._writer.fileno(), struct.pack("!i", 100_000) + b"half")
    os._exit(9)


def dying_batch(
    jobs: Sequence[HostJob], *, settings: Settings, policy_path: str | None = None
) -> Batch:
    """Do as a worker does, but end without a word at hosts whose name says so.

    `dies-once` ends the first worker only that comes to it; a file in its folder remembers.
    """
    for job in jobs:
        if job.host.startswith("dies-always"):
            os._exit(9)
        if job.host.startswith("dies-writing"):
            _leave_half_a_result()
        mark = Path(job.url, "died")
        if job.host.startswith("dies-once") and not mark.exists():
            mark.write_text("once")
            os._exit(9)
    return appraise_batch(jobs, settings=settings, policy_path=policy_path)


class DyingPool(PoolEngine):
    """A pool whose workers end at some hosts."""

    work = staticmethod(dying_batch)
