"""Where policies come from, checksum lists and keylime policies, and their compiled form."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.evidence.checks import Outcome
from excise.evidence.policy import (
    Policy,
    PolicyBuilder,
)
from policy_entries import (
    CERTIFICATE,
    GOOD,
    SIGNED,
    Entry,
    appraise,
    buffer,
    keylime,
    keyring_policy,
    policy_of,
    sha256,
    with_excludes,
)
from quote_builders import ecc_key, pem

# Sources.


LINES = f"""{sha256(b"a").hex()}  /bin/a
{sha256(b"b").hex()} */bin/b
\\{sha256(b"c").hex()}  /bin/c\\\\d\\ne
SHA256 (/bin/f (1)) = {sha256(b"f").hex()}

# comment
{hashlib.sha512(b"a").hexdigest()}  /bin/a
"""


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_checksum_lists_are_read_in_all_forms(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "sums"
    path.write_bytes(LINES.replace("\n", ending).encode())
    for source in (path, path.read_bytes()):
        builder = PolicyBuilder()
        builder.add_checksums(source)
        policy = builder.compile()
        assert policy.counts() == {"sha256": 4, "sha512": 1}
        names = {b"/bin/a": b"a", b"/bin/b": b"b", b"/bin/c\\d\ne": b"c", b"/bin/f (1)": b"f"}
        entries = [Entry(name=name, digest=sha256(content)) for name, content in names.items()]
        assert appraise(entries, policy).verdict is Outcome.PASSED


def test_lists_that_coreutils_make_are_read(tmp_path: Path) -> None:
    names = [b"plain", b"with space", b"back\\slash", b"new\nline", b"\xff"]
    for name in names:
        (tmp_path / name.decode("utf-8", "surrogateescape")).write_bytes(name)
    made = []
    for options in ([], ["--tag"], ["-b"]):
        done = subprocess.run(
            [b"sha256sum", *(o.encode() for o in options), *names],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        builder = PolicyBuilder()
        builder.add_checksums(done.stdout, root=b"/srv/")
        policy = builder.compile()
        assert policy.notes == ()
        entries = [Entry(name=b"/srv/" + name, digest=sha256(name)) for name in names]
        assert appraise(entries, policy).verdict is Outcome.PASSED
        made.append(policy.digest)
    assert len(set(made)) == 1


def test_relative_names_match_nothing_without_a_root_and_a_note_says_so() -> None:
    line = f"{sha256(b'a').hex()}  ./bin/a\n".encode()
    builder = PolicyBuilder()
    builder.add_checksums(line)
    policy = builder.compile()
    assert appraise([GOOD], policy).verdict is Outcome.FAILED
    assert "1 of 1 names of a checksum list are relative" in policy.notes[0]
    rooted = PolicyBuilder()
    rooted.add_checksums(line, root=b"/")
    assert appraise([GOOD], rooted.compile()).verdict is Outcome.PASSED


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (b"abc", 1, "no space"),
        (b"\n\nxyz  /bin/a", 3, "not a hexadecimal digest"),
        (b"abcd  /bin/a", 1, "2 bytes fit no algorithm"),
        (b"\\" + sha256(b"a").hex().encode() + b"  /a\\q", 1, "unknown escape"),
        (sha256(b"a").hex().encode() + b"  ", 1, "no file name"),
        (sha256(b"a").hex().encode() + b"  /a\0", 1, "NUL byte"),
        (b"BLAKE2b (/a) = 00", 1, "none that IMA measures with"),
    ],
)
def test_line_that_is_no_checksum_is_a_format_error_with_its_number(
    text: bytes, line: int, reason: str
) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        PolicyBuilder().add_checksums(text, label="sums")
    assert (caught.value.line, caught.value.source) == (line, "sums")


def test_empty_sources_and_empty_policies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no digest in it"):
        PolicyBuilder().add_checksums(b"\n# nothing\n")
    with pytest.raises(FormatError, match="an empty policy"):
        PolicyBuilder().compile()
    builder = PolicyBuilder()
    builder.add_keylime(b'{"digests": {}, "excludes": [".*"]}')
    with pytest.raises(FormatError, match="an empty policy"):
        builder.compile()
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        PolicyBuilder().add_checksums(tmp_path / "absent")


# keylime.


def test_keylime_policy_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(keylime())
    for source in (path, path.read_bytes()):
        builder = PolicyBuilder()
        builder.add_keylime(source)
        policy = builder.compile()
        assert policy.notes == ()
        assert appraise([GOOD, Entry(name=b"/tmp/x")], policy).verdict is Outcome.PASSED
        assert appraise([Entry(name=b"/bin/b")], policy).verdict is Outcome.FAILED


def test_older_allowlist_calls_its_digests_hashes() -> None:
    builder = PolicyBuilder()
    builder.add_keylime(
        json.dumps({"meta": {}, "hashes": {"/bin/a": [sha256(b"a").hex()]}}).encode()
    )
    assert appraise([GOOD], builder.compile()).verdict is Outcome.PASSED


def test_what_is_not_used_of_a_keylime_policy_is_declared() -> None:
    builder = PolicyBuilder()
    ima = {"ignored_keyrings": ["*"], "dm_policy": {"version": 1}, "new": 1}
    builder.add_keylime(keylime(ima=ima, excludes=["", "/tmp/"], future=1))
    notes = "\n".join(builder.compile().notes)
    for part in ("'future'", "excludes[0]", "dm_policy", "'ima.new'"):
        assert part in notes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "EOF"),
        (b"[]", "JSON object"),
        (b'{"foo": 1}', "no member of a keylime policy"),
        (b'{"digests": {"/a": ["zz"]}}', "not a hexadecimal digest"),
        (keylime(excludes=["["]), r"excludes\[0\]: '\[' is not a regular expression"),
        (keylime(excludes="x"), "field excludes: not a list of texts"),
        (keylime(keyrings={".ima": ["zz"]}), r"keyrings\.\.ima: 'zz' is not a digest"),
        (keylime(ima=[]), "field ima: not an object"),
        (keylime(**{"verification-keys": "zz"}), "not a keyring of Base64 keys"),
        (keylime(**{"verification-keys": '{"pubkeys": ["AAAA"]}'}), "neither a certificate"),
    ],
)
def test_keylime_policy_with_a_fault_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        PolicyBuilder().add_keylime(text)


def envelope(payload: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    kind = b"application/vnd.keylime+json"
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
    return json.dumps(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": kind.decode(),
            "signatures": [{"keyid": "1", "sig": base64.b64encode(signature).decode()}],
        }
    ).encode()


def test_signed_keylime_policy_is_opened_and_its_signature_checked() -> None:
    signed = envelope(keylime(), ecc_key())
    builder = PolicyBuilder()
    builder.add_keylime(signed, signing_key=pem(ecc_key()))
    policy = builder.compile()
    assert appraise([GOOD], policy).verdict is Outcome.PASSED
    assert policy.notes == ()
    unchecked = PolicyBuilder()
    unchecked.add_keylime(signed)
    assert "no key was given" in unchecked.compile().notes[0]
    with pytest.raises(FormatError, match="no signature is by the given key"):
        PolicyBuilder().add_keylime(signed, signing_key=pem(ecc_key("another")))
    with pytest.raises(FormatError, match="the policy is not signed"):
        PolicyBuilder().add_keylime(keylime(), signing_key=pem(ecc_key()))
    other = json.loads(signed)
    other["payloadType"] = "text/plain"
    with pytest.raises(FormatError, match="holds 'text/plain'"):
        PolicyBuilder().add_keylime(json.dumps(other).encode())


# The compiled form.


def test_digest_names_the_content_and_not_the_order_of_the_sources() -> None:
    left, right = policy_of(a="a", b="b"), policy_of(b="b", a="a")
    assert left.digest == right.digest
    assert left.digest != policy_of(a="a", b="c").digest
    assert left.digest != with_excludes(b"/tmp\n").digest


def test_saved_policy_is_loaded_with_the_same_digest_and_the_same_answers(tmp_path: Path) -> None:
    policy = keyring_policy(excludes=["/tmp/.*", "/run/(a|b)"])
    path = tmp_path / "policy.excise"
    policy.save(path)
    loaded = Policy.load(path)
    assert loaded.digest == policy.digest
    entries = [GOOD, Entry(name=b"/run/a"), buffer(b".ima", CERTIFICATE), SIGNED, Entry(name=b"/x")]
    assert appraise(entries, loaded).as_dict() == appraise(entries, policy).as_dict()
    assert [file.name for file in tmp_path.iterdir()] == ["policy.excise"]


def test_damaged_and_foreign_policies_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.excise"
    policy_of().save(path)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"damaged|out of order"):
        Policy.load(path)
    path.write_bytes(b"hello, world")
    with pytest.raises(FormatError, match="not a compiled policy"):
        Policy.load(path)
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        Policy.load(tmp_path / "absent")


@given(st.dictionaries(st.binary(min_size=1, max_size=12), st.binary(max_size=3), max_size=20))
def test_table_answers_as_a_dictionary_does(files: dict[bytes, bytes]) -> None:
    builder = PolicyBuilder()
    builder.add_digest(b"/bin/a", algorithm="sha256", digest=sha256(b"a"))
    for name, content in files.items():
        builder.add_digest(name, algorithm="sha256", digest=sha256(content))
    table = builder.compile().table
    for name, content in files.items():
        for other in {*files.values(), b"else"}:
            expected = 0 if other == content else 1
            if name == b"/bin/a" and other == b"a":
                expected = 0
            assert table.lookup(name, "sha256", sha256(other)) == expected
        assert table.lookup(name + b"\0", "sha256", sha256(content)) == 3


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_policy_or_a_format_error(data: bytes) -> None:
    for read in ("add_checksums", "add_excludes", "add_keylime", "add_key"):
        builder = PolicyBuilder()
        try:
            getattr(builder, read)(data)
        except FormatError:
            continue
    path_free = data
    from excise._core import DigestTable

    with pytest.raises(FormatError, match=r"."):
        DigestTable.load(path_free)


MEMORY = """
import re, sys
from pathlib import Path
from excise.evidence.policy import PolicyBuilder
builder = PolicyBuilder()
builder.add_checksums(Path(sys.argv[1]))
policy = builder.compile()
before = policy.table.memory_bytes
# Not ru_maxrss: that is never below the peak of the process that started this one.
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(len(policy.table), before, peak)
"""


def test_a_million_digests_take_less_than_100_mib_of_the_whole_process(tmp_path: Path) -> None:
    path = tmp_path / "sums"
    with path.open("wb") as file:
        for number in range(1_000_001):
            digest = b"%064x" % (number * 0x9E3779B97F4A7C15F39CC0605CEDC835)
            file.write(b"%b  /usr/lib/x86_64-linux-gnu/package-%d/file\n" % (digest, number))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    pairs, table_bytes, peak_kib = map(int, done.stdout.split())
    assert pairs == 1_000_001
    assert table_bytes < 60 * 2**20
    assert peak_kib < 100 * 2**10
