"""The lab's own kernel, built from a distribution's source package with a small fragment.

An extra that nothing needs: distribution kernels leave out HMAC sessions of the TPM, Smack, the
function profiler and writable IMA policies. A source tree stays in the cache, so that a build that
was interrupted goes on where it was, and a variant compiles only what differs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from excise.capture.store import write_durably
from excise.errors import HostError, UsageError
from excise.files import read_whole
from excise.lab import packages
from excise.lab.cache import cache_root, digest_of, stored
from excise.lab.kernel import Kernel, release_of
from excise.lab.kernel_config import VARIANTS, Fragment, own_fragment, read_config, require_options
from excise.lab.processes import family

SOURCE: Final = "linux-source-6.12"
OWN: Final = "own"
_KIND: Final = "own-kernels"
_TREES: Final = "kernel-build"
_NICE: Final = 10
_POLL_S: Final = 0.25
_FREE_BYTES: Final = 4 << 30
_PATCH_BYTES: Final = 64 << 20
# Compiled objects of a whole build; the number of the last finished one takes its place.
_USUAL_OBJECTS: Final = 2100
_NAME = re.compile(r"own(:[a-z0-9][a-z0-9._-]{0,40})?")
_OBJECT = re.compile(rb"^  (?:CC|AS|HOSTCC|AR|LD|VDSO2C|OBJCOPY)\s", re.MULTILINE)
_FAULT = re.compile(r"(?m)^.*(?:\berror: |: not found|No such file|Error \d|fatal: ).*$")
# Fixed, so that the same source and options give the same image.
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "KBUILD_BUILD_TIMESTAMP": "2026-01-01T00:00:00Z",
    "KBUILD_BUILD_VERSION": "1",
    "KBUILD_BUILD_USER": "excise",
    "KBUILD_BUILD_HOST": "lab",
    "LC_ALL": "C",
}
_PROGRAMS: Final[Mapping[str, str]] = {
    "make": "make",
    "gcc": "gcc",
    "ld": "binutils",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "perl": "perl",
    "lz4": "lz4",
    "tar": "tar",
    "xz": "xz-utils",
    "patch": "patch",
}
_HEADERS: Final[Mapping[str, str]] = {
    "gelf.h": "libelf-dev",
    "openssl/opensslv.h": "libssl-dev",
}


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a finished kernel, kept beside it.

    Attributes:
        name: `own`, or `own:NAME`.
        release: `uname -r`.
        source: `NAME VERSION` of the source package.
        compiler: First line of the compiler's version.
        key: Digest of source, patches and options.
        patches: File names of the patches put on top.
        not_offered: Wanted options that this kernel does not have yet.
        compiled: Objects compiled in the last step; few where a variant shared its tree.
        cpu_s: Processor seconds of that step, of make and all it ran.
        wall_s: Its seconds.
    """

    name: str
    release: str
    source: str
    compiler: str
    key: str
    patches: list[str] = []
    not_offered: list[str] = []
    compiled: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far a build has come.

    Attributes:
        stage: `fetch`, `unpack`, `configure`, `compile`, `done`.
        done: Objects compiled by now.
        total: Objects to compile, an estimate.
    """

    stage: str
    done: int = 0
    total: int = 0


OnBuild = Callable[[BuildProgress], None]


def build_kernel(
    name: str = OWN,
    *,
    source: str = SOURCE,
    more_options: str = "",
    patches: Sequence[Path] = (),
    jobs: int | None = None,
    on_progress: OnBuild = lambda _: None,
) -> Built:
    """Build a kernel, or return it when the same source, patches and options were built before.

    Interrupted at any moment, the next call goes on with what was compiled.

    Args:
        name: `own`, a variant of it, or `own:NAME` for one with patches or options of your own.
        source: Source package.
        more_options: Lines of Kconfig's form that win over the lab's fragment.
        patches: Files for `patch -p1`, in order.
        jobs: Compilers at a time; one for each processor by default.
        on_progress: Called as the build goes on.

    Raises:
        UsageError: If the name is none, or an option or patch cannot be read.
        HostError: If a program or header is missing (the packages are named), the disk is full, a
            patch or an option does not apply, or the compiler fails; its own words are given.
    """
    _require_name(name)
    require_tools()
    fragment = own_fragment(
        name if name in VARIANTS else OWN, more=more_options, source="further options"
    )
    on_progress(BuildProgress(stage="fetch"))
    package = packages.fetch(source)
    changes = [(path.name, _patch_bytes(path)) for path in patches]
    key = _key(package, fragment=fragment, patches=[data for _, data in changes])
    final = cache_root() / _KIND / key
    if not final.is_dir():
        tree = _Tree.of(package, patches=changes)
        with tree.locked():
            tree.unpack(on_progress)
            not_offered = tree.configure(fragment, source=source, on_progress=on_progress)
            compiled, cpu_s, wall_s = tree.compile(jobs or os.cpu_count() or 1, on_progress)
            built = Built(
                name=name,
                release=release_of(tree.image),
                source=f"{package.name} {package.version}",
                compiler=_compiler(),
                key=key,
                patches=[each for each, _ in changes],
                not_offered=not_offered,
                compiled=compiled,
                cpu_s=round(cpu_s, 1),
                wall_s=round(wall_s, 1),
            )
            stored(_KIND, key, lambda into: tree.keep(into, built))
    _point(name, key)
    on_progress(BuildProgress(stage="done"))
    return _read_built(final)


def built_kernels() -> list[Built]:
    """Return the kernels that were built and can be booted, by name."""
    pins = sorted((cache_root() / _KIND).glob("*.pin")) if (cache_root() / _KIND).is_dir() else []
    found = []
    for pin in pins:
        folder = cache_root() / _KIND / pin.read_text().strip()
        if folder.is_dir():
            name = pin.stem.replace("~", ":")
            found.append(msgspec.structs.replace(_read_built(folder), name=name))
    return found


def own_kernel(name: str = OWN) -> Kernel:
    """Return a kernel that was built.

    Raises:
        HostError: If it was not built; the hint says how.
        UsageError: If no kernel can have that name.
    """
    _require_name(name)
    pin = _pin(name)
    folder = cache_root() / _KIND / pin.read_text().strip() if pin.is_file() else None
    if folder is None or not folder.is_dir():
        known = ", ".join(built.name for built in built_kernels()) or "none"
        command = "excise lab kernel build" + ("" if name == OWN else f" --name {name}")
        raise HostError(
            f"the kernel {name} has not been built",
            hint=f"Build it once with `{command}`. Built: {known}",
        )
    built = _read_built(folder)
    image = folder / "vmlinuz"
    return Kernel(
        name=name,
        release=built.release,
        image=image,
        modules=None,
        config=read_config((folder / "config").read_text()),
        package=built.source,
    )


def remove_trees() -> int:
    """Remove the source trees of builds, which only speed up the next; return the bytes freed.

    Raises:
        HostError: If a build is running in one of them.
    """
    parent, freed = cache_root() / _TREES, 0
    for folder in sorted(parent.iterdir()) if parent.is_dir() else []:
        if folder.is_dir():
            with _Tree(folder=folder, archive=Path(), patches=()).locked():
                freed += sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir())
                shutil.rmtree(folder)
    return freed


def require_tools() -> None:
    """Require the programs and headers of a kernel build.

    Raises:
        HostError: If some are missing; one hint names all packages.
    """
    missing = [package for name, package in _PROGRAMS.items() if shutil.which(name) is None]
    if "gcc" not in missing:
        missing += [package for header, package in _HEADERS.items() if not _has_header(header)]
    if missing:
        raise HostError(
            f"a kernel cannot be built here: {', '.join(missing)} missing",
            hint=f"apt-get install {' '.join(missing)}",
        )


def _has_header(header: str) -> bool:
    done = subprocess.run(
        ["gcc", "-E", "-x", "c", "-", "-o", os.devnull],
        input=f"#include <{header}>\n",
        text=True,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a kernel cannot be called {name!r}",
            hint="own, or own: and letters, digits, dots and dashes, as in own:patched",
        )


def _patch_bytes(path: Path) -> bytes:
    try:
        return read_whole(path, limit_bytes=_PATCH_BYTES)
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", source=str(path)) from error


def _key(package: packages.Package, *, fragment: Fragment, patches: Sequence[bytes]) -> str:
    version = (package.name, package.version)
    return digest_of("own kernel 1", *version, fragment.text, *patches)[:24]


def _pin(name: str) -> Path:
    return cache_root() / _KIND / f"{name.replace(':', '~')}.pin"


def _point(name: str, key: str) -> None:
    write_durably(_pin(name), f"{key}\n".encode())


def _read_built(folder: Path) -> Built:
    try:
        return msgspec.json.decode((folder / "build.json").read_bytes(), type=Built)
    except (OSError, msgspec.DecodeError) as error:
        raise HostError(
            f"a built kernel is damaged: {error}",
            source=str(folder),
            hint="Remove this folder and build it again",
        ) from error


def _compiler() -> str:
    done = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [""])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """A source tree in the cache: one for each source version with its patches."""

    folder: Path
    archive: Path
    patches: Sequence[tuple[str, bytes]]

    @classmethod
    def of(cls, package: packages.Package, *, patches: Sequence[tuple[str, bytes]]) -> _Tree:
        archives = sorted((package.root / "usr/src").glob("linux-source-*.tar.xz"))
        if len(archives) != 1:
            raise HostError(f"package {package.name} holds no kernel source")
        name = f"{package.name}_{package.version.replace(':', '~')}"
        if patches:
            contents: list[bytes] = [data for _, data in patches]
            name += f"_{digest_of(*contents)[:12]}"
        return cls(folder=cache_root() / _TREES / name, archive=archives[0], patches=patches)

    @property
    def root(self) -> Path:
        return self.folder / self.archive.name.removesuffix(".tar.xz")

    @property
    def image(self) -> Path:
        return self.root / "arch/x86/boot/bzImage"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the tree: two builds in one would spoil each other's files."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / f".{self.folder.name}.lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise HostError(
                    "another build is running in this source tree",
                    source=str(self.folder),
                    hint="Wait for its end",
                ) from error
            yield

    def unpack(self, on_progress: OnBuild) -> None:
        """Unpack and patch the source, unless that was finished before."""
        marker = self.folder / ".unpacked"
        if marker.is_file():
            return
        on_progress(BuildProgress(stage="unpack"))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        free = shutil.disk_usage(self.folder).free
        if free < _FREE_BYTES:
            raise HostError(
                f"a kernel build needs {_FREE_BYTES >> 30} GiB, and {free >> 30} GiB are free",
                source=str(self.folder.parent),
                hint="Set EXCISE_LAB_CACHE to a folder with more room",
            )
        self._call(["tar", "-xJf", str(self.archive)], what="unpack the source", folder=self.folder)
        for name, data in self.patches:
            done = self._call(["patch", "-p1", "--forward", "--batch"], what="", data=data)
            if done.returncode:
                shutil.rmtree(self.folder, ignore_errors=True)
                lines = done.stdout.decode("utf-8", "replace").splitlines()
                said = next((x for x in lines if "FAILED" in x or "can't" in x), "no reason given")
                raise HostError(f"the patch does not apply: {said.strip()}", source=name)
        marker.touch()

    def configure(self, fragment: Fragment, *, source: str, on_progress: OnBuild) -> list[str]:
        """Write the configuration; return wanted options that the kernel does not offer yet."""
        on_progress(BuildProgress(stage="configure"))
        config = self.root / ".config"
        self._call(["make", "-s", "x86_64_defconfig"], what="configure the kernel")
        config.write_text(config.read_text() + fragment.text)
        self._call(["make", "-s", "olddefconfig"], what="configure the kernel")
        return require_options(fragment, config=read_config(config.read_text()), source=source)

    def compile(self, jobs: int, on_progress: OnBuild) -> tuple[int, float, float]:
        """Compile; return objects compiled, processor seconds and seconds."""
        log = self.folder / "build.log"
        count = self.folder / "objects"
        total = int(count.read_text()) if count.is_file() else _USUAL_OBJECTS
        known = len(list(self.root.rglob("*.o"))) if self.image.parent.is_dir() else 0
        started, cpu_before, done = time.monotonic(), os.times(), 0
        environment = {**os.environ, **_ENVIRONMENT}
        command = ["make", "-C", str(self.root), f"-j{jobs}", "bzImage"]
        with family(command, log=log, nice=_NICE, environment=environment) as process:
            while process.poll() is None:
                done = len(_OBJECT.findall(log.read_bytes()))
                left = max(total - known, done)
                on_progress(BuildProgress(stage="compile", done=done, total=left))
                time.sleep(_POLL_S)
        if process.returncode:
            self._refuse(log)
        done = len(_OBJECT.findall(log.read_bytes()))
        if not count.is_file() or done > int(count.read_text()):
            count.write_text(str(done))
        now = os.times()
        cpu_s = now.children_user + now.children_system
        cpu_s -= cpu_before.children_user + cpu_before.children_system
        return done, cpu_s, time.monotonic() - started

    def _refuse(self, log: Path) -> None:
        text = log.read_bytes()[-200_000:].decode("utf-8", "replace")
        if "No space left on device" in text:
            raise HostError("the disk is full", source=str(self.folder))
        faults = [line.strip() for line in _FAULT.findall(text)]
        last = (text.strip().splitlines() or ["no reason given"])[-1]
        raise HostError(
            f"the kernel could not be compiled: {(faults or [last])[0][:300]}",
            source=str(log),
            hint="The whole output is in this file; the next build goes on from here",
        )

    def keep(self, into: Path, built: Built) -> None:
        """Copy what a guest needs."""
        shutil.copyfile(self.image, into / "vmlinuz")
        shutil.copyfile(self.root / ".config", into / "config")
        (into / "build.json").write_bytes(msgspec.json.format(msgspec.json.encode(built)))

    def _call(
        self,
        command: list[str],
        *,
        what: str,
        folder: Path | None = None,
        data: bytes | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            command,
            cwd=folder or self.root,
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            check=False,
            env={**os.environ, **_ENVIRONMENT},
        )
        if done.returncode and what:
            text = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise HostError(f"cannot {what}: {(text or ['no reason given'])[-1][:300]}")
        return done
