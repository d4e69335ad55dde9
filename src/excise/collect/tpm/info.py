"""Which TPM this is, what it has, and what the kernel does with it by default."""

from __future__ import annotations

import gzip
import os
import platform
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from excise.capture.manifest import Fact
from excise.collect.host import read_word
from excise.collect.tpm import capability
from excise.collect.tpm.codes import ALGORITHMS
from excise.collect.tpm.sessions import make_null_primary
from excise.collect.tpm.wire import Link, TpmError, device_path
from excise.errors import FormatError
from excise.files import read_stream

SYSFS: Final = Path("/sys/class/tpm")
MODULE: Final = Path("/sys/module/tpm/parameters")
HMAC_OPTION: Final = "CONFIG_TCG_TPM2_HMAC"
_CONFIG_LINE: Final = re.compile(r"^(?:CONFIG_\w+=|# CONFIG_\w+ is not set)", re.MULTILINE)
_CONFIG_BYTES: Final = 64 << 20

_MAKERS: Final = {
    "AMD": ("AMD", "firmware"),
    "ATML": ("Microchip (Atmel)", "discrete"),
    "BRCM": ("Broadcom", "discrete"),
    "CSCO": ("Cisco", "discrete"),
    "GOOG": ("Google", "firmware"),
    "HPE": ("HPE", "discrete"),
    "IBM": ("IBM", "software"),
    "IFX": ("Infineon", "discrete"),
    "INTC": ("Intel", "firmware"),
    "MSFT": ("Microsoft", "firmware"),
    "NSG": ("NSING", "discrete"),
    "NTC": ("Nuvoton", "discrete"),
    "NTZ": ("Nationz", "discrete"),
    "QCOM": ("Qualcomm", "firmware"),
    "ROCC": ("Rockchip", "firmware"),
    "SMSN": ("Samsung", "discrete"),
    "STM": ("STMicroelectronics", "discrete"),
    "TXN": ("Texas Instruments", "discrete"),
    "VMW": ("VMware", "software"),
    "WEC": ("Winbond", "discrete"),
}
"""Maker and usual type by TPM_PT_MANUFACTURER (TCG TPM Vendor ID Registry)."""

