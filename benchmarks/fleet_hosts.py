"""Make a fleet of hosts: each its own IMA list and PCR values, most entries shared.

usage: fleet_hosts.py FOLDER [--hosts N] [--entries N] [--own N] [--grow N]

Writes FOLDER/hosts/NAME/{binary_runtime_measurements,pcrs.txt} and FOLDER/policy.sha256, which
allows every file. `--grow N` appends N entries to every list that is there, and brings its PCR
values forward. PCR values are computed with hashlib, independently of the program.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

LIST, PCRS, POLICY = "binary_runtime_measurements", "pcrs.txt", "policy.sha256"

Entry = tuple[bytes, bytes, bytes, str]
"""The record's bytes, its SHA-1 and SHA-256 template digests, and its line of the policy."""


def entry(name: bytes, digest: bytes) -> Entry:
    """Return one `ima-ng` entry."""
    field = b"sha256:\0" + digest
    data = struct.pack("<I", len(field)) + field + struct.pack("<I", len(name) + 1) + name + b"\0"
    sha1 = hashlib.sha1(data).digest()
    head = struct.pack("<I", 10) + sha1 + struct.pack("<I", 6) + b"ima-ng"
    line = f"{digest.hex()}  {name.decode()}"
    record = head + struct.pack("<I", len(data)) + data
    return record, sha1, hashlib.sha256(data).digest(), line


def file_entry(number: int, salt: int = 0) -> Entry:
    """Return the entry of a file, the same for the same numbers."""
    chance = random.Random(number * 1_000_003 + salt)
    filler = "a" * chance.randrange(24)
    name = f"/usr/lib/x86_64-linux-gnu/{number % 977}/{filler}{number}.so"
    return entry(name.encode(), chance.randbytes(32))


@cache
def shared(entries: int) -> list[Entry]:
    """Return what every host measured."""
    return [file_entry(number) for number in range(entries)]


def extend(state: tuple[bytes, bytes], rows: list[Entry]) -> tuple[bytes, bytes]:
    """Return PCR 10 of both banks after the entries."""
    sha1, sha256 = state
    for _, short, long, _ in rows:
        sha1 = hashlib.sha1(sha1 + short).digest()
        sha256 = hashlib.sha256(sha256 + long).digest()
    return sha1, sha256


def write_pcrs(folder: Path, state: tuple[bytes, bytes]) -> None:
    """Write the values as `tpm2_pcrread` prints them."""
    sha1, sha256 = (value.hex().upper() for value in state)
    text = f"sha1:\n  10: 0x{sha1}\nsha256:\n  10: 0x{sha256}\n"
    (folder / PCRS).write_text(text)


def make_host(folder: Path, *, number: int, entries: int, own: int) -> None:
    """Write one host: its boot aggregate, files in an order of its own, and files only it has."""
    chance = random.Random(number)
    boot = entry(b"boot_aggregate", chance.randbytes(32))
    rows = list(shared(entries - 1 - own))
    rows += [own_entry(entries, own, number, each) for each in range(own)]
    for _ in range(entries // 50):
        one, other = chance.randrange(len(rows)), chance.randrange(len(rows))
        rows[one], rows[other] = rows[other], rows[one]
    rows.insert(0, boot)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIST).write_bytes(b"".join(record for record, *_ in rows))
    write_pcrs(folder, extend((bytes(20), bytes(32)), rows))


def own_entry(entries: int, own: int, host: int, each: int) -> Entry:
    """Return an entry that one host alone has."""
    return file_entry(10_000_000 + host * max(own, 1) + each, salt=entries)


def grown_entry(number: int) -> Entry:
    """Return an entry that lists get in a later round."""
    return file_entry(5_000_000 + number)


def grow(folder: Path, *, count: int) -> None:
    """Append entries to a host's list, and bring its PCR values forward."""
    text = (folder / PCRS).read_text().split()
    state = bytes.fromhex(text[2][2:]), bytes.fromhex(text[5][2:])
    rows = [grown_entry(number) for number in range(count)]
    with (folder / LIST).open("ab") as file:
        file.write(b"".join(record for record, *_ in rows))
    write_pcrs(folder, extend(state, rows))


@contextmanager
def grown(folders: Iterable[Path], *, count: int) -> Iterator[None]:
    """Let every host measure more files for a while."""
    before = []
    try:
        for folder in folders:
            before.append((folder, (folder / LIST).stat().st_size, (folder / PCRS).read_bytes()))
            grow(folder, count=count)
        os.sync()  # what the growing wrote is not the round's
        yield
    finally:
        for folder, size, values in before:
            os.truncate(folder / LIST, size)
            (folder / PCRS).write_bytes(values)


def write_policy(path: Path, *, entries: int, own: int, hosts: int, grown: int = 64) -> None:
    """Write the checksums of every file of the fleet."""
    with path.open("w") as file:
        for row in shared(entries - 1 - own):
            file.write(row[3] + "\n")
        for number in range(grown):
            file.write(grown_entry(number)[3] + "\n")
        for host in range(hosts):
            for each in range(own):
                file.write(own_entry(entries, own, host, each)[3] + "\n")


def host_folders(root: Path) -> list[Path]:
    """Return the folders of the hosts."""
    return sorted((root / "hosts").iterdir())


def _make(job: tuple[Path, int, int, int]) -> None:
    folder, number, entries, own = job
    make_host(folder, number=number, entries=entries, own=own)


def make_fleet(root: Path, *, hosts: int, entries: int, own: int) -> None:
    """Write a whole fleet and its policy."""
    jobs = [(root / "hosts" / f"host-{n:05d}", n, entries, own) for n in range(hosts)]
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_make, jobs, chunksize=16))
    write_policy(root / POLICY, entries=entries, own=own, hosts=hosts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--own", type=int, default=20, help="entries only one host has")
    parser.add_argument("--grow", type=int, default=0)
    options = parser.parse_args()
    if options.grow:
        for folder in host_folders(options.folder):
            grow(folder, count=options.grow)
    else:
        make_fleet(options.folder, hosts=options.hosts, entries=options.entries, own=options.own)


if __name__ == "__main__":
    main()
