from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import ExciseError, FormatError, UsageError
from excise.evidence.pcr import (
    BANK_SIZES_BYTES,
    canonical_bank,
    format_selection,
    merge_pcrs,
    parse_pcr_argument,
    parse_selection,
    read_pcr_bytes,
    read_pcr_path,
)
from software_tpm import SoftwareTpm

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


def serialized(
    entries: list[tuple[int, tuple[int, ...]]], digests: list[bytes], *, order: str = "<"
) -> bytes:
    """Write the C structures of tpm2-tools' serialised PCR files."""
    selection = struct.pack(f"{order}I", len(entries))
    for algorithm, indices in entries:
        number = sum(1 << index for index in indices)
        selection += struct.pack(f"{order}HB", algorithm, 3) + number.to_bytes(4, "little") + b"\0"
    selection = selection.ljust(132, b"\0")
    groups = [digests[start : start + 8] for start in range(0, len(digests), 8)]
    lists = struct.pack(f"{order}I", len(groups))
    for group in groups:
        held = struct.pack(f"{order}I", len(group))
        for digest in group:
            held += struct.pack(f"{order}H", len(digest)) + digest.ljust(64, b"\0")
        lists += held.ljust(4 + 8 * 66, b"\0")
    return selection + lists


def test_argument_gives_one_labelled_value() -> None:
    assert parse_pcr_argument(f"sha256:10={ONE.hex()}") == {"sha256": {10: ONE}}
    assert parse_pcr_argument(f"SHA256:10=0x{ONE.hex().upper()}") == {"sha256": {10: ONE}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sha256:10", "is not BANK:INDEX=HEX"),
        (f"sha256:32={ONE.hex()}", "PCR 32 cannot exist"),
        (f"sha1:10={ONE.hex()}", "sha1 bank has 32 bytes, not 20"),
        (f"sha257:10={ONE.hex()}", "unknown PCR bank"),
        ("sha256:10=abc", "odd number"),
    ],
)
def test_argument_with_a_fault_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_pcr_argument(text)


def test_selection_is_read_as_tpm2_tools_write_it() -> None:
    chosen = parse_selection("sha256:10,0,1+sha1:all+sm3-256:4-6")
    assert chosen == (("sha256", (0, 1, 10)), ("sha1", tuple(range(24))), ("sm3_256", (4, 5, 6)))
    assert format_selection(chosen[:1]) == "sha256:0,1,10"
    assert parse_selection("sha256:24-31") == (("sha256", tuple(range(24, 32))),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sha256", "is not BANK:INDEX"),
        ("sha256:", "is not a number"),
        ("sha256:1+sha256:2", "twice"),
        ("md5:1", "unknown PCR bank"),
        ("sha256:40", "not within"),
        ("sha256:30-32", "not within"),
        ("sha256:7-3", "not within"),
    ],
)
def test_selection_with_a_fault_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_selection(text)


def test_pcrread_text_is_read_in_all_its_spellings() -> None:
    text = f"  sha1:\n  sha256:\n    0 : 0x{ONE.hex().upper()}\n    10: 0x{TWO.hex()}\n"
    assert read_pcr_bytes(text.encode()) == {"sha256": {0: ONE, 10: TWO}}
    old = f"sha256 :\r\n  0  : {ONE.hex()}\r\n  10 : {TWO.hex()}\r\n"
    assert read_pcr_bytes(old.encode()) == {"sha256": {0: ONE, 10: TWO}}


def test_evmctl_text_takes_its_bank_from_the_length_or_from_the_caller() -> None:
    spaced = " ".join(f"{byte:02x}" for byte in ONE)
    assert read_pcr_bytes(f"PCR-10: {spaced}\n".encode()) == {"sha256": {10: ONE}}
    named = read_pcr_bytes(f"PCR-10: {spaced}\n".encode(), bank="sm3")
    assert named == {"sm3_256": {10: ONE}}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (f"0 : 0x{ONE.hex()}", 1, "before any bank"),
        (f"sha1:\n 0 : 0x{ONE.hex()}", 2, "sha1 bank has 32 bytes, not 20"),
        (f"sha256:\n\n 0 : 0x{ONE.hex()}\n hello", 4, "not a PCR value: 'hello'"),
        (f"sha256:0 {ONE.hex()}\nsha256:0 {TWO.hex()}", 2, "two values"),
        ("PCR-10: aa bb", 1, "2 bytes fit no bank"),
        (f"sha9:0 {ONE.hex()}", 1, "unknown PCR bank"),
    ],
)
def test_text_with_a_fault_is_refused_with_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        read_pcr_bytes(text.encode(), source="pcrs.txt")
    assert caught.value.line == line
    assert caught.value.source == "pcrs.txt"