_SOFTWARE: Final = re.compile(r"swtpm|SW *TPM|xCG|simulator|libtpms", re.I)
_INTERFACES: Final = {
    "tpm_tis": "FIFO (TIS) in memory",
    "tpm_tis_spi": "FIFO (TIS) over SPI",
    "tpm_tis_i2c": "FIFO (TIS) over I2C",
    "tpm_tis_i2c_cr50": "FIFO (TIS) over I2C",
    "tpm_tis_spi_cr50": "FIFO (TIS) over SPI",
    "tpm_crb": "CRB in memory",
    "tpm_crb_ffa": "CRB over FF-A",
    "tpm_ftpm_tee": "trusted application (OP-TEE)",
    "optee-ftpm": "trusted application (OP-TEE)",
    "tpm_vtpm_proxy": "virtual, from user space",
    "tpm_ibmvtpm": "virtual (IBM Power)",
    "xen-tpmfront": "virtual (Xen)",
    "tpm_infineon": "LPC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDefault:
    """Whether this kernel protects PCR extends, and how it is known.

    Attributes:
        hmac: Sessions are built in; None where it cannot be told.
        lazy_flush: The session is kept until user space needs the TPM; None where not told.
        pcr_integrity: PCR extends go through the session; None where it cannot be told.
        mode: `none`, `hmac`, `lazy`, or None: what an extend of this kernel is.
        reasons: One sentence for each thing that was looked at.
    """

    release: str
    hmac: bool | None
    lazy_flush: bool | None
    pcr_integrity: bool | None
    mode: str | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmInfo:
    """What is known of one TPM, and of the kernel's way to it.

    Attributes:
        manufacturer: TPM_PT_MANUFACTURER as text, such as `IFX`.
        maker: Who that is, or "".
        kind: `discrete`, `firmware`, `software` or `unknown`.
        vendor_string: The four vendor strings joined; often the model.
        firmware: Firmware version, as makers print it.
        revision: Revision of the TPM library specification, such as 1.59.
        banks: Allocated PCRs by bank.
        null_name: Name of the null hierarchy's primary, hex, or None where it cannot be made.
        null_name_agrees: Whether the kernel's own null primary is the same; None where the kernel
            shows none, or this TPM is not the kernel's.
        interface: How the kernel reaches it, or "".
        driver: Its driver, or "".
        in_lockout: Whether failed authorisations block it.
        notes: What could not be read, and why.
    """

    manufacturer: str
    maker: str
    kind: str
    vendor_string: str
    vendor_type: int
    firmware: str
    family: str
    revision: str
    year: int
    day: int
    algorithms: tuple[str, ...]
    curves: tuple[str, ...]
    commands: int
    banks: Mapping[str, tuple[int, ...]]
    null_name: str | None
    null_name_agrees: bool | None
    interface: str
    driver: str
    in_lockout: bool
    transient_slots: int
    kernel: KernelDefault
    notes: tuple[str, ...]

    def facts(self) -> list[Fact]:
        """Return what captures of a TPM must agree in, and what a reader should know."""
        return [
            Fact(name="tpm.manufacturer", value=self.manufacturer, must_agree=True),
            Fact(name="tpm.vendor_string", value=self.vendor_string, must_agree=True),
            Fact(name="tpm.firmware", value=self.firmware, must_agree=True),
            Fact(name="tpm.type", value=self.kind, must_agree=True),
            Fact(name="tpm.revision", value=self.revision),
            Fact(name="tpm.interface", value=self.interface or None),
            Fact(name="tpm.driver", value=self.driver or None),
            Fact(name="tpm.banks", value=", ".join(self.banks), must_agree=True),
            Fact(name="tpm.curves", value=", ".join(self.curves)),
            Fact(name="kernel.tpm.extend_mode", value=self.kernel.mode),
            Fact(name="kernel.tpm.hmac", value=self.kernel.hmac),
        ]


def read_info(link: Link, *, config: Path | None = None) -> TpmInfo:
    """Return what a TPM says of itself, and what the kernel says of it.

    A null primary is made and flushed for its name; nothing is left behind.

    Args:
        link: The TPM.
        config: Kernel configuration to judge instead of the running kernel's.

    Raises:
        HostError: The TPM does not answer.
    """
    held = capability.properties(link)
    manufacturer = _text(held.get(0x105, 0))
    strings = "".join(_text(held.get(number, 0)) for number in range(0x106, 0x10A))
    vendor_string = re.sub(r"\s+", " ", strings).strip()
    maker, kind = _MAKERS.get(manufacturer, ("", "unknown"))
    if _SOFTWARE.search(strings):
        kind = "software"
    notes: list[str] = []
    null_name = _null_name(link, notes)
    kernels_own = _sysfs(link)
    agrees = None
    shown = read_word(kernels_own / "null_name") if kernels_own else None
    if shown and null_name:
        agrees = shown.lower() == null_name
    elif kernels_own:
        notes.append("The kernel shows no null_name: its sessions are not built in, or too old.")
    driver = _driver(kernels_own)
    return TpmInfo(
        manufacturer=manufacturer,
        maker=maker,
        kind=kind,
        vendor_string=vendor_string,
        vendor_type=held.get(0x10A, 0),
        firmware=firmware_text(
            held.get(0x10B, 0), held.get(0x10C, 0), as_date=manufacturer == "IBM"
        ),
        family=_text(held.get(0x100, 0)),
        revision=f"{held.get(0x102, 0) / 100:.2f}",
        year=held.get(0x104, 0),
        day=held.get(0x103, 0),
        algorithms=tuple(capability.names_of(capability.algorithms(link), ALGORITHMS)),
        curves=tuple(capability.curve_names(link)),
        commands=len(capability.commands(link)),
        banks={
            ALGORITHMS.get(bank, f"{bank:#06x}"): indices
            for bank, indices in capability.allocated(link).items()
        },
        null_name=null_name,
        null_name_agrees=agrees,
        interface=_INTERFACES.get(driver, ""),
        driver=driver,
        in_lockout=bool(held.get(0x200, 0) >> 9 & 1),
        transient_slots=held.get(0x10E, 0),
        kernel=kernel_default(config=config),
        notes=tuple(notes),
    )


def firmware_text(first: int, second: int, *, as_date: bool = False) -> str:
    """Return the firmware version: four numbers of 16 bits, without zeros at the end.

    Args:
        first: TPM_PT_FIRMWARE_VERSION_1.
        second: TPM_PT_FIRMWARE_VERSION_2.
        as_date: The numbers are decimal digits of date and time, as in libtpms.

    Examples:
        >>> firmware_text(0x00070055, 0x00110000)
        '7.85.17'
    """
    if as_date:
        return f"{first:x}.{second:06x}"
    parts = [first >> 16, first & 0xFFFF, second >> 16, second & 0xFFFF]
    while len(parts) > 2 and not parts[-1]:
        parts.pop()
    return ".".join(map(str, parts))


def extend_mode(*, hmac: bool | None, lazy_flush: bool | None, parameter: str | None) -> str | None:
    """Return how a kernel protects PCR extends: `none`, `hmac` (a session each), `lazy` (kept).

    Args:
        hmac: Whether sessions are built in; None where it cannot be told.
        lazy_flush: Whether a session is kept until user space needs the TPM; None if not told.
        parameter: Value of the module's `disable_pcr_integrity`, which came with lazy flush.

    Returns:
        The mode, or None where what is known does not tell it.
    """
    if hmac is None:
        return None
    if not hmac or parameter in ("Y", "1"):
        return "none"
    return None if lazy_flush is None else "lazy" if lazy_flush else "hmac"


def kernel_default(
    *,
    config: Path | None = None,
    module: Path = MODULE,
    sysfs: Path = SYSFS,
    release: str | None = None,
) -> KernelDefault:
    """Return whether this kernel's PCR extends are protected by default, by what it shows.

    Sessions came with 6.10 (default on, later on x86-64 alone), lazy flush and the parameter
    `disable_pcr_integrity` with 6.12; since 6.18 and its stable backports sessions are off by
    default (commit 4bddf4587c13). What is present decides, never the version.

    Args:
        config: Kernel configuration; by default the running kernel's, where it is kept.
        module: Parameters of the module `tpm`.
        sysfs: Folder of the TPM class.
        release: Kernel release, by default the running one's.
    """
    running = config is None
    name = release or (platform.release() if running else f"of {config}")
    reasons: list[str] = []
    option = _option(config, name, reasons)
    null_names = list(sysfs.glob("tpm*/null_name")) if running else []
    if null_names:
        reasons.append("The kernel shows a null_name: its sessions are built in and in use.")
    hmac = True if null_names else option
    parameter = read_word(module / "disable_pcr_integrity") if running else None
    lazy = None
    if parameter is not None:
        lazy = True
        reasons.append(f"tpm.disable_pcr_integrity is {parameter}; it came with lazy flush.")
    elif running and module.is_dir():
        lazy = False
        reasons.append("The module tpm has no disable_pcr_integrity: older than lazy flush.")
    if hmac is None:
        return KernelDefault(
            release=name, hmac=None, lazy_flush=lazy, pcr_integrity=None, mode=None,
            reasons=tuple(reasons),
        )  # fmt: skip
    integrity = hmac and parameter not in ("Y", "1")
    return KernelDefault(
        release=name,
        hmac=hmac,
        lazy_flush=lazy,
        pcr_integrity=integrity,
        mode=extend_mode(hmac=hmac, lazy_flush=lazy, parameter=parameter),
        reasons=tuple(reasons),
    )


def _option(config: Path | None, release: str, reasons: list[str]) -> bool | None:
    """Return whether a kernel configuration has sessions built in."""
    places = [config] if config else [Path("/proc/config.gz"), Path(f"/boot/config-{release}")]
    for place in places:
        try:
            text = _config_text(place)
        except FormatError:
            if config:
                raise
            continue
        found = re.search(rf"^{HMAC_OPTION}=(\w)", text, re.M)
        reasons.append(f"{HMAC_OPTION} is {found[1] if found else 'not set'} in {place.name}.")
        return bool(found and found[1] == "y")
    reasons.append(f"No configuration of the kernel is kept here: {HMAC_OPTION} is not known.")
    return None


def _config_text(path: Path) -> str:
    """Return a kernel configuration, which may be packed by gzip.

    Raises:
        FormatError: It cannot be read, or is none: saying nothing, it would seem to say "not set".
    """
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            data = read_stream(
                cast("BinaryIO", stream), source=str(path), limit_bytes=_CONFIG_BYTES
            )
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot be read ({reason})", source=str(path)) from error
    text = data.decode(errors="replace")
    if not _CONFIG_LINE.search(text):
        raise FormatError(
            "is no kernel configuration: no line sets a CONFIG_ option",
            source=str(path),
            hint="Name a kernel's .config, /boot/config-RELEASE or /proc/config.gz",
        )
    return text


def _null_name(link: Link, notes: list[str]) -> str | None:
    try:
        return make_null_primary(link)[0].name.hex()
    except TpmError as error:
        if not error.absent:  # a TPM that is full, busy or not started says nothing of its make
            raise
        notes.append(f"No null primary: {error.reason}.")
        return None


def _sysfs(link: Link) -> Path | None:
    """Return the kernel's folder of this TPM, or None where it is none of this kernel's."""
    path = device_path(link.tcti)
    if path is None:
        return None
    number = re.search(r"(\d+)$", path)
    folder = SYSFS / f"tpm{number[1] if number else 0}"
    return folder if folder.is_dir() else None


def _driver(folder: Path | None) -> str:
    if folder is None:
        return ""
    link = folder / "device" / "driver"
    return Path(os.path.realpath(link)).name if link.exists() else ""


def _text(value: int) -> str:
    """Return four characters that a TPM packs into a number."""
    return value.to_bytes(4, "big").rstrip(b"\0 ").decode("ascii", errors="replace")
