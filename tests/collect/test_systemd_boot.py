"""Entries of systemd-boot: written by kernel-install itself, in a folder; bootctl is played.

The loader, its firmware and bootctl are real in tests/lab/test_lab_systemd_boot.py.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from excise.collect import systemd_boot
from excise.collect.boot_entries import BootEntry
from excise.collect.local_shell import LocalShell
from excise.collect.systemd_boot import SystemdBoot
from excise.errors import HostError
from skips import skip

RELEASE = os.uname().release
TOKEN = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
OURS = f"{TOKEN}-{RELEASE}.conf"
ENTRY = f"""\
title      Debian GNU/Linux 12 (bookworm)
version    {RELEASE}
machine-id {TOKEN}
sort-key   debian
options    root=/dev/vda2 ro systemd.machine_id={TOKEN}
linux      /{TOKEN}/{RELEASE}/linux
initrd     /{TOKEN}/{RELEASE}/initrd.img-{RELEASE}
"""
# Lists entries as bootctl 252 does; the first of them by sort key is the default.
BOOTCTL = """\
#!/bin/sh
case $1 in
set-oneshot) echo "$2" >"$ESP/../oneshot" ;;
list)
    cd "$ESP/loader/entries" || exit 1
    default=$(grep -H '^sort-key' *.conf | sort -b -k 2 | head -n 1 | cut -d: -f1)
    for each in *.conf; do
        test -e "$each" || continue
        marks=
        test "$each" = "$default" && marks=" (default)"
        test "$each" = "$BOOTED" && marks="$marks (selected)"
        printf '%13s: %s\\n' title "Debian (bookworm)$marks" id "$each" source "$PWD/$each" \
            version "$(uname -r)"
        echo
    done
    cd "$ESP" || exit 1
    for each in EFI/Linux/*.efi; do
        test -e "$each" || continue
        marks=
        test "${each##*/}" = "$BOOTED" && marks=" (selected)"
        printf '%13s: %s\\n' type "Boot Loader Specification Type #2 (.efi)" \
            title "Debian (bookworm)$marks" id "${each##*/}$PROFILE" \
            source "$PWD//$each (on the Extended Boot Loader Partition)" sort-key debian \
            linux "/$each" options root=/dev/vda2
        printf '%15s%s\\n\\n' '' 'ro a=b:c'
    done
    printf '%13s: %s\\n' type Automatic title "Reboot Into Firmware Interface" \
        id auto-reboot-to-firmware-setup source /sys/firmware/efi/efivars/LoaderEntries
    ;;
