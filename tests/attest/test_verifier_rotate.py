"""A key is rotated in a verifier's database and in nothing else."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from excise.attest.verifier import Records, open_database, require_keys, rotate
from excise.attest.verifier.signing import read_ring
from excise.errors import FormatError, UsageError


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE cookies (name TEXT)")
    other.close()


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there, so that no key of it can be rotated"):
        require_keys(str(tmp_path / "typo.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_foreign_files_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"this is no database, and long enough to be read" * 9)
    _foreign(tmp_path / "foreign.sqlite")
    os.mkfifo(tmp_path / "pipe")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    for name in (*before, "pipe", "."):
        with pytest.raises(FormatError, match="is no database of a verifier"):
            require_keys(str(tmp_path / name))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


@pytest.mark.parametrize("scheme", ["", "sqlite:"])
def test_a_database_must_hold_a_key_before_it_is_rotated(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}{tmp_path / 'verifier.sqlite'}"
    with open_database(url) as database:
        records = Records(database)
        with pytest.raises(FormatError, match="with a signing key"):
            require_keys(url)
        rotate(records)
        require_keys(url)  # while a service has it open
    require_keys(url)


def test_a_key_in_the_database_that_cannot_sign_is_named(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP384R1())
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for text, reason in ((pem, "is no key on P-256"), (pem[:-40], "not a private key in PEM")):
        with open_database(str(tmp_path / f"{len(text)}.sqlite")) as database:
            records = Records(database)
            records.keep_key("kid", text)
            with pytest.raises(FormatError, match=f"signing_keys.*{reason}"):
                read_ring(records)
