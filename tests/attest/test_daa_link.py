"""`excise daa link`: which signatures belong together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from daa_group import BASENAME, MESSAGE, NONCE, Group, group, new_group
from excise.attest.daa.keys import SoftwareKey, prove_member_key
from in_process import Program

NAME = BASENAME.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made, stranger = group(), new_group()
    (tmp_path / "m").write_bytes(MESSAGE)
    (tmp_path / "ipk.bin").write_bytes(made.public.to_bytes())
    another = _another_member(made)
    signatures = {
        "a": made.sign(basename=BASENAME),
        "b": made.sign(basename=BASENAME),
        "c": another.sign(basename=BASENAME),
        "elsewhere": made.sign(basename=b"other"),
        "bare": made.sign(),
        "stranger": stranger.sign(basename=BASENAME),
    }
    for name, signature in signatures.items():
        (tmp_path / name).write_bytes(signature.to_bytes())
    (tmp_path / "copy").write_bytes(signatures["a"].to_bytes())
    return tmp_path


def _another_member(made: Group) -> Group:
    key = SoftwareKey.generate()
    credential, proof = made.secret.admit(prove_member_key(key, nonce=NONCE), nonce=NONCE)
    return replace(made, key=key, credential=credential, credential_signature=proof)


def test_signatures_of_one_key_under_one_basename_belong_together(
    folder: Path, excise: Program
) -> None:
    said = excise("daa", "link", "a", "c", "b", "elsewhere", "bare")
    assert said.returncode == 0
    first, *rows = said.stdout.splitlines()
    assert first == "by one key: a, b"
    assert [row.split("…  ")[1] for row in rows[:3]] == ["a, b", "c", "elsewhere"]
    assert rows[3] == "  no pseudonym: bare, which nothing links"
    assert said.stderr.startswith("Not verified: ")
    found = json.loads(excise("daa", "link", "a", "c", "b", "--json").stdout)
    assert (found["linkable"], found["verified"]) == (True, False)
    assert [each["signatures"] for each in found["groups"]] == [["a", "b"], ["c"]]


def test_signatures_of_which_no_two_belong_together_are_answered_with_1(
    folder: Path, excise: Program
) -> None:
    for names in (("a", "c"), ("a", "elsewhere"), ("bare", "a"), ("a", "copy")):
        said = excise("daa", "link", *names)
        assert said.returncode == 1
        assert said.stdout.startswith("no two belong together\n")
    assert "the same signature as a: copy" in said.stdout


def test_signatures_are_verified_before_they_are_linked(folder: Path, excise: Program) -> None:
    words = ("--group", "ipk.bin", "--message", "m", "--basename", NAME)
    said = excise("daa", "link", "a", "b", *words)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("by one key: a, b\n")
    said = excise("daa", "link", "a", "b", "elsewhere", "stranger", "bare", *words)
    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.startswith("by one key: a, b\n")
    assert "does not hold: elsewhere (daa.proof)" in said.stdout
    assert "does not hold: stranger (daa.credential)" in said.stdout
    assert "does not hold: bare (daa.proof, daa.basename)" in said.stdout
    found = json.loads(excise("daa", "link", "a", "elsewhere", *words, "--json").stdout)
    assert found["do_not_hold"] == {"elsewhere": ["daa.proof"]}
    assert found["verified"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("a",), "Name two or more"),
        (("a", "a"), "a: is named twice"),
        (("a", "b", "--basename", "x"), "--basename is for verifying, and no group was given"),
        (("a", "b", "--group", "ipk.bin", "--message", "m"), "Give all three"),
        (
            ("a", "b", "c", *("--group", "ipk.bin", "--basename", "x"), *("-m", "m") * 2),
            "2 messages were given for 3 signatures",
        ),
    ],
)
def test_what_links_nothing_is_refused(
    folder: Path, excise: Program, words: tuple[str, ...], reason: str
) -> None:
    said = excise("daa", "link", *words)
    assert (said.returncode, said.stdout) == (2, "")
    assert reason in said.stderr


def test_what_is_no_signature_is_named(folder: Path, excise: Program) -> None:
    said = excise("daa", "link", "a", "m")
    assert (said.returncode, said.stdout) == (3, "")
    assert said.stderr.startswith("excise: m: ")
