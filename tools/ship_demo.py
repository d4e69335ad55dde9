"""Make the capture that `excise demo` shows out of a real one: private facts removed, sealed anew.

Usage: python tools/ship_demo.py CAPTURE
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from excise.capture.archive import pack
from excise.capture.journal import Session, decode
from excise.capture.seal import seal
from excise.capture.store import JOURNAL, Capture, read_manifest
from excise.cli.demo import CAPTURE


def main(source: Path) -> None:
    """Write the shipped capture from `source`."""
    manifest = read_manifest(source)
    public = [fact for fact in manifest.host_facts if not fact.private]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo"
        with Capture.create(path, msgspec.structs.replace(manifest, host_facts=public)) as capture:
            records = [decode(line) for line in (source / JOURNAL).read_bytes().splitlines()]
            capture.extend(
                [
                    msgspec.structs.replace(each, boot_id="") if isinstance(each, Session) else each
                    for each in records
                ]
            )
        seal(path)
        CAPTURE.parent.mkdir(exist_ok=True)
        CAPTURE.unlink(missing_ok=True)
        pack(path, CAPTURE)
    print(f"Wrote {CAPTURE} ({CAPTURE.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
