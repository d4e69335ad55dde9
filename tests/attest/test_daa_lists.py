"""Revocation lists that are none are errors, and one process at a time fills a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from daa_group import MESSAGE, group
from ended import PATIENCE_S
from excise.attest.daa import folders
from excise.attest.daa.keys import SoftwareKey
from excise.errors import FormatError, UsageError
from excise.evidence.daa import KeyAssurance, KeyProtection, RevokedKeys, RevokedPseudonyms

SOFTWARE = KeyAssurance(protection=KeyProtection.SOFTWARE)
SECRET = SoftwareKey.generate().to_bytes()

TEXTS = {
    "the key in hexadecimal": SECRET.hex().encode(),
    "the key in upper case, in lines": "\n".join(f"{b:02X}" for b in SECRET).encode()[:95] + b"\n",
    "a sentence": b"this is no list of any kind.....",
    "brackets": b"[" * 32,
    "blanks": b" \n" * 16,
    "a list in JSON without its form": b'["' + SECRET.hex().encode()[:60] + b'"]',
    "text of another language": "Liste der gesperrten Schlüssel.".encode(),
    "UTF-16 by its mark": "0123456789abcde".encode("utf-16"),
    "UTF-8 with its mark": b"\xef\xbb\xbf" + b"a" * 29,
}


@pytest.mark.parametrize("kind", [RevokedKeys, RevokedPseudonyms])
@pytest.mark.parametrize("data", TEXTS.values(), ids=TEXTS)
def test_text_of_any_length_is_no_bare_list(kind: type[RevokedKeys], data: bytes) -> None:
    for repeated in (data, data * 65):
        with pytest.raises(FormatError, match=r"text, and so neither JSON nor a bare list|not a"):
            kind.from_bytes(repeated, source="list")


def test_the_texts_have_lengths_of_bare_lists() -> None:
    assert sum(len(data) % 32 == 0 for data in TEXTS.values()) >= 7


def test_bare_lists_of_binary_keys_are_read() -> None:
    for _ in range(50):
        data = SoftwareKey.generate().to_bytes() + SoftwareKey.generate().to_bytes()
        assert RevokedKeys.from_bytes(data, count=2).to_bytes(bare=True) == data


def test_a_name_that_occurs_twice_in_a_list_is_an_error() -> None:
    good = RevokedKeys(keys=()).with_key(4711).to_bytes().decode()
    twice = good.rstrip().removesuffix("}") + ', "entries": [], "count": 0}'
    with pytest.raises(FormatError, match="a name occurs twice in a JSON object"):
        RevokedKeys.from_bytes(twice.encode())


def _excise(*words: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from excise.cli.main import main; main()", *words]
    return subprocess.Popen(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_signature_does_not_pass_by_a_text_that_is_called_a_list(tmp_path: Path) -> None:
    made = group()
    (tmp_path / "sig.bin").write_bytes(made.sign().to_bytes())
    (tmp_path / "ipk.bin").write_bytes(made.public.to_bytes())
    (tmp_path / "message").write_bytes(MESSAGE)
    (tmp_path / "list").write_text(made.key.to_bytes().hex())
    words = ("daa", "verify", "sig.bin", "-m", "message", "-g", "ipk.bin", "--revoked-keys", "list")
    process = _excise(*words, cwd=tmp_path)
    out, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (3, "")
    assert "list: field secret-keys: text, and so neither JSON nor a bare list" in said


def test_of_issuers_made_at_once_in_one_folder_one_is_whole(tmp_path: Path) -> None:
    started = [_excise("daa", "issuer", "init", "same", cwd=tmp_path) for _ in range(4)]
    said = [(one.communicate(timeout=PATIENCE_S)[1], one.returncode) for one in started]
    assert sorted(code for _, code in said) == [0, 2, 2, 2]
    for text, code in said:
        told = "another process writes keys" in text or "holds an issuer's key already" in text
        assert told == (code == 2), text
    issuer = folders.open_issuer(tmp_path / "same")
    rule = json.loads((tmp_path / "same" / "group.json").read_text())
    assert rule["group_key"] == issuer.public.group.to_bytes().hex()
    assert (tmp_path / "same" / "gpk.bin").read_bytes() == issuer.public.group.to_bytes()


def test_a_folder_that_another_process_fills_is_left_alone(tmp_path: Path) -> None:
    with (
        folders.folder_lock(tmp_path / "issuer"),
        pytest.raises(UsageError, match="another process writes keys there now"),
    ):
        folders.init_issuer(tmp_path / "issuer", rule=SOFTWARE)
    assert folders.init_issuer(tmp_path / "issuer", rule=SOFTWARE).public


def test_a_join_into_a_folder_that_another_process_fills_is_refused(tmp_path: Path) -> None:
    with folders.folder_lock(tmp_path / "member"):
        process = _excise("daa", "member", "join", "member", "--nonce", "4711", cwd=tmp_path)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 2
    assert "another process writes keys there now" in said
    assert list((tmp_path / "member").iterdir()) == []


def test_a_list_grows_beyond_a_mebibyte_and_two_revocations_at_once_lose_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.bin"
    path.write_bytes(b"".join(bytes([1]) * 28 + n.to_bytes(4, "big") for n in range(35_000)))
    (tmp_path / "sk.bin").write_bytes(SECRET)
    words = ("daa", "revoke", "keys.bin", "--secret-key", "sk.bin")
    with folders.folder_lock(tmp_path):
        process = _excise(*words, cwd=tmp_path)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert (process.returncode, "another process writes keys" in said) == (2, True)
    process = _excise(*words, cwd=tmp_path)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    assert len(RevokedKeys.from_bytes(path.read_bytes(), count=35_001).keys) == 35_001
