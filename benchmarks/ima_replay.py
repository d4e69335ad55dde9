"""Time the replay of IMA lists against today's tools, side by side in one run.

usage: ima_replay.py [--entries N] [--runs N] [--keylime-python PYTHON] [--json FILE]

Every arm is a whole process that answers whether a list leads to PCR 10, both banks with every
template hash checked unless its name says otherwise; every answer is checked. The figure is the
CPU time (user and system) of the process, the median over interleaved runs; Python's byte code is
compiled before, as an installed package has it. Arms whose program is absent are left out and
named. Needs a C compiler for the hand-written peer (ima_peer.c).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

VERIFY = """
import sys
from excise.evidence.ima import verify_list
path, sha1, sha256 = sys.argv[1:4]
pcrs = {"sha1": {10: bytes.fromhex(sha1)}, "sha256": {10: bytes.fromhex(sha256)}}
result = verify_list(path, pcrs=pcrs)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(result.verdict, result.coverage.covered_entries, peak)
"""
REPLAY_ONLY = """
import sys, time
from excise import _core
path, sha1, sha256 = sys.argv[1:4]
chains = [(10, "sha1", "own", bytes(20), bytes.fromhex(sha1)),
          (10, "sha256", "own", bytes(32), bytes.fromhex(sha256))]
began = time.process_time()
found = _core.ima_replay(path, chains, [])
took = time.process_time() - began
hits = [chain["hit"]["index"] + 1 for chain in found["registers"][0]["chains"] if chain["hit"]]
print("PASSED" if len(hits) == 2 and not found["bad_hashes"][0] else "FAILED", hits[0], took)
"""
RESUME = """
import sys, time
import msgspec
from excise.evidence.ima import Checkpoint, verify_list
path, sha1, sha256, checkpoint = sys.argv[1:5]
pcrs = {"sha1": {10: bytes.fromhex(sha1)}, "sha256": {10: bytes.fromhex(sha256)}}
began, cpu_began = time.perf_counter(), time.process_time()
state = Checkpoint.from_json(open(checkpoint, "rb").read())
result = verify_list(path, pcrs=pcrs, checkpoint=state)
document = result.checkpoint.to_json()
took, cpu = time.perf_counter() - began, time.process_time() - cpu_began
print(result.verdict, result.coverage.covered_entries, result.facts["new_entries"], took, cpu)
"""
KEYLIME = """
import sys
from keylime.agentstates import AgentAttestState
from keylime.common import algorithms
from keylime.ima import ima
path, bank, value = sys.argv[1:4]
lines = open(path).read().splitlines()
state = AgentAttestState("benchmark")
_, failure = ima.process_measurement_list(
    state, lines, None, pcrval=value, hash_alg=algorithms.Hash(bank))
