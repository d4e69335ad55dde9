"""What `help(excise)` says is there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import excise

ROOMS = re.findall(r"^(\w+): (.*)$", excise.__doc__ or "", re.MULTILINE)
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"


def test_every_package_is_in_the_help_and_in_the_architecture() -> None:
    folder = Path(excise.__path__[0])
    packages = {each.parent.name for each in folder.glob("*/__init__.py")}
    assert {room for room, _ in ROOMS} == packages - {"cli"} | {"perf", "errors"}
    table = re.findall(r"^\| ((?:`\w+` ?)+) \|", ARCHITECTURE.read_text(), re.MULTILINE)
    rooms = {name for names in table for name in re.findall(r"\w+", names)}
    assert rooms == packages | {"perf", "errors", "files", "units", "clock", "validation"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (module or room, name)
        for room, line in ROOMS
        for module, name in re.findall(r"`([a-z_.]*?)\.?(\w+)`", line)
    ],
)
def test_what_the_help_names_can_be_imported(module: str, name: str) -> None:
    assert callable(getattr(import_module(f"excise.{module}"), name))
