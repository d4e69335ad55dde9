"""Builders of captures for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from excise.capture.journal import Record, Run
from excise.capture.manifest import Manifest
from excise.capture.store import Capture


def manifest(**changes: Any) -> Manifest:
    """Return a manifest that is right unless changed."""
    plain = {"id": "1", "created": "2026-01-01T00:00:00+00:00", "title": "t", "origin": "measured"}
    return Manifest(**(plain | changes))


def run(sequence: int, **changes: Any) -> Run:
    """Return a run that is right unless changed: block and run number follow the sequence."""
    plain = {
        "sequence": sequence,
        "block": sequence,
        "task": "t",
        "configuration": "none",
        "run": sequence,
        "phase": "first" if sequence == 0 else "measured",
        "wall_ns": 1_000_000 + sequence,
        "exit_code": 0,
    }
    return Run(**(plain | changes))


def write(path: Path, records: list[Record], **changes: Any) -> Path:
    """Write a capture of these records and return its path."""
    with Capture.create(path, manifest(**changes), sync=False) as capture:
        capture.extend(records)
    return path