print("FAILED" if failure else "PASSED", len(lines))
"""


@dataclass
class Lists:
    """A generated list in both forms, and where it leads."""

    binary: Path
    ascii: Path
    sha1: str
    sha256: str
    pcr_files: dict[str, Path]


@dataclass
class Arm:
    """One program under test."""

    name: str
    argv: list[str]
    expected: str
    cpu_s: list[float] = field(default_factory=list)
    peak_kib: list[int] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)


def generate(folder: Path, entries: int, more: int = 0) -> Lists:
    """Write a list of ima-ng entries with names of 30 to 60 bytes, `more` after the first."""
    chance = random.Random(entries)
    sha1, sha256 = bytes(20), bytes(32)
    binary, text = folder / f"{entries}.bin", folder / f"{entries}.asc"
    with binary.open("wb") as binary_file, text.open("wb") as text_file:
        for index in range(entries + more):
            filler = "a" * chance.randrange(24)
            name = f"/usr/lib/x86_64-linux-gnu/{index % 977}/{filler}{index}.so".encode()
            if index == 0:
                name = b"boot_aggregate"
            raw = chance.randbytes(32)
            digest = b"sha256:\0" + raw
            data = struct.pack("<I", len(digest)) + digest
            data += struct.pack("<I", len(name) + 1) + name + b"\0"
            value = hashlib.sha1(data).digest()
            sha1 = hashlib.sha1(sha1 + value).digest()
            sha256 = hashlib.sha256(sha256 + hashlib.sha256(data).digest()).digest()
            head = struct.pack("<I", 10) + value + struct.pack("<I", 6) + b"ima-ng"
            binary_file.write(head + struct.pack("<I", len(data)) + data)
            shown = b"10 %s ima-ng sha256:%s %s\n"
            text_file.write(shown % (value.hex().encode(), raw.hex().encode(), name))
    files = {}
    for bank, value in (("sha1", sha1), ("sha256", sha256)):
        files[bank] = folder / f"{entries}.pcrs-{bank}"
        rows = [f"PCR-{i:02d}: {(value if i == 10 else bytes(len(value))).hex(' ')}" for i in
                range(24)]  # fmt: skip
        files[bank].write_text("\n".join(rows) + "\n")
    return Lists(binary, text, sha1.hex(), sha256.hex(), files)


def arms(lists: Lists, small: Lists, folder: Path, keylime: str | None, count: int) -> list[Arm]:
    python = [sys.executable, "-c"]
    values = [lists.sha1, lists.sha256]
    small_values = [small.sha1, small.sha256]
    passed = f"PASSED {count}"
    found = [
        Arm("excise, binary", [*python, VERIFY, str(lists.binary), *values], passed),
        Arm("excise, program", program(lists), f"Covered up to entry {count - 1}"),
        Arm(
            "excise, program, every file by a policy",
            [*program(lists), "--policy", str(policy_of(lists, folder / "policy"))],
            f"{count - 1} allowed",
        ),
        Arm("excise, ascii", [*python, VERIFY, str(lists.ascii), *values], passed),
        Arm("excise, replay alone", [*python, REPLAY_ONLY, str(lists.binary), *values], passed),
        Arm(
            "excise, a tenth",
            [*python, VERIFY, str(small.binary), *small_values],
            f"PASSED {count // 10}",
        ),
    ]
    peer = folder / "ima_peer"
    flags = ["-O3", "-msha", "-msse4.1", "-mssse3"]
    if shutil.which("cc") and not subprocess.call(
        ["cc", *flags, "-o", str(peer), str(HERE / "ima_peer.c")]
    ):
        found.append(
            Arm("C, SHA-NI", [str(peer), str(lists.binary)], f"{count} 0 {' '.join(values)}")
        )
    if evmctl := shutil.which("evmctl"):
        given = [f"{bank},{path}" for bank, path in lists.pcr_files.items()]
        argv = [evmctl, "ima_measurement"]
        for pair in given:
            argv += ["--pcrs", pair]
        found.append(Arm("evmctl", [*argv, str(lists.binary)], "Matched per TPM bank"))
    if keylime:
        for bank, value in zip(("sha1", "sha256"), values, strict=True):
            argv = [keylime, "-c", KEYLIME, str(lists.ascii), bank, value]
            found.append(Arm(f"keylime, {bank} alone", argv, passed))
    return found


def policy_of(lists: Lists, path: Path) -> Path:
    """Compile a policy that allows every file of a list, as a verifier keeps it."""
    from excise.evidence.ima import read_list
    from excise.evidence.policy import PolicyBuilder

    builder = PolicyBuilder()
    for row in read_list(lists.binary):
        if row.name and row.name != b"boot_aggregate":
            builder.add_digest(row.name, algorithm="sha256", digest=row.digest)
    builder.compile().save(path)
    return path


def program(lists: Lists) -> list[str]:
    """Return the words of `excise verify ima` as a user types them."""
    excise = str(Path(sys.executable).with_name("excise"))
    values = ["--pcr", f"sha1:10={lists.sha1}", "--pcr", f"sha256:10={lists.sha256}"]
    return [excise, "verify", "ima", str(lists.binary), *values]


def run(arm: Arm, byte_code: Path, *, counts: bool = True) -> None:
    """Run an arm once, check its answer, and note its CPU time and peak memory.

    Args:
        arm: What to run.
        byte_code: Where Python keeps what it compiled, whatever the caller's environment says.
        counts: Whether the figures count: not in the first run, which compiles.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(byte_code)
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(arm.argv, stdout=out, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode(errors="replace")
    if process.returncode or arm.expected not in text:
        raise SystemExit(f"{arm.name}: exit {process.returncode}, answered: {text[-800:]}")
    if not counts:
        return
    arm.cpu_s.append(usage.ru_utime + usage.ru_stime)
    # A child's ru_maxrss is never below that of this process, so excise tells its own.
    arm.peak_kib.append(int(text.split()[-1]) if VERIFY in arm.argv else usage.ru_maxrss)
    if arm.name == "excise, replay alone":
        arm.own_s.append(float(text.split()[-1]))


def resume(folder: Path, count: int, runs: int) -> dict[str, float]:
    """Time the work of a verification with six new entries after a checkpoint."""
    from excise.evidence.ima import verify_list

    grown = generate(folder / "grown", count, more=6)
    before = generate(folder / "before", count)
    pcrs = {
        "sha1": {10: bytes.fromhex(before.sha1)},
        "sha256": {10: bytes.fromhex(before.sha256)},
    }
    state = verify_list(before.binary, pcrs=pcrs).checkpoint
    if state is None:
        raise SystemExit("no checkpoint")
    path = folder / "checkpoint.json"
    path.write_bytes(state.to_json())
    times, cpu_times = [], []
    for _ in range(max(runs, 11)):
        argv = [sys.executable, "-c", RESUME, str(grown.binary), grown.sha1, grown.sha256]
        text = subprocess.run([*argv, str(path)], check=True, capture_output=True, text=True).stdout
        verdict, covered, new, took, cpu = text.split()
        if (verdict, covered, new) != ("PASSED", str(count + 6), "6"):
            raise SystemExit(f"resume: {text}")
        times.append(float(took))
        cpu_times.append(float(cpu))
    return {
        "wall_median_s": statistics.median(times),
        "wall_max_s": max(times),
        "cpu_median_s": statistics.median(cpu_times),
        "cpu_max_s": max(cpu_times),
    }


def report(found: list[Arm], resumed: dict[str, float], count: int) -> dict[str, object]:
    by_name = {arm.name: statistics.median(arm.cpu_s) for arm in found}
    own = next(arm for arm in found if arm.own_s).own_s
    ours, replay_alone = by_name["excise, binary"], statistics.median(own)
    peaks = {arm.name: max(arm.peak_kib) for arm in found}
    ratios = {"excise ascii / excise binary": by_name["excise, ascii"] / ours}
    if "evmctl" in by_name:
        ratios["evmctl / excise program"] = by_name["evmctl"] / by_name["excise, program"]
        ratios["evmctl / excise binary"] = by_name["evmctl"] / ours
        ratios["evmctl (binary) / excise ascii"] = by_name["evmctl"] / by_name["excise, ascii"]
    if "keylime, sha1 alone" in by_name:
        both = by_name["keylime, sha1 alone"] + by_name["keylime, sha256 alone"]
        ratios["keylime sha256 alone / excise two banks"] = by_name["keylime, sha256 alone"] / ours
        ratios["keylime both banks / excise two banks"] = both / ours
    if "C, SHA-NI" in by_name:
        ratios["excise replay alone / C"] = replay_alone / by_name["C, SHA-NI"]
        ratios["excise whole process / C"] = ours / by_name["C, SHA-NI"]
    print(f"{count} ima-ng entries, {len(own)} interleaved runs, {time.strftime('%Y-%m-%d')}")
    for arm in found:
        low, high = min(arm.cpu_s), max(arm.cpu_s)
        print(
            f"{arm.name:24} {by_name[arm.name]:8.3f} s CPU ({low:.3f} to {high:.3f}), "
            f"peak {peaks[arm.name] / 1024:.1f} MiB"
        )
    print(f"{'excise, replay alone':24} {replay_alone:8.3f} s CPU without the start-up")
    for name, ratio in ratios.items():
        print(f"{name:40} {ratio:6.2f}")
    growth = peaks["excise, binary"] / peaks["excise, a tenth"]
    print(f"peak memory, whole list / a tenth of it: {growth:.3f}")
    print(
        "resume with 6 new entries, beyond start-up: "
        f"{1e3 * resumed['cpu_median_s']:.2f} ms CPU (longest {1e3 * resumed['cpu_max_s']:.2f}), "
        f"{1e3 * resumed['wall_median_s']:.2f} ms on the clock"
    )
    return {
        "entries": count,
        "cpu": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "arms": {a.name: {"cpu_s": a.cpu_s, "peak_kib": a.peak_kib} for a in found},
        "replay_alone_s": own,
        "ratios": ratios,
        "peak_ratio": growth,
        "resume": resumed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keylime-python", help="a Python that has keylime")
    parser.add_argument("--json", type=Path, help="write all raw values here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ima-replay-") as name:
        folder = Path(name)
        (folder / "grown").mkdir()
        (folder / "before").mkdir()
        lists = generate(folder, options.entries)
        small = generate(folder, options.entries // 10)
        found = arms(lists, small, folder, options.keylime_python, options.entries)
        for number in range(options.runs + 1):
            for arm in found:
                run(arm, folder / "pycache", counts=number > 0)
        resumed = resume(folder, options.entries, options.runs)
        result = report(found, resumed, options.entries)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
