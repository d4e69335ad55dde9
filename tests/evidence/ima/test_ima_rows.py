"""Rows say what the list says, byte for byte."""

from __future__ import annotations

import io

import pytest

from excise.errors import FormatError
from excise.evidence.ima import Layout, read_list
from ima_builder import FORMATS, Entry, ascii_list, binary_list, d_ng, files, ng, violation

FULL = {
    "d": b"\1" * 20,
    "n": b"/old",
    "d-ng": d_ng("sha256", b"\2" * 32),
    "d-ngv2": b"verity:" + d_ng("sha512", b"\3" * 64),
    "n-ng": b"/caf\xc3\xa9_\xff\0",
    "sig": b"\3\2\4\5",
    "buf": b"buffer",
    "d-modsig": d_ng("sha256", b"\4" * 32),
    "modsig": b"pkcs7",
    "evmsig": b"\5\2",
    "xattrnames": b"security.ima\0",
    "xattrlengths": b"\4\0\0\0",
    "xattrvalues": b"abcd",
    "iuid": 1000,
    "igid": 100,
    "imode": 0o100644,
}


@pytest.mark.parametrize("form", ["binary", "ascii"])
def test_every_template_gives_its_values(form):
    entries = [Entry(template=name, values=FULL) for name in FORMATS]
    raw = binary_list(entries) if form == "binary" else ascii_list(entries)
    with read_list(raw) as listed:
        rows = {row.template: row for row in listed}
        assert listed.layout == Layout(format=form, byte_order="little", header_bank="sha1")
    assert list(rows) == list(FORMATS)
    assert all(row.hash_matches and row.fault is None for row in rows.values())
    assert (rows["ima"].algorithm, rows["ima"].digest) == ("", b"\1" * 20)
    assert rows["ima"].name == b"/old"
    assert (rows["ima-ng"].algorithm, rows["ima-ng"].digest) == ("sha256", b"\2" * 32)
    assert rows["ima-ng"].name == b"/caf\xc3\xa9_\xff"
    assert rows["ima-ng"].signature is None
    assert rows["ima-sig"].signature == b"\3\2\4\5"
    assert rows["ima-buf"].buf == b"buffer"
    v2 = rows["ima-sigv2"]
    assert (v2.digest_type, v2.algorithm, v2.digest) == ("verity", "sha512", b"\3" * 64)
    assert rows["ima-modsig"].others == {"d-modsig": FULL["d-modsig"], "modsig": b"pkcs7"}
    evm = rows["evm-sig"].others
    assert evm is not None
    assert evm["evmsig"] == b"\5\2"
    assert evm["xattrnames"] == b"security.ima\0"
    assert (evm["iuid"], evm["imode"]) == (b"\xe8\3\0\0", b"\xa4\x81")


def test_each_row_keeps_its_place():
    entries = [*files(3), violation(), ng("/x", pcr=11)]
    parts = [entry.binary() for entry in entries]
    with read_list(b"".join(parts)) as listed:
        rows = list(listed)
    assert [row.position for row in rows] == [0, 1, 2, 3, 4]
    assert [row.end - row.offset for row in rows] == [len(part) for part in parts]
    assert [row.violation for row in rows] == [False, False, False, True, False]
    assert rows[3].hash_matches is None
    assert rows[4].pcr == 11


def test_batches_are_columns_of_the_size_asked_for(tmp_path):
    path = tmp_path / "list"
    path.write_bytes(binary_list(files(10_000)))
    with read_list(path) as listed:
        batches = list(listed.batches(3000))
    assert [len(batch) for batch in batches] == [3000, 3000, 3000, 1000]
    assert batches[3].column("name")[-1] == b"/usr/bin/prog9999"
    assert next(batches[1].rows()).position == 3000


def test_a_part_can_be_read_from_where_a_checkpoint_ended():
    entries = files(6)
    raw = binary_list(entries)
    start = len(binary_list(entries[:4]))
    with read_list(raw, start_offset=start, start_index=4) as listed:
        assert [(row.position, row.name) for row in listed] == [
            (4, b"/usr/bin/prog4"),
            (5, b"/usr/bin/prog5"),
        ]
    with read_list(io.BytesIO(raw), end_offset=start) as listed:
        assert len(list(listed)) == 4


def test_a_wrong_hash_and_a_malformed_field_show_in_the_row():
    entries = [ng("/a"), Entry(values={"d-ng": b"sha256 no colon", "n-ng": b"/b\0"})]
    raw = bytearray(binary_list(entries))
    raw[10] ^= 1
    with read_list(bytes(raw)) as listed:
        first, second = listed
    assert first.hash_matches is False
    assert second.fault == "d-ng: no NUL after its name"


def test_what_cannot_be_read_ends_the_rows_and_is_told():
    with read_list(binary_list(files(2)) + b"\n\0") as listed:
        assert len(list(listed)) == 2
        assert listed.fault is not None
        assert listed.fault.truncated
    with pytest.raises(FormatError, match="No such file"):
        read_list("/nonexistent/list")