@pytest.mark.parametrize("text", ["", "\n", "sha1:\nsha256:\n", "# nothing\n"])
def test_text_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="no PCR value"):
        read_pcr_bytes(text.encode())


@pytest.mark.parametrize("order", ["<", ">"])
def test_serialized_structures_are_read_in_both_byte_orders(order: str) -> None:
    digests = [bytes([number]) * 20 for number in range(10)] + [ONE, TWO]
    data = serialized([(4, tuple(range(10))), (0xB, (7, 23))], digests, order=order)
    values = read_pcr_bytes(data)
    assert values["sha1"] == {number: bytes([number]) * 20 for number in range(10)}
    assert values["sha256"] == {7: ONE, 23: TWO}


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        (serialized([(0xB, (1, 2))], [ONE]), "TPML_DIGEST", "1 digest for 2 selected"),
        (serialized([(4, (1,))], [ONE]), "value", "sha1 bank has 32 bytes"),
        (serialized([(0x99, (1,))], [ONE]), "hash", "unknown hash 0x0099"),
        (b"\x11" + serialized([(0xB, (1,))], [ONE])[1:], "count", "neither byte order"),
        (serialized([(0xB, (1,))], [ONE])[:-1], None, "are no serialised PCR structure"),
        (b"\xff" * 32, None, "32 bytes are no serialised PCR structure"),
    ],
)
def test_serialized_structure_with_a_fault_is_refused(
    data: bytes, field: str | None, reason: str
) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        read_pcr_bytes(data)
    assert caught.value.field == field


def test_serialized_digest_longer_than_its_buffer_is_refused() -> None:
    data = bytearray(serialized([(0xB, (1,))], [ONE]))
    data[140:142] = struct.pack("<H", 65)
    with pytest.raises(FormatError, match="digest of 65 bytes"):
        read_pcr_bytes(bytes(data))


def test_concatenated_values_need_their_selection() -> None:
    data = b"\x01" * 20 + ONE + TWO
    values = read_pcr_bytes(data, selection=parse_selection("sha1:3+sha256:0,10"))
    assert values == {"sha1": {3: b"\x01" * 20}, "sha256": {0: ONE, 10: TWO}}
    with pytest.raises(FormatError, match="Concatenated values"):
        read_pcr_bytes(data)
    with pytest.raises(FormatError, match="84 bytes, but the selected PCRs take 96"):
        read_pcr_bytes(data, selection=parse_selection("sha256:0,1,10"))


def test_serialized_structure_of_another_selection_is_refused() -> None:
    data = serialized([(0xB, (1,))], [ONE])
    with pytest.raises(FormatError, match="holds sha256:1, not sha256:2"):
        read_pcr_bytes(data, selection=parse_selection("sha256:2"))


def test_sysfs_folders_are_read_whole_or_one_bank_alone(tmp_path: Path) -> None:
    for bank, value in (("sha1", b"\x07" * 20), ("sha256", ONE)):
        (tmp_path / f"pcr-{bank}").mkdir()
        for index in (0, 10):
            (tmp_path / f"pcr-{bank}" / str(index)).write_text(value.hex().upper() + "\n")
    values = read_pcr_path(tmp_path)
    assert values == {"sha1": dict.fromkeys((0, 10), b"\x07" * 20), "sha256": {0: ONE, 10: ONE}}
    assert read_pcr_path(tmp_path / "pcr-sha256") == {"sha256": {0: ONE, 10: ONE}}
    (tmp_path / "pcr-sha256" / "10").write_text("")
    with pytest.raises(FormatError, match=r"pcr-sha256/10: field value: not a hexadecimal"):
        read_pcr_path(tmp_path)


def test_folder_and_file_that_hold_no_pcrs_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no pcr-\* folder"):
        read_pcr_path(tmp_path)
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read_pcr_path(tmp_path / "absent")


