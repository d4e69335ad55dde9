"""A writer of reproducible initramfs archives: the same entries give the same bytes.

Source of the format: Documentation/driver-api/early-userspace/buffer-format.rst (`newc`).
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

_TRAILER = "TRAILER!!!"


@dataclass(slots=True)
class Archive:
    """Entries of an initramfs, written in the order of their paths; all owned by root, time 0."""

    _entries: dict[str, tuple[int, bytes, tuple[int, int]]] = field(default_factory=dict)

    def folder(self, path: str) -> None:
        """Add a folder, and those that lead to it."""
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            self._entries.setdefault("/".join(parts[:end]), (stat.S_IFDIR | 0o755, b"", (0, 0)))

    def file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Add a file with its content and permission bits."""
        self._parent(path)
        self._entries[path.strip("/")] = (stat.S_IFREG | mode, data, (0, 0))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._parent(path)
        self._entries[path.strip("/")] = (stat.S_IFLNK | 0o777, target.encode(), (0, 0))

    def device(self, path: str, *, major: int, minor: int) -> None:
        """Add a character device."""
        self._parent(path)
        self._entries[path.strip("/")] = (stat.S_IFCHR | 0o600, b"", (major, minor))

    def _parent(self, path: str) -> None:
        if "/" in path.strip("/"):
            self.folder(path.strip("/").rsplit("/", 1)[0])

    def render(self) -> bytes:
        """Return the archive's bytes, padded to 512."""
        parts = [
            _record(number, name, *self._entries[name])
            for number, name in enumerate(sorted(self._entries), start=1)
        ]
        parts.append(_record(0, _TRAILER, 0, b"", (0, 0)))
        size = sum(map(len, parts))
        parts.append(bytes(-size % 512))
        return b"".join(parts)


def _record(number: int, name: str, mode: int, data: bytes, device: tuple[int, int]) -> bytes:
    links = 2 if stat.S_ISDIR(mode) else 1
    encoded = name.encode() + b"\0"
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, *device, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + encoded
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
