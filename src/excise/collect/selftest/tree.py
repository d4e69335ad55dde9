"""A throw-away tree of another Debian suite, whose programs run through their own loader.

Packages and their dependencies are resolved by apt against an empty package state, downloaded and
unpacked below the user's cache. The host's dpkg database, lists and files are not touched, and no
privilege is needed: nothing is configured, and no program of the tree runs as another root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise.errors import HostError, UsageError

KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR: Final = "http://deb.debian.org/debian"
SECURITY_MIRROR: Final = "http://deb.debian.org/debian-security"
OPENSSL_PACKAGES: Final = ("openssl", "openssl-provider-fips")
COMMAND_PACKAGES: Final = (*OPENSSL_PACKAGES, "curl", "openssh-client", "gpg", "python3")
# Debian's architecture, GNU triplet of its library folder, and its loader.
_ARCHITECTURES: Final = {
    "x86_64": ("amd64", "x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    "aarch64": ("arm64", "aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
}
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Unpacked packages of a suite.

    Attributes:
        suite: Name of the suite, such as `trixie`, or `host` for this system's own files.
        root: Folder below which the files lie; `/` for the host.
        versions: Version of every package in the tree, by package name.
        loader: The tree's own dynamic loader; None for the host, whose programs start as usual.
        libraries: Folders of its shared libraries.
        machine: Machine its programs are for; None for the host.
        prefix: Words before every program: an emulator.
    """

    suite: str
    root: Path
    versions: dict[str, str]
    loader: Path | None = None
    libraries: tuple[Path, ...] = ()
    machine: str | None = None
    prefix: tuple[str, ...] = ()

    def start(self, program: str | Path, *arguments: str) -> list[str]:
        """Return the words that start a program of this tree with its own loader and libraries.

        Args:
            program: Absolute path as seen by the host, or a name looked up in the tree.
            arguments: Words after the program.

        Raises:
            HostError: If the tree has no such program.
        """
        path = self.program(str(program)) if "/" not in str(program) else Path(program)
        if self.loader is None:
            return [*self.prefix, str(path), *arguments]
        folders = ":".join(map(str, self.libraries))
        # argv[0] stays the program's own name: some decide by it what they are.
        words = [*self.prefix, str(self.loader), "--library-path", folders, "--argv0", str(path)]
        return [*words, str(path), *arguments]

    def program(self, name: str) -> Path:
        """Return the path of a program of this tree.

        Raises:
            HostError: If there is none of that name.
        """
        if self.loader is None:
            found = shutil.which(name)
            if found is not None:
                return Path(found)
        for folder in ("usr/bin", "usr/sbin", "bin", "sbin"):
            path = self.root / folder / name
            if self.loader is not None and path.is_file():
                return path.resolve()
        raise HostError(f"there is no program {name!r}", source=f"the {self.suite} tree")

    def objects(self, program: Path) -> list[Path]:
        """Return a program's own file and those of every library its loader maps for it."""
        words = self.start(program)
        if self.loader is not None:
            words.insert(len(self.prefix) + 1, "--list")
        else:
            words = ["ldd", str(program)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        found = [Path(word) for word in done.stdout.split() if word.startswith("/")]
        return [program, *(path for path in dict.fromkeys(found) if path.is_file())]

    @property
    def modules(self) -> Path | None:
        """Return the folder of OpenSSL's loadable providers, or None where there is none."""
        folders = [*self.libraries] if self.loader else _host_library_folders()
        return next((f / "ossl-modules" for f in folders if (f / "ossl-modules").is_dir()), None)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that keep programs of this tree inside it."""
        found = {}
        if self.loader is not None:
            if self.modules is not None:
                found["OPENSSL_MODULES"] = str(self.modules)
            found["PYTHONHOME"] = str(self.root / "usr")
        return found


def host_tree() -> Tree:
    """Return the host as a tree: its own programs, started as usual."""
    return Tree(suite="host", root=Path("/"), versions={})


def make_tree(
    suite: str,
    *,
    packages: Sequence[str] = OPENSSL_PACKAGES,
    machine: str | None = None,
    on_step: OnStep | None = None,
) -> Tree:
    """Return the tree of a suite, downloaded and unpacked at its first use.

    Args:
        suite: Name of a Debian suite, such as `trixie` or `sid`.
        packages: Packages to hold, with their dependencies but no recommended ones.
        machine: Machine name such as `x86_64`; this host's by default.
        on_step: Called with what is being done, steps done and steps in all.

    Raises:
        HostError: If apt, the archive's keys or the packages are not there.
        UsageError: If the suite is no word, or the machine is unknown.
    """
    if not suite.replace("-", "").isalnum():
        raise UsageError(f"{suite!r} is not the name of a suite", hint="Write one such as trixie")
    architecture, triplet, loader = _architecture(machine or os.uname().machine)
    name = "-".join([suite, architecture, *sorted(packages)])
    final = cache_folder() / "trees" / name
    with _locked(final.with_name(f".{name}.lock")):
        if not (final / ".complete").is_file():
            _build(final, suite, packages, architecture, on_step or (lambda *_: None))
    folders = (f"usr/lib/{triplet}", f"lib/{triplet}", "usr/lib", "lib")
    libraries = [final / folder for folder in folders]
    return Tree(
        suite=suite,
        root=final,
        versions=_versions(final),
        loader=_found_loader(final, libraries, loader),
        libraries=tuple(folder for folder in libraries if folder.is_dir()),
        machine=machine or os.uname().machine,
    )


def cache_folder() -> Path:
    """Return the folder for downloads and built helpers in the user's cache, made if absent.

    Raises:
        HostError: If it cannot be made.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = Path(os.environ.get("EXCISE_SELFTEST_CACHE") or Path(base) / "excise" / "selftest")
    try:
        (root / "trees").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"cannot make the cache folder ({error.strerror})",
            source=str(root),
            hint="Set EXCISE_SELFTEST_CACHE to a folder that can be written",
        ) from error
    return root


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock for as long as one process builds what others wait for."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _architecture(machine: str) -> tuple[str, str, str]:
    try:
        return _ARCHITECTURES[machine]
    except KeyError:
        known = ", ".join(_ARCHITECTURES)
        raise UsageError(f"no tree is known for {machine!r}", hint=f"Known: {known}") from None


