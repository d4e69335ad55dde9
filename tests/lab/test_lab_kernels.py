from __future__ import annotations

import lzma
import struct
from pathlib import Path

import pytest
import zstandard

from excise.errors import HostError
from excise.lab import kernels
from excise.lab.kernel import Kernel


def _image(path: Path, text: bytes = b"6.99.0-test (a@b) #1") -> Path:
    head = bytearray(0x4000)
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x1000)
    head[0x1200 : 0x1200 + len(text) + 1] = text + b"\0"
    path.write_bytes(head)
    return path


def _module(depends: str) -> bytes:
    return b"\x7fELF...license=GPL\0depends=" + depends.encode() + b"\0retpoline=Y\0"


def _kernel(tmp_path: Path) -> Kernel:
    folder = tmp_path / "modules"
    (folder / "kernel").mkdir(parents=True)
    (folder / "modules.builtin").write_text("kernel/fs/ext4/ext4.ko\n")
    (folder / "kernel/virtio_blk.ko.xz").write_bytes(lzma.compress(_module("virtio_ring,virtio")))
    packed = zstandard.ZstdCompressor().compress(_module("virtio"))
    (folder / "kernel/virtio_ring.ko.zst").write_bytes(packed)
    (folder / "kernel/virtio.ko").write_bytes(_module(""))
    return kernels.resolve(str(_image(tmp_path / "bzImage")), modules=folder)


def test_the_release_is_read_from_the_image(tmp_path):
    assert _kernel(tmp_path).release == "6.99.0-test"


def test_modules_come_decompressed_and_after_those_they_need(tmp_path):
    found = _kernel(tmp_path).modules_for("virtio_blk")
    assert list(found) == ["virtio", "virtio_ring", "virtio_blk"]
    assert all(data.startswith(b"\x7fELF") for data in found.values())


def test_a_built_in_module_needs_no_file(tmp_path):
    assert _kernel(tmp_path).modules_for("ext4") == {}


def test_a_module_the_kernel_lacks_is_named(tmp_path):
    with pytest.raises(HostError, match=r"6\.99\.0-test has no loop, neither built in"):
        _kernel(tmp_path).module("loop")


def test_a_kernel_whose_options_are_not_known_is_not_judged_by_them(tmp_path):
    assert _kernel(tmp_path).lsm_built_in("yama") is None


def test_what_is_no_bzimage_is_refused(tmp_path):
    path = tmp_path / "vmlinux"
    path.write_bytes(b"\x7fELF" + bytes(1000))
    with pytest.raises(HostError, match="not a bzImage"):
        kernels.resolve(str(path))
    with pytest.raises(HostError, match="no such kernel image"):
        kernels.resolve(str(tmp_path / "none"))
