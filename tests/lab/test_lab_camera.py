"""A V4L2 camera in a guest: the kernel's virtual one, in every format that it and we know."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from excise.lab import Machine, Plan, kernels, packages, preset, run_guest
from excise.lab.disk import WorkFile
from excise.lab.plan import Step
from excise.lab.workloads import proof_files

pytestmark = [pytest.mark.lab, pytest.mark.long]

# The cloud kernel has no cameras.
_KERNEL = r"linux-image-6\.12\.\d+(-\d+|\+deb\d+)-amd64"
WHITE, BLACK = [255, 255, 255], [0, 0, 0]
BARS = [
    WHITE,
    [255, 255, 0],
    [0, 255, 255],
    [0, 255, 0],
    [255, 0, 255],
    [255, 0, 0],
    [0, 0, 255],
    BLACK,
]
# The virtual camera weighs the colours of a grey frame as BT.709 does.
GREY = [[round(0.2126 * r + 0.7152 * g + 0.0722 * b)] * 3 for r, g, b in BARS]


@pytest.fixture(scope="module")
def told(lab_cache: Path) -> dict[str, dict[str, Any]]:
    """Return what was tried in a guest with the virtual camera."""
    for module in ("linuxpy", "PIL"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    kernel = packages.newest_matching(_KERNEL)
    resolved = kernels.resolve(kernel)
    modules: dict[str, bytes] = {}
    for name in ("crc32c_generic", "ext4", "vivid"):  # this kernel has the first two as modules too
        modules |= resolved.modules_for(name)
    numbered = {
        f"lab/modules/camera/{number:02}-{name}.ko": data
        for number, (name, data) in enumerate(modules.items())
    }
    load = "n_devs=1 node_types=0x1 input_types=0"
    setup = (
        "for m in /lab/modules/camera/*.ko; do o=; "
        f"case $m in *-vivid.ko) o='{load}' ;; esac; "
        'insmod $m $o || refuse "cannot load $m"; done\n'
    )
    script = Path(__file__).with_name("camera_in_guest.py").read_bytes()
    plan = Plan(
        steps=(Step(task="camera", command=("python", "/excise/ext4/camera.py", "/dev/video0")),),
        files={**proof_files(), "camera.py": WorkFile(data=script)},
        root_files=numbered,
    )
    machine = Machine(
        kernel=kernel, mode="tpm", python=True, memory_mib=1024, work_disk_mib=96, timeout_s=900
    )
    none = preset("none")
    loaded = dataclasses.replace(none, setup=setup + none.setup)
    found = run_guest(machine, preset=loaded, plan=plan)
    rows = map(json.loads, found.steps[0].stdout.splitlines())
    return {row["tried"]: row for row in rows}


def _far(found: list[list[int]], wanted: list[list[int]]) -> int:
    pairs = zip(found, wanted, strict=True)
    return max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))


def test_the_test_image_has_its_colours_in_every_known_format(told: dict[str, Any]) -> None:
    formats = {name.split()[0] for name in told if name.endswith(("x360", "x180"))}
    offered = set(told["formats"]["offered"]) & set(told["formats"]["known"])
    assert formats == offered
    assert len(formats) >= 18
    for name, row in told.items():
        if name.endswith(("x360", "x180")):
            wanted = GREY if name.startswith("GREY") else BARS
            assert _far(row["colours"], wanted) <= 4, (name, row["colours"])


@pytest.mark.parametrize("way", ["read(2)", "a broken frame", "the program"])
def test_an_image_is_captured_by(told: dict[str, Any], way: str) -> None:
    assert _far(told[way]["colours"], BARS) <= 4
    assert told[way].get("exit", 0) == 0


def test_a_camera_that_is_set_to_what_is_not_known_is_set_to_what_is(told: dict[str, Any]) -> None:
    row = next(row for name, row in told.items() if name.startswith("set to "))
    assert _far(row["colours"], BARS) <= 4


@pytest.mark.parametrize(
    ("tried", "error"),
    [
        ("in use", "/dev/video0: the camera cannot be used (Device or resource busy)"),
        ("no frame", "the camera gave no frame in 1 s"),
        ("no such device", "there is no such device, file or folder"),
        ("no permission", "the camera cannot be opened (Permission denied)"),
        ("unplugged", "the camera gives no frame (No such device)"),
    ],
)
def test_what_gives_no_image_says_why(told: dict[str, Any], tried: str, error: str) -> None:
    assert error in str(told[tried]["error"])