def _build(
    final: Path, suite: str, packages: Sequence[str], architecture: str, on_step: OnStep
) -> None:
    with tempfile.TemporaryDirectory(prefix=".tree-", dir=final.parent) as name:
        folder = Path(name)
        options = _apt_options(folder, suite, architecture)
        steps = 4
        on_step(f"reading the package lists of {suite}", 0, steps)
        _call(["apt-get", *options, "-q", "update"], what=f"read the package lists of {suite}")
        on_step(f"downloading {', '.join(packages)}", 1, steps)
        install = ["-q", "-y", "--no-install-recommends", "--download-only", "install"]
        _call(["apt-get", *options, *install, *packages], what=f"download {' '.join(packages)}")
        on_step("unpacking", 2, steps)
        root = folder / "root"
        root.mkdir()
        # Where /usr is merged these are links; packages of today rely on it.
        for each in ("bin", "sbin", "lib", "lib64"):
            (root / "usr" / each).mkdir(parents=True, exist_ok=True)
            (root / each).symlink_to(f"usr/{each}")
        archives = sorted((folder / "cache" / "archives").glob("*.deb"))
        for archive in archives:
            _unpack(archive, root)
        (root / ".versions").write_text("\n".join(map(_name_and_version, archives)) + "\n")
        (root / ".complete").touch()
        if final.exists():
            shutil.rmtree(final)
        root.rename(final)
        on_step("ready", steps, steps)


def _unpack(archive: Path, root: Path) -> None:
    """Unpack one package; tar keeps the links that stand for folders."""
    data = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE)
    options = ["--keep-directory-symlink", "--no-same-owner", "--no-same-permissions"]
    skip = [
        "--exclude=./usr/share/doc",
        "--exclude=./usr/share/man",
        "--exclude=./usr/share/locale",
    ]
    tar = subprocess.run(
        ["tar", "-x", "-C", str(root), *options, *skip],
        stdin=data.stdout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert data.stdout is not None
    data.stdout.close()
    if data.wait() or tar.returncode:
        raise HostError(f"could not be unpacked: {tar.stderr.strip()}", source=archive.name)


def _name_and_version(archive: Path) -> str:
    name, version, _ = archive.stem.split("_", 2)
    return f"{name} {version.replace('%3a', ':')}"


def _apt_options(folder: Path, suite: str, architecture: str) -> list[str]:
    state, cache, empty = folder / "state", folder / "cache", folder / "empty"
    for each in (state / "lists" / "partial", cache / "archives" / "partial", empty):
        each.mkdir(parents=True)
    (state / "status").touch()
    sources = folder / "sources.list"
    sources.write_text("".join(f"{line}\n" for line in _sources(suite)))
    settings = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": cache,
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": empty,
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": empty,
        "Debug::NoLocking": "true",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _sources(suite: str) -> list[str]:
    if not KEYRING.is_file():
        raise HostError(
            "the archive's keys are not installed",
            source=str(KEYRING),
            hint="apt install debian-archive-keyring",
        )
    mirror = os.environ.get("EXCISE_DEBIAN_MIRROR", MIRROR)
    lines = [f"deb [signed-by={KEYRING}] {mirror} {suite} main"]
    if suite not in ("sid", "unstable", "testing", "experimental"):
        lines.append(f"deb [signed-by={KEYRING}] {SECURITY_MIRROR} {suite}-security main")
    return lines


def _call(command: list[str], *, what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise HostError(
            f"cannot {what}: {command[0]} is not installed",
            hint="A tree is made of Debian packages by apt; give a library that is installed",
        ) from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise HostError(f"cannot {what}: {said[-1]}", source=command[0])


def _versions(root: Path) -> dict[str, str]:
    lines = (root / ".versions").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


def _found_loader(root: Path, libraries: Sequence[Path], name: str) -> Path:
    for folder in [*libraries, root / "lib64", root / "usr/lib64"]:
        if (folder / name).is_file():
            return folder / name
    raise HostError(f"has no loader {name}", source=str(root), hint="Remove the tree to rebuild it")


def _host_library_folders() -> list[Path]:
    triplets = [triplet for _, triplet, _ in _ARCHITECTURES.values()]
    names = [f"/usr/lib/{triplet}" for triplet in triplets] + ["/usr/lib64", "/usr/lib"]
    return [Path(name) for name in names if Path(name).is_dir()]