esac
"""
ENTRIES = [BootEntry(number=0, words=()), BootEntry(number=1, words=("a=b|c", "d"))]


@pytest.fixture
def esp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "esp"
    kernel = root / TOKEN / RELEASE
    kernel.mkdir(parents=True)
    (kernel / "linux").write_bytes(b"kernel")
    (kernel / f"initrd.img-{RELEASE}").write_bytes(b"initrd")
    (root / "loader/entries").mkdir(parents=True)
    (root / "loader/loader.conf").write_text("timeout 0\n")
    (root / "loader/random-seed").write_bytes(b"1")
    (root / "loader/entries" / OURS).write_text(ENTRY)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "bootctl").write_text(BOOTCTL)
    (programs / "bootctl").chmod(0o755)
    monkeypatch.setattr(systemd_boot, "KEPT", str(tmp_path / "kept/boot"))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("ESP", str(root))
    monkeypatch.setenv("BOOTED", OURS)
    return root


def listing(root: Path) -> dict[str, bytes]:
    found = sorted(path for path in root.rglob("*") if path.name != "random-seed")
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else b"" for p in found}


def fields(path: Path) -> dict[str, str]:
    pairs = (line.split(None, 1) for line in path.read_text().splitlines())
    return {pair[0]: pair[1] for pair in pairs}


def test_kernel_install_writes_an_entry_for_each_configuration_and_takes_it_away(
    esp: Path, tmp_path: Path
) -> None:
    if shutil.which("kernel-install") is None:
        skip("kernel-install is not installed")
    before = listing(esp)
    loader = SystemdBoot(LocalShell())
    loader.install(ENTRIES)
    loader.install(ENTRIES)
    for entry in ENTRIES:
        name = f"excise-{entry.number}"
        found = fields(esp / "loader/entries" / f"{name}-{RELEASE}.conf")
        always = f"root=/dev/vda2 ro systemd.machine_id={TOKEN}"
        assert found["options"] == " ".join((always, *entry.words, entry.mark))
        assert found["sort-key"] == "zz-excise"
        assert found["title"] == f"excise {entry.number}"
        assert (esp / found["linux"].removeprefix(str(esp)).lstrip("/")).read_bytes() == b"kernel"
        assert (esp / name / RELEASE / f"initrd.img-{RELEASE}").read_bytes() == b"initrd"
    loader.choose(ENTRIES[1])
    assert (tmp_path / "oneshot").read_text() == f"excise-1-{RELEASE}.conf\n"
    (esp / "loader/random-seed").write_bytes(b"2")  # as each boot does
    loader.undo()
    assert (tmp_path / "oneshot").read_text() == "\n"
    assert listing(esp) == before
    assert not (tmp_path / "kept").exists()
    loader.undo()


def test_without_kernel_install_the_entry_file_is_copied(
    esp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_boot, "_PLUGIN", "/nonexistent")
    before = listing(esp)
    loader = SystemdBoot(LocalShell())
    loader.install(ENTRIES)
    found = fields(esp / "loader/entries/excise-1.conf")
    assert found["linux"] == f"/{TOKEN}/{RELEASE}/linux"
    assert found["options"].endswith(" a=b|c d excise.configuration=1")
    assert found["sort-key"] == "zz-excise"
    loader.choose(ENTRIES[1])
    assert (tmp_path / "oneshot").read_text() == "excise-1.conf\n"
    loader.undo()
    assert listing(esp) == before


def test_entries_that_the_machine_would_boot_by_itself_are_refused(
    esp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_boot, "_PLUGIN", "/nonexistent")
    monkeypatch.setattr(systemd_boot, "_SORT_KEY", "aa")
    before = listing(esp)
    with pytest.raises(HostError, match=f"boot excise-0.conf by itself in place of {OURS}"):
        SystemdBoot(LocalShell()).install(ENTRIES)
    assert listing(esp) == before


def test_what_another_changed_meanwhile_is_not_called_restored(
    esp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_boot, "_PLUGIN", "/nonexistent")
    loader = SystemdBoot(LocalShell())
    loader.install(ENTRIES)
    (esp / "loader/loader.conf").write_text("timeout 5\n")
    with pytest.raises(HostError, match="the loader's files are not what they were"):
        loader.undo()


@pytest.fixture
def image(esp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the machine started from a unified kernel image, with Secure Boot off."""
    path = esp / "EFI/Linux/debian.efi"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"MZ".ljust(512, b"\0") + b".osrel\0\0.cmdline.linux\0\0")
    monkeypatch.setattr(systemd_boot, "_SECURE_BOOT", str(tmp_path / "SecureBoot"))
    (tmp_path / "SecureBoot").write_bytes(bytes([6, 0, 0, 0, 0]))
    monkeypatch.setenv("BOOTED", path.name)
    return path


def test_a_unified_kernel_image_gets_an_entry_that_starts_it_with_its_words_and_ours(
    esp: Path, image: Path
) -> None:
    before = listing(esp)
    loader = SystemdBoot(LocalShell())
    loader.require()
    loader.install(ENTRIES)
    found = fields(esp / "loader/entries/excise-1.conf")
    assert found == {
        "title": "excise 1",
        "sort-key": "zz-excise",
        "efi": "/EFI/Linux/debian.efi",
        "options": "root=/dev/vda2 ro a=b:c a=b|c d excise.configuration=1",
    }
    loader.undo()
    assert listing(esp) == before


def test_an_image_that_takes_no_words_is_refused_before_anything_is_changed(
    esp: Path, image: Path, tmp_path: Path
) -> None:
    (tmp_path / "SecureBoot").write_bytes(bytes([6, 0, 0, 0, 1]))
    loader = SystemdBoot(LocalShell())
    before = listing(esp)
    for step in (loader.require, lambda: loader.install(ENTRIES)):
        with pytest.raises(HostError, match="with Secure Boot it takes no words from the boot"):
            step()
    assert listing(esp) == before
    assert not (tmp_path / "kept").exists()
    image.write_bytes(image.read_bytes().replace(b".cmdline", b".uname\0\0"))
    loader.require()  # without a command line inside it takes what it is given


def test_an_image_whose_name_counts_boots_is_refused(
    esp: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = image.rename(image.with_name("debian+2-1.efi"))
    monkeypatch.setenv("BOOTED", counted.name)
    with pytest.raises(HostError, match=r"debian\+2-1\.efi still counts its boots"):
        SystemdBoot(LocalShell()).require()


def test_an_image_that_was_started_in_a_profile_of_its_own_is_refused(
    esp: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILE", "@1")
    with pytest.raises(HostError, match=r"debian\.efi@1 is a profile of a unified kernel image"):
        SystemdBoot(LocalShell()).require()


def test_a_machine_without_an_entry_of_its_kernel_is_refused(
    esp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (esp / "loader/entries" / OURS).unlink()
    monkeypatch.setenv("BOOTED", "auto-efi-default")
    with pytest.raises(HostError, match="has no entry file of the kernel that runs now, nor"):
        SystemdBoot(LocalShell()).require()
