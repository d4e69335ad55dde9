"""What a guest is given of this host's Python, seen without a guest."""

from __future__ import annotations

import importlib.util
import marshal
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.errors import HostError
from excise.lab import Machine, Plan, preset
from excise.lab.host_share import (
    HOST_ADDRESS,
    PACKAGE,
    network_options,
    package_files,
    share_files,
    shared_preset,
    with_share,
)
from excise.lab.host_share_tree import distributions, interpreter
from excise.lab.machine import read_machine
from excise.lab.packages import Package

GUEST = Machine(mode="tpm", python=True, memory_mib=1024, work_disk_mib=96)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"python": True}, 'python needs mode = "tpm"'),
        ({"mode": "tpm", "python": True, "rootfs": "debian"}, 'rootfs = "initramfs"'),
        ({"mode": "tpm", "python": True}, "memory_mib must be at least 1024"),
        (
            {"mode": "tpm", "python": True, "memory_mib": 1024},
            "work_disk_mib must be at least 96",
        ),
        ({"mode": "tpm", "ports": (8088,)}, "ports are for a guest with python"),
        (
            {"mode": "tpm", "python": True, "ports": (0,), "memory_mib": 1024},
            "ports must be from 1 to 65535",
        ),
    ],
)
def test_a_machine_that_cannot_have_python_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Machine(**changes)


def test_a_file_says_ports_and_files(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        '[machine]\nmode = "tpm"\npython = true\nports = [1, 2]\nfiles = { "a" = "b" }\n'
        "memory_mib = 1024\nwork_disk_mib = 96\n"
    )
    found = read_machine(tmp_path / "m.toml")
    assert (found.ports, found.files) == ((1, 2), {"a": "b"})


def test_a_machine_without_python_is_what_it_was() -> None:
    plain, plan = Machine(), Plan(steps=())
    assert with_share(plan, machine=plain) == plan
    assert shared_preset(preset("none"), machine=plain) == preset("none")
    assert network_options(plain) == []


def test_the_work_disk_has_every_module_and_its_code() -> None:
    found = package_files()
    name = f"{PACKAGE}/excise/errors.py"
    compiled = found[importlib.util.cache_from_source(name)].data
    assert compiled.startswith(importlib.util.MAGIC_NUMBER)
    assert compiled[4:8] == b"\1\0\0\0"  # by its hash, which is not checked
    assert compiled[8:16] == importlib.util.source_hash(found[name].data)
    names: dict[str, Any] = {"__name__": "excise.errors"}
    exec(marshal.loads(compiled[16:]), names)
    assert issubclass(names["HostError"], Exception)
    assert f"{PACKAGE}/excise/_core.abi3.so" in found
    assert not [path for path in found if "/_bin/" in path]


def test_the_machines_files_are_on_the_work_disk_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"face")
    plan = with_share(Plan(steps=()), machine=Machine(files={"/x/face": str(tmp_path / "f")}))
    assert plan.files["x/face"].data == b"face"
    with pytest.raises(HostError, match=r"nowhere.*cannot be read"):
        with_share(Plan(steps=()), machine=Machine(files={"x": "/nowhere"}))


def test_distributions_are_those_that_are_needed_and_theirs() -> None:
    found = distributions(["typer", "no-such-package-of-ours"])
    assert {"typer", "rich", "pygments"} <= set(found)
    assert "no-such-package-of-ours" not in found
    assert "pytest" not in distributions(["rich"])


def test_what_a_member_cannot_do_without_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def none(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    with pytest.raises(HostError, match=r"tpm2-pytss.*pip install 'excise\[tpm\]'"):
        distributions(["tpm2-pytss"])


class _Kernel:
    """Names modules as a kernel that has one a name."""

    def modules_for(self, name: str) -> dict[str, bytes]:
        return {name: name.encode()}


def test_the_programs_of_a_guest_run_the_interpreter_itself() -> None:
    files = share_files(_Kernel(), machine=GUEST)  # type: ignore[arg-type]
    words = shlex.split(files["bin/excise"].decode().splitlines()[-1])
    assert str(interpreter()) in words
    assert words[words.index("chroot") + 1] == "/python"
    assert words[-1] == "$@"
    assert not interpreter().is_symlink()
    assert "network" not in files["lab/host_share.sh"].decode().splitlines()[-1]
    assert [name for name in files if name.endswith("virtio_net.ko")]


def test_the_network_ends_at_the_ports_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/busybox").touch()
    package = Package(name="busybox-static", version="1", root=tmp_path)
    monkeypatch.setattr("excise.lab.packages.fetch", lambda _: package)
    words = network_options(msgspec.structs.replace(GUEST, ports=(8086, 8088)))
    netdev = words[words.index("-netdev") + 1]
    assert netdev.startswith("user,id=net,restrict=on,")
    assert "hostfwd" not in netdev
    found = re.findall(r"guestfwd=tcp:([\d.]+):(\d+)-cmd:\S+ nc ([\d.]+) (\d+)", netdev)
    assert found == [(HOST_ADDRESS, port, "127.0.0.1", port) for port in ("8086", "8088")]
