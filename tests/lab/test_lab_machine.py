from __future__ import annotations

from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.lab import Machine, read_machine
from excise.lab.machine import kernel_command_line, qemu_command

EXAMPLES = Path(__file__).parents[2] / "examples"


def _read(tmp_path: Path, text: str) -> Machine:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    return read_machine(path)


def test_a_machine_is_read_beside_other_tables(tmp_path):
    machine = _read(tmp_path, '[machine]\nkernel = "6.1"\nmode = "tpm"\ncpus = 2\n[other]\nx = 1\n')
    assert machine == Machine(kernel="6.1", mode="tpm", cpus=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[machine]\nmemory_mbi = 1\n", "machine.*unknown field `memory_mbi`"),
        ('[machine]\nmemory_mib = "x"\n', "machine.memory_mib.*Expected `int`"),
        ("[machine]\nmemory_mib = 16\n", "memory_mib must be at least 128"),
        ("[machine]\ncpus = 2\n", "count mode needs cpus = 1"),
        ('[machine]\naccelerator = "kvm"\n', "count mode needs accelerator"),
        ("[machien]\n", "missing required field `machine`"),
        ("[machine\n", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        _read(tmp_path, text)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("lab-*.toml")), ids=lambda p: p.name)
def test_the_examples_are_machines(path):
    assert isinstance(read_machine(path), Machine)


def _command(machine: Machine, **changes) -> str:
    given = {
        "image": Path("k"),
        "initramfs": Path("i"),
        "cmdline": "c",
        "folder": Path("f"),
        "tpm_socket": Path("f/tpm.sock") if machine.mode == "tpm" else None,
        "accelerator": "tcg",
    }
    return " ".join(qemu_command(machine, **{**given, **changes}))


def test_count_mode_fixes_seed_clock_and_thread_and_has_no_tpm_or_disk():
    command = _command(Machine())
    for part in ("thread=single", "-icount shift=0,sleep=off", "-seed 1", "clock=vm"):
        assert part in command
    assert "tpm" not in command
    assert "-drive" not in command


def test_no_guest_has_a_network_card():
    for machine in (Machine(), Machine(mode="tpm")):
        assert "-nodefaults" in _command(machine)
        assert "net" not in _command(machine).replace("-nodefaults", "")


def test_words_of_preset_and_machine_follow_the_labs_own():
    line = kernel_command_line(Machine(cmdline="a=1"), words=("lsm=yama",))
    assert line.endswith("lsm=yama a=1")
