"""Which kernel to boot: a distribution's package, fetched and unpacked, a built one, or a file."""

from __future__ import annotations

import re
from pathlib import Path

from excise.errors import HostError
from excise.lab import packages
from excise.lab.kernel import Kernel, release_of
from excise.lab.kernel_build import own_kernel

_SERIES = re.compile(r"\d+\.\d+")


def resolve(name: str, *, modules: Path | None = None) -> Kernel:
    """Return a kernel by series (`6.12`), package name, `own`, or path of a bzImage.

    A series means the newest cloud kernel of it in the archive, then in the cache; `own` and
    `own:NAME` are kernels that `excise lab kernel build` made.

    Args:
        name: Series, package or path.
        modules: Folder `lib/modules/RELEASE` that belongs to a kernel given by path.

    Raises:
        HostError: If it cannot be found, fetched or read.
    """
    if name.partition(":")[0] == "own":
        return own_kernel(name)
    if "/" in name or Path(name).is_file():
        return _from_path(Path(name), modules=modules)
    wanted = name
    if _SERIES.fullmatch(name):
        series = re.escape(name)
        wanted = packages.newest_matching(rf"linux-image-{series}\.\d+(-\d+|\+deb\d+)-cloud-amd64")
    package = packages.fetch(wanted)
    images = sorted((package.root / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise HostError(f"package {package.name} holds no kernel", source=str(package.root))
    release = images[0].name.removeprefix("vmlinuz-")
    roots = [package.root / "lib/modules" / release, package.root / "usr/lib/modules" / release]
    return Kernel(
        name=name,
        release=release,
        image=images[0],
        modules=next((root for root in roots if root.is_dir()), None),
        config=_read_config(package.root / "boot" / f"config-{release}"),
        package=f"{package.name} {package.version}",
    )


def _from_path(image: Path, *, modules: Path | None) -> Kernel:
    if not image.is_file():
        raise HostError("no such kernel image", source=str(image))
    release = release_of(image)
    if modules is not None and not (modules / "modules.builtin").is_file():
        raise HostError("not a kernel's module folder: no modules.builtin", source=str(modules))
    config = image.with_name(image.name.replace("vmlinuz", "config"))
    known = _read_config(config) if config != image else {}
    return Kernel(name=str(image), release=release, image=image, modules=modules, config=known)


def _read_config(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line.startswith("CONFIG_"))