def test_sources_that_contradict_each_other_are_refused_and_others_are_joined() -> None:
    left = parse_pcr_argument(f"sha256:10={ONE.hex()}")
    right = parse_pcr_argument(f"sha256:11={TWO.hex()}")
    assert merge_pcrs([left, right, left]) == {"sha256": {10: ONE, 11: TWO}}
    with pytest.raises(UsageError, match="PCR 10 of the sha256 bank is given as"):
        merge_pcrs([left, parse_pcr_argument(f"sha256:10={TWO.hex()}")])


def test_select_gives_exactly_what_is_named_or_says_what_is_missing() -> None:
    values = read_pcr_bytes(f"sha256:0 {ONE.hex()}\nsha256:10 {TWO.hex()}".encode())
    assert values.select(parse_selection("sha256:10")) == {"sha256": {10: TWO}}
    assert values.selection == (("sha256", (0, 10)),)
    with pytest.raises(UsageError, match="no value of PCR 7 in the sha256 bank"):
        values.select(parse_selection("sha256:7,10"))


def test_bank_names_of_all_sources_become_one() -> None:
    assert {canonical_bank(name) for name in ("sm3", "SM3_256", "sm3-256")} == {"sm3_256"}


@pytest.mark.parametrize("order", ["sha256:0,1,10,16+sha1:0,2", "sha1:all+sha256:all"])
def test_files_of_tpm2_tools_give_what_the_tpm_holds(swtpm: SoftwareTpm, order: str) -> None:
    swtpm.tool("tpm2_pcrextend", f"16:sha1={'11' * 20},sha256={'22' * 32}")
    text = swtpm.tool("tpm2_pcrread", order)
    expected = read_pcr_bytes(text.encode())
    assert {bank: set(held) for bank, held in expected.items()} == {
        bank: set(indices) for bank, indices in parse_selection(order)
    }
    swtpm.tool("tpm2_pcrread", order, "-o", "values.bin", "-F", "values")
    swtpm.tool("tpm2_pcrread", order, "-o", "struct.bin", "-F", "serialized")
    selection = parse_selection(order)
    assert read_pcr_path(swtpm.folder / "values.bin", selection=selection) == expected
    assert read_pcr_path(swtpm.folder / "struct.bin", selection=selection) == expected
    assert read_pcr_path(swtpm.folder / "struct.bin") == expected


def test_pcrs_of_the_lab_guests_are_all_read(shared_vectors: Path) -> None:
    files = sorted((shared_vectors / "ima" / "lab").glob("*/pcrs.txt"))
    assert files
    for file in files:
        values = read_pcr_path(file)
        assert set(values) == {"sha1", "sha256", "sha384", "sha512"}
        assert all(set(held) >= {0, 10} for held in values.values()), file


def test_pcr_text_of_ibm_and_of_evmctl_is_read(shared_vectors: Path) -> None:
    ibm = read_pcr_path(shared_vectors / "ima" / "kgoldman__ibmtss" / "imakvtpcr10.txt")
    assert {bank: len(held[10]) for bank, held in ibm.items()} == {
        "sha1": 20,
        "sha256": 32,
        "sha384": 48,
        "sha512": 64,
    }
    made = shared_vectors / "ima" / "made"
    for bank in ("sha1", "sha256"):
        values = read_pcr_path(made / f"01-good.pcrs-{bank}")
        expected = bytes.fromhex((made / f"01-good.pcr10-{bank}").read_text())
        assert values[bank][10] == expected
        assert len(values[bank]) == 24


@given(st.binary(max_size=1500))
def test_arbitrary_bytes_give_values_of_the_right_size_or_a_format_error(data: bytes) -> None:
    for selection in (None, parse_selection("sha256:0,1")):
        try:
            values = read_pcr_bytes(data, selection=selection)
        except FormatError:
            continue
        assert values
        for bank, held in values.items():
            assert all(len(value) == BANK_SIZES_BYTES[bank] for value in held.values())


@given(st.text(max_size=80))
def test_arbitrary_arguments_give_a_value_or_an_excise_error(text: str) -> None:
    for parse in (parse_pcr_argument, parse_selection):
        try:
            assert parse(text)
        except ExciseError:
            continue
