"""Distribution packages, fetched by apt with a private state and unpacked without installing.

The host's dpkg database, package lists and archives are not touched: apt gets its own folders for
all of them and only reads the host's list of sources and keys.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from excise.capture.store import write_durably
from excise.errors import HostError
from excise.lab.cache import cache_root, locked, stored

ARCHITECTURE = "amd64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An unpacked package.

    Attributes:
        name: Package name.
        version: Version as the archive spells it.
        root: Folder that holds the package's files as they would lie below `/`.
    """

    name: str
    version: str
    root: Path


def fetch(name: str) -> Package:
    """Return the package, downloaded and unpacked at its first use.

    A meta-package is followed to the kernel package it depends on. What is in the cache is used
    without asking the archive; `refresh` forgets it.

    Raises:
        HostError: If apt is missing, the package is unknown, or the download fails.
    """
    pinned = cache_root() / "packages" / f"{name}.pin"
    words = pinned.read_text().split() if pinned.is_file() else []
    if len(words) == 2:
        real, version = words
        folder = cache_root() / "packages" / _folder_name(real, version)
        if folder.is_dir():
            return Package(name=real, version=version, root=folder)
    real, version = _resolve(name)
    folder = stored(
        "packages", _folder_name(real, version), lambda into: _unpack(f"{real}={version}", into)
    )
    write_durably(pinned, f"{real} {version}\n".encode())
    return Package(name=real, version=version, root=folder)


def _folder_name(name: str, version: str) -> str:
    """Return a folder name without the colon of an epoch, which library paths cannot hold."""
    return f"{name}_{version.replace(':', '~')}"


def newest_matching(pattern: str) -> str:
    """Return the name of the newest package whose whole name matches a regular expression.

    The newest one in the cache is taken without asking the archive.

    Raises:
        HostError: If none does.
    """
    known = cache_root() / "packages"
    cached = [pin.stem for pin in known.glob("*.pin") if re.fullmatch(pattern, pin.stem)]
    if cached:
        return max(cached, key=_numbers)
    names = [n for n in _apt_cache("pkgnames") if re.fullmatch(pattern, n)]
    if not names:
        raise HostError(
            f"no package is named like {pattern}",
            hint="Add the suite that has it to apt's sources, or give a kernel by path",
        )
    return max(names, key=_numbers)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def cached() -> list[str]:
    """Return the names of the packages in the cache, sorted."""
    return sorted(pin.stem for pin in (cache_root() / "packages").glob("*.pin"))


def _resolve(name: str) -> tuple[str, str]:
    """Return name and version, following a meta-package to a versioned kernel package."""
    for _ in range(3):
        fields = _show(name)
        target = re.match(r"(linux-image-[\d.]+\S*-\S+) \(= ", fields.get("Depends", ""))
        if target is None:
            return fields["Package"], fields["Version"]
        name = target.group(1)
    raise HostError(f"package {name} only depends on further meta-packages")


def _show(name: str) -> dict[str, str]:
    lines = _apt_cache("show", "--no-all-versions", name)
    fields = dict(line.split(": ", 1) for line in lines if re.match(r"[A-Za-z-]+: ", line))
    if not {"Package", "Version"} <= fields.keys():
        raise HostError(
            f"package {name} is not in the archive",
            hint="Add the suite that has it to apt's sources, or give a kernel by path",
        )
    return fields


def _options() -> list[str]:
    base = cache_root() / "apt"
    state, archive = base / "state", base / "cache"
    for folder in (state / "lists" / "partial", archive / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": archive,
        "APT::Architecture": ARCHITECTURE,
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _apt_cache(*arguments: str) -> list[str]:
    with _apt():
        if not any((cache_root() / "apt" / "state" / "lists").glob("*_Packages*")):
            _update()
        done = _call(["apt-cache", *_options(), *arguments])
    return done.stdout.splitlines()


@contextmanager
def _apt() -> Iterator[None]:
    """Hold apt's folders: lists are read by one while another fetches them only in part."""
    (cache_root() / "apt").mkdir(exist_ok=True)
    with locked(cache_root() / "apt" / ".lock"):
        yield


def _update() -> None:
    _call(["apt-get", *_options(), "-q", "update"])


def _unpack(package: str, into: Path) -> None:
    with_archive = into / ".archive"
    with_archive.mkdir()
    command = ["apt-get", *_options(), "-q", "download", package]
    with _apt():
        done = _call(command, folder=with_archive)
        if done.returncode:  # the lists may be older than the archive
            _update()
            done = _call(command, folder=with_archive)
    archives = list(with_archive.glob("*.deb"))
    if done.returncode or len(archives) != 1:
        raise HostError(
            f"apt could not download {package}",
            hint=(done.stderr.strip().splitlines() or ["No reason given"])[-1],
        )
    unpacked = _call(["dpkg-deb", "-x", str(archives[0]), str(into)])
    if unpacked.returncode:
        raise HostError(f"dpkg-deb could not unpack {unquote(archives[0].name)}")
    shutil.rmtree(with_archive)


def _call(command: list[str], *, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise HostError(
            f"{command[0]} is not installed",
            hint="The lab fetches kernels with apt; on other systems give them by path",
        ) from error
