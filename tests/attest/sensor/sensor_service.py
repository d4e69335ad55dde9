"""A sensor verifier as its users start it, and sensors whose lists grow, for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from daa_group import Group
from ended import ended
from excise.attest.daa.folders import write_membership, write_software_key
from excise.attest.sensor.collect import Collector
from excise.attest.sensor.embed import Embedding
from excise.attest.sensor.transaction import Membership
from ima_builder import Entry, binary_list, boot_aggregate, files, pcr_after

PROGRAM = [sys.executable, "-c", "from excise.cli.main import main; main()"]
BOOT_PCRS = {index: bytes([index]) * 32 for index in range(10)}
FACE = Embedding(model="m", values=(0.25, -1.0), image_sha256=bytes(32))


@dataclass
class Machine:
    """A machine whose list grows, and whose PCRs are what it leads to."""

    folder: Path
    entries: list[Entry] = field(default_factory=lambda: [boot_aggregate(BOOT_PCRS), *files(40)])

    @property
    def list_path(self) -> Path:
        return self.folder / "binary_runtime_measurements"

    @property
    def pcrs(self) -> dict[str, dict[int, bytes]]:
        return {"sha256": {**BOOT_PCRS, 10: pcr_after(self.entries, "sha256")}}

    def grow(self, count: int) -> None:
        self.entries += files(count, prefix=f"/opt/new{len(self.entries)}/")
        self.write()

    def write(self) -> None:
        self.list_path.write_bytes(binary_list(self.entries))

    @contextmanager
    def collector(self, *, whole_log: bool = False) -> Iterator[Collector]:
        self.write()
        made = Collector(
            pcrs=lambda: self.pcrs, measurement_list=self.list_path, whole_log=whole_log
        )
        with made as collector:
            yield collector


def membership(group: Group) -> Membership:
    return Membership(key=group.key, credential=group.credential)


def write_group(group: Group, folder: Path) -> Path:
    """Write what a verifier needs to know of a group."""
    (folder / "ipk.bin").write_bytes(group.public.to_bytes())
    return folder / "ipk.bin"


def write_member(group: Group, folder: Path) -> Path:
    """Write a member's folder, as `excise daa member join` leaves it."""
    folder.mkdir()
    write_software_key(folder, group.key)
    write_membership(
        folder,
        group.credential,
        group.credential_signature,
        issuer=group.public,
        group_key=group.public.group.to_bytes(),
    )
    return folder


@contextmanager
def running_verifier(
    *options: str | Path, stated: bool = True
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `excise sensor verifier` and yield its URL and process.

    Args:
        options: Further options.
        stated: Whether it believes PCR values that no TPM vouches for.
    """
    words: list[str | Path] = ["sensor", "verifier", "--listen", "127.0.0.1:0", *options]
    with running(*words, *(["--trust-stated-pcrs"] if stated else [])) as started:
        yield started


@contextmanager
def running(*options: str | Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a service of the program and yield its URL and process."""
    words = [*PROGRAM, *map(str, options)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    with ended(process):
        url = process.stdout.readline().strip()
        assert url.startswith("http"), process.stderr.read()
        yield url, process


def excise(*words: str | Path | Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, timeout=600
    )
