from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError, UsageError
from excise.lab.guest import read_results
from excise.lab.quote import quote_files, read_quote

PCRS = b"sha256:0 " + b"00" * 32 + b"\n"


@pytest.mark.parametrize("size", [0, 35])
def test_qualifying_data_of_a_wrong_size_is_refused(size):
    with pytest.raises(UsageError, match="1 to 34 bytes"):
        quote_files(bytes(size))


def test_commands_say_their_own_size():
    files = quote_files(b"nonce")
    for name in ("lab/quote/create_primary", "lab/quote/quote"):
        tag, size, _ = struct.unpack_from(">HII", files[name])
        assert (tag, size) == (0x8002, len(files[name]))
    assert b"nonce" in files["lab/quote/quote"]


def test_a_refusal_of_the_tpm_is_told_with_its_code():
    refused = struct.pack(">HII", 0x8001, 10, 0x922)
    evidence = {"create_primary.response": refused, "quote.response": b"", "pcrs.txt": PCRS}
    with pytest.raises(FormatError, match="refused with code 0x922"):
        read_quote(evidence, qualifying_data=b"n")


def test_no_quote_says_how_to_get_one():
    with pytest.raises(UsageError, match=r"brought back no create_primary\.response"):
        read_quote({}, qualifying_data=b"n")


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_arbitrary_answers_give_a_format_error(created, quoted):
    evidence = {"create_primary.response": created, "quote.response": quoted, "pcrs.txt": PCRS}
    with pytest.raises((FormatError, UsageError), match=r"."):
        read_quote(evidence, qualifying_data=b"n")


def test_results_that_are_no_tar_are_refused(tmp_path):
    from excise.errors import HostError

    path = tmp_path / "results.tar"
    path.write_bytes(b"x" * 2000)
    with pytest.raises(HostError, match="results cannot be read"):
        read_results(path)
