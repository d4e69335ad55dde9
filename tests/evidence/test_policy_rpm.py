"""rpm's own list of files as reference values."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from excise.errors import FormatError, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.policy import PolicyBuilder
from excise.evidence.policy.files import read_policy_files
from policy_entries import Entry, appraise, sha256

ZERO = "0" * 64
DUMP = (
    "(contains no files)\n"
    f"/usr/lib/.build-id 4096 1700000000 {ZERO} 040755 root root 0 0 0 X\n"
    f"/bin/a 100 1700000000 {sha256(b'a').hex()} 0100755 root root 0 0 0 X\n"
    f"/usr/share/a file 1 1700000000 {sha256(b'b').hex()} 0100644 root root 0 1 0 X\n"
    f"/usr/bin/link 4 1700000000 {ZERO} 0120777 root root 0 0 0 /a target\n"
    f"/var/log/ghost 0 1700000000 {ZERO} 0100644 root root 0 0 0 X\n"
    f"/etc/empty-digest 0 1700000000  0100644 root root 1 0 0 X\n"
    f"/bin/old 9 1700000000 {hashlib.md5(b'old').hexdigest()} 0100755 root root 0 0 0 X\n"
).encode()


@pytest.mark.parametrize("dump", [DUMP, DUMP[20:], DUMP.replace(b"\n", b"\r\n")])
def test_the_regular_files_of_a_dump_are_allowed(tmp_path: Path, dump: bytes) -> None:
    (tmp_path / "dump").write_bytes(dump)
    policy = read_policy_files([tmp_path / "dump"])
    assert policy.counts() == {"md5": 1, "sha256": 2}
    assert policy.notes == ("files of an rpm dump without a digest, which it does not allow: 2",)
    good = [Entry(), Entry(name=b"/usr/share/a file", digest=sha256(b"b"))]
    assert appraise(good, policy).verdict is Outcome.PASSED
    for name in (b"/usr/bin/link", b"/var/log/ghost", b"/usr/share/a"):
        assert appraise([Entry(name=name, digest=bytes(32))], policy).verdict is Outcome.FAILED


def test_a_dump_and_a_checksum_list_make_one_policy(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(DUMP)
    (tmp_path / "sums").write_bytes(f"{sha256(b'c').hex()}  ./bin/c\n".encode())
    policy = read_policy_files([tmp_path / "dump", tmp_path / "sums"], root=b"/srv")
    entries = [Entry(), Entry(name=b"/srv/bin/c", digest=sha256(b"c"))]
    assert appraise(entries, policy).verdict is Outcome.PASSED


@pytest.mark.parametrize(
    ("more", "line", "reason"),
    [
        (b"/bin/split\n", 9, "not as `rpm -qa --dump` prints a file"),
        (b"/bin/x 1 1 abcd 0100755 root root 0 0 0 X\n", 9, "digest of 4 digits"),
        (f"{sha256(b'c').hex()}  /bin/c\n".encode(), 9, "not as `rpm -qa --dump`"),
    ],
)
def test_a_line_that_is_none_of_a_dump_is_named(more: bytes, line: int, reason: str) -> None:
    builder = PolicyBuilder()
    with pytest.raises(FormatError, match=reason) as caught:
        builder.add_rpm_dump(DUMP + more)
    assert (caught.value.source, caught.value.line) == ("rpm dump", line)


def test_a_dump_without_a_digest_is_refused() -> None:
    lines = [line for line in DUMP.splitlines(keepends=True) if ZERO.encode() in line]
    with pytest.raises(FormatError, match="no digest in it"):
        PolicyBuilder().add_rpm_dump(b"".join(lines))


def test_a_root_that_is_not_absolute_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sums").write_bytes(f"{sha256(b'c').hex()}  bin/c\n".encode())
    with pytest.raises(UsageError, match="is not absolute"):
        read_policy_files([tmp_path / "sums"], root=b"srv")
