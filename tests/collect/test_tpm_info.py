"""What a TPM and a kernel say of themselves, against tpm2-tools and made-up kernels."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from excise.collect.tpm import capability, info, wire
from excise.collect.tpm.codes import base_code, explain, is_absence
from excise.collect.tpm.info import firmware_text, kernel_default, read_info
from excise.collect.tpm.sessions import kdfa
from excise.collect.tpm.wire import Link, Reader, open_link
from excise.errors import FormatError, HostError
from software_tpm import SoftwareTpm, require

require("tpm2_pytss")

ON = b"CONFIG_TCG_TPM=y\nCONFIG_TCG_TPM2_HMAC=y\n"
OFF = b"CONFIG_TCG_TPM=y\n# CONFIG_TCG_TPM2_HMAC is not set\n"


@pytest.fixture
def link(swtpm: SoftwareTpm) -> Iterator[Link]:
    with open_link(swtpm.tcti) as found:
        yield found


def test_a_tpm_is_described_as_tpm2_tools_describe_it(swtpm: SoftwareTpm, link: Link) -> None:
    found = read_info(link)
    fixed = swtpm.tool("tpm2_getcap", "properties-fixed")

    def prop(name: str, key: str = "value") -> str:
        match = re.search(rf"{name}:\n(?:  \w+:.*\n)*?  {key}: +\"?([^\"\n]*)", fixed)
        assert match, name
        return match[1].strip()

    assert found.manufacturer == prop("TPM2_PT_MANUFACTURER")
    assert found.vendor_string.replace(" ", "") == "".join(
        prop(f"TPM2_PT_VENDOR_STRING_{n}").replace(" ", "") for n in range(1, 5)
    )
    assert found.kind == "software"
    assert found.revision == prop("TPM2_PT_REVISION")
    assert found.year == int(prop("TPM2_PT_YEAR", "raw"), 0)
    first, second = (int(prop(f"TPM2_PT_FIRMWARE_VERSION_{n}", "raw"), 0) for n in (1, 2))
    assert found.firmware == f"{first:x}.{second:06x}"
    curves = swtpm.tool("tpm2_getcap", "ecc-curves")
    numbers = [int(text, 16) for text in re.findall(r"0x[0-9a-fA-F]+", curves)]
    assert numbers == capability.curves(link)
    assert "BN_P256" in found.curves
    algorithms = re.findall(r"^(\w+):", swtpm.tool("tpm2_getcap", "algorithms"), re.M)
    assert sorted(a.lower() for a in found.algorithms) == sorted(a.lower() for a in algorithms)
    commands = re.findall(r"^\w+:", swtpm.tool("tpm2_getcap", "commands"), re.M)
    assert found.commands == len(commands)
    banks = re.findall(r"- (\w+): \[ (.*?) ?\]", swtpm.tool("tpm2_getcap", "pcrs"))
    shown = {bank.upper(): tuple(int(i) for i in held.split(", ") if i) for bank, held in banks}
    assert dict(found.banks) == {bank: held for bank, held in shown.items() if held}


def test_the_null_primary_has_the_name_that_tpm2_tools_give_the_same_key(
    swtpm: SoftwareTpm, link: Link
) -> None:
    found = read_info(link).null_name
    swtpm.tool(
        *("tpm2_createprimary", "-C", "n", "-g", "sha256", "-G", "ecc256:null:aes128cfb"),
        *("-a", "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|decrypt"),
        *("-c", "null.ctx"),
    )
    try:
        name = swtpm.tool("tpm2_readpublic", "-c", "null.ctx")
    finally:
        swtpm.flush()
    assert re.search(r"^name: (\w+)", name, re.M)[1] == found  # type: ignore[index]


def test_describing_a_tpm_leaves_nothing_in_it(link: Link) -> None:
    before = capability.read_state(link)
    read_info(link)
    assert before.differences(capability.read_state(link)) == []
    assert before.handles["transient"] == ()


def test_a_kernels_null_name_is_compared_where_it_has_one(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "_sysfs", lambda _link: tmp_path)
    name = read_info(link).null_name
    assert name is not None
    (tmp_path / "null_name").write_text(f"{name.upper()}\n")
    assert read_info(link).null_name_agrees is True
    (tmp_path / "null_name").write_text("000b" + "00" * 32)
    assert read_info(link).null_name_agrees is False
    (tmp_path / "null_name").unlink()
    found = read_info(link)
    assert found.null_name_agrees is None
    assert "no null_name" in found.notes[0]


@pytest.mark.parametrize(
    ("config", "parameter", "null_name", "mode", "protected"),
    [
        (ON, None, True, "hmac", True),  # 6.10, 6.11
        (ON, "N", True, "lazy", True),  # 6.12
        (ON, "Y", True, "none", False),  # 6.12 with tpm.disable_pcr_integrity=1
        (OFF, "N", False, "none", False),  # 6.18, and distributions before it
        (OFF, None, False, "none", False),  # 6.1
        (None, "N", True, "lazy", True),  # no configuration kept, but the kernel shows it
        (None, "N", False, None, None),  # nothing tells
    ],
)
def test_the_kernels_default_is_told_by_what_it_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: bytes | None,
    parameter: str | None,
    null_name: bool,
    mode: str | None,
    protected: bool | None,
) -> None:
    module, sysfs = tmp_path / "module", tmp_path / "class"
    module.mkdir()
    (sysfs / "tpm0").mkdir(parents=True)
    if parameter is not None:
        (module / "disable_pcr_integrity").write_text(parameter + "\n")
    if null_name:
        (sysfs / "tpm0" / "null_name").write_text("000b\n")
    place = tmp_path / "config.gz"
    if config is not None:
        place.write_bytes(gzip.compress(config))
    original = Path
    moved = {"/proc/config.gz": place, "/boot/config-6.x": tmp_path / "none"}
    monkeypatch.setattr(info, "Path", lambda text: moved.get(text, original(text)))
    found = kernel_default(module=module, sysfs=sysfs, release="6.x")
    assert (found.mode, found.pcr_integrity) == (mode, protected)
    assert found.reasons


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no line sets a CONFIG_ option"),
        (b"host,verdict\nCONFIGURATION\n", "no line sets a CONFIG_ option"),
        (gzip.compress(b"nothing"), "no line sets a CONFIG_ option"),
        (gzip.compress(ON)[:-9], "cannot be read"),
        (b"\x1f\x8b" + bytes(40), "cannot be read"),
        (gzip.compress(bytes(65 << 20)), "more than 67,108,864 bytes"),
    ],
    # What gzip packs holds the time, and the workers of a run must name a test alike.
    ids=["empty", "table", "packed text", "cut off", "no gzip", "too long"],
)
def test_what_is_no_kernel_configuration_says_nothing_of_an_option(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    place = tmp_path / "config"
    place.write_bytes(data)
    with pytest.raises(FormatError, match=reason):
        kernel_default(config=place)


def test_another_kernels_configuration_is_judged_by_itself(tmp_path: Path) -> None:
    place = tmp_path / "config-6.18"
    place.write_bytes(OFF)
    assert kernel_default(config=place).mode == "none"
    place.write_bytes(ON)
    found = kernel_default(config=place)
    assert (found.hmac, found.mode, found.lazy_flush) == (True, None, None)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [(0x00070055, 0x0011CB00, "7.85.17.51968"), (0x000B0005, 0, "11.5"), (0, 0, "0.0")],
)
def test_firmware_is_printed_as_makers_print_it(first: int, second: int, text: str) -> None:
    assert firmware_text(first, second) == text


@pytest.mark.parametrize(
    ("code", "words", "absent"),
    [
        (0x922, "busy", False),
        (0x921, "lockout", False),
        (0x902, "no room for another object", False),
        (0x143, "does not know this command", True),
        (0x2C4, "a value out of range", False),
        (0x1D6, "a symmetric algorithm it does not have", True),
        (0x2E6, "a curve it does not have", True),
        (0x9A2, "an authorisation that is wrong", False),
        (0x100, "was not started", False),
        (0x1FF, "response code 0x1ff", False),
    ],
)
def test_response_codes_are_said_in_words(code: int, words: str, absent: bool) -> None:
    assert words in explain(code)[0]
    assert is_absence(code) is absent
    assert base_code(code) == base_code(code | 0x300 if code & 0x80 else code)


def test_a_device_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(HostError, match=r"no such device.*switched on in firmware"),
        open_link(f"device:{tmp_path}/tpm9"),
    ):
        pass
    with pytest.raises(HostError, match="no TPM answers"), open_link("swtpm:path=/nowhere/s"):
        pass
    with pytest.raises(HostError, match="no TPM answers"), open_link("nonsense:x"):
        pass


def test_a_held_device_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def busy(*_arguments: object) -> int:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(wire.os, "open", busy)
    found = wire.unreachable("device:/dev/tpm0", RuntimeError("io"))
    assert "held by another program or a resource manager" in str(found)
    assert "device:/dev/tpmrm0" in str(found)


def test_a_short_answer_is_an_error_of_the_tpms() -> None:
    with pytest.raises(HostError, match="answer to PCR_Read is too short"):
        Reader(b"\x00\x20ab", command="PCR_Read").sized()


def test_kdfa_is_that_of_the_specification() -> None:
    """NIST SP 800-108 in counter mode with HMAC-SHA256, by an independent implementation."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode

    key, label, u, v = b"k" * 32, b"ATH", b"u" * 32, b"v" * 32
    other = KBKDFHMAC(
        algorithm=SHA256(), mode=Mode.CounterMode, length=32, rlen=4, llen=4,
        location=CounterLocation.BeforeFixed, label=label, context=u + v, fixed=None,
    )  # fmt: skip
    assert kdfa(key, label, u, v) == other.derive(key)
