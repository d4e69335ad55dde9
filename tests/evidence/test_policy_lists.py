"""Entries settled natively and judged one by one: the same result, whatever stands in a list."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from excise._core import PolicyScreen
from excise.errors import UsageError
from excise.evidence.ima import read_list, verify_list
from excise.evidence.ima.source import ListInput
from excise.evidence.policy import (
    Accept,
    AppraisalOptions,
    EntryClass,
    LearnKeys,
    Policy,
    PolicyAppraiser,
    PolicyBuilder,
    appraise_covered,
)
from excise.evidence.policy.model import literal_prefix
from excise.evidence.signature import Keyring
from ima_builder import Entry, ascii_list, binary_list, d_ng, digest, files, ng, pcrs_after
from policy_entries import CERTIFICATE, keylime
from quote_builders import ecc_key, pem
from test_signature import xattr

QUIET = {EntryClass.ALLOWED, EntryClass.EXCLUDED, EntryClass.BOOT_AGGREGATE, EntryClass.SIGNED}
NAMES = (b"/bin/a", b"/bin/b", b"/tmp/x", b"/opt/q/cache/1", b"/var/lib/y", b"boot_aggregate",
         b"memfd:run", b"", b"/bin/\xff\xfe", b"/srv/a b")  # fmt: skip
CONTENTS = (b"a", b"b", b"content")
SIGNATURES = (
    b"", xattr(ecc_key()), xattr(ecc_key("another")), b"\x01" + bytes(20), b"\x04\x04" + bytes(32),
    b"\x07", b"\x03\x02\x04", b"\x03\x02\x63" + bytes(4) + b"\0\x02ab", b"\x05\x02\x04" + bytes(70),
    b"\x03\x02\x04" + bytes(4) + b"\0\x03ab", b"\x06\x03\x04" + bytes(4) + b"\0\x02ab",
)  # fmt: skip
ALGORITHMS = ("sha1", "sha256", "sm3", "md5")


def test_screened_list_gives_what_every_entry_judged_alone_gives() -> None:
    chance, seen = random.Random(10), set()
    for _ in range(60):
        entries = [some_entry(chance) for _ in range(chance.randrange(60))]
        entries[:0] = [ng("boot_aggregate", b"PCRs")] * chance.randrange(2)
        order = chance.choice(("little", "big"))
        made = binary_list(entries, "sha1", order)
        data = made if chance.random() < 0.7 else ascii_list(entries, "sha1", order)
        data = data[: len(data) - chance.choice((0, 0, 5))]
        for policy in (some_policy(chance), some_policy(chance, keys=True)):
            seen |= assert_same(data, policy, some_options(chance), keyring=some_keys(chance))
    assert seen == set(EntryClass)


def test_screened_vectors_give_what_every_entry_judged_alone_gives(shared_vectors: Path) -> None:
    folder = shared_vectors / "ima"
    lists = [
        p for p in folder.rglob("*") if p.suffix in (".bin", ".asc") or "measurements" in p.name
    ]
    assert len(lists) > 40
    chance = random.Random(11)
    for path in lists:
        builder = PolicyBuilder()
        builder.add_digest(b"/nowhere", algorithm="sha256", digest=bytes(32))
        builder.add_excludes(b"/usr/lib/.*\n/etc/[a-m].*\n")
        for row in read_list(path):
            if row.name is not None and not row.violation and chance.random() < 0.8:
                kind = "verity:" if row.digest_type == "verity" else ""
                algorithm = {20: "sha1", 16: "md5"}.get(len(row.digest), "")
                builder.add_digest(
                    row.name, algorithm=kind + (row.algorithm or algorithm), digest=row.digest
                )
        assert_same(path, builder.compile(), AppraisalOptions())


def assert_same(
    data: ListInput,
    policy: Policy,
    options: AppraisalOptions,
    *,
    keyring: Keyring | None = None,
) -> set[EntryClass]:
    try:
        alone, screened = (
            PolicyAppraiser(policy, keyring=keyring, options=options) for _ in range(2)
        )
    except UsageError:
        return set()
    rows = [(row, alone.take(row)) for row in read_list(data)]
    said = [(row, judged) for row, judged in rows if judged not in QUIET]
    with read_list(data, screen=screened.screen()) as opened:
        found = [(row, judged) for row, judged in screened.take_list(opened) if judged not in QUIET]
    assert found == said
    assert screened.state() == alone.state()
    assert screened.finish().as_dict() == alone.finish().as_dict()
    return {judged for _, judged in rows}


def some_entry(chance: random.Random) -> Entry:
    template = chance.choice(
        ("ima", "ima-ng", "ima-ng", "ima-sig", "ima-sig", "ima-sigv2", "ima-buf", "n-ng", "odd")
    )
    name, content = chance.choice(NAMES), chance.choice(CONTENTS)
    algorithm = chance.choice((*ALGORITHMS, "sha256", "sha256"))
    value = digest("sm3_256" if algorithm == "sm3" else algorithm, content)
    kind = chance.choice(("ima", "verity"))
    values: dict[str, bytes | int] = {
        "d": digest("sha1", content),
        "n": name[:250],
        "d-ng": d_ng(algorithm, value),
        "d-ngv2": d_ng(f"{kind}:{algorithm}", value),
        "n-ng": name + b"\0",
        "sig": chance.choice(SIGNATURES),
        "buf": chance.choice((b"", content, CERTIFICATE)),
    }
    if template == "ima-buf" and chance.random() < 0.7:
        values["n-ng"] = chance.choice((b".ima\0", b".evm\0"))
        values["d-ng"] = d_ng("sha256", digest("sha256", bytes(values["buf"])))
    if template == "odd":
        return Entry(template="odd", raw=content)
    return Entry(
        template=template,
        values=values,
        pcr=chance.choice((10, 10, 10, 11)),
        violation=chance.random() < 0.05,
    )


def some_policy(chance: random.Random, *, keys: bool = False) -> Policy:
    builder = PolicyBuilder()
    builder.add_digest(b"/bin/b", algorithm="sha256", digest=digest("sha256", b"b"))
    for name in NAMES:
        for algorithm in ALGORITHMS:
            if chance.random() < 0.4:
                kind = chance.choice(("", "", "verity:"))
                named = "sm3_256" if algorithm == "sm3" else algorithm
                value = digest(named, chance.choice(CONTENTS))
                builder.add_digest(name, algorithm=kind + named, digest=value)
    if chance.random() < 0.7:
        builder.add_excludes(b"/tmp/.*\n/opt/[^/]*/cache/\n/var/lib/\n")
    if keys:
        digests = {".ima": [digest("sha256", CERTIFICATE).hex()]}
        builder.add_keylime(keylime(keyrings=digests, digests={}, excludes=[]))
    return builder.compile()


def some_options(chance: random.Random) -> AppraisalOptions:
    return AppraisalOptions(
        accept=chance.choice((None, *Accept)), learn_keys=chance.choice([*LearnKeys])
    )


def some_keys(chance: random.Random) -> Keyring | None:
    if chance.random() < 0.5:
        return None
    keyring = Keyring()
    keyring.add_bytes(pem(ecc_key()), source="key")
    return keyring


def test_entries_that_are_settled_are_no_rows() -> None:
    listed = files(3000)
    builder = PolicyBuilder()
    for row in read_list(binary_list(listed)):
        builder.add_digest(row.name or b"", algorithm="sha256", digest=row.digest)
    appraiser = PolicyAppraiser(builder.compile())
    data = binary_list([*listed, ng("/new"), *listed])
    with read_list(data, screen=appraiser.screen()) as rows:
        (only,) = appraiser.take_list(rows)
    assert (only[0].name, only[1]) == (b"/new", EntryClass.UNKNOWN_FILE)
    assert only[0].position == 3000
    assert only[0].hash_matches
    assert appraiser.finish().counts[EntryClass.ALLOWED] == 6000


def test_screen_without_digests_leaves_violations_alone() -> None:
    odd = Entry(values={"d-ng": d_ng("sha256", bytes(32)), "n-ng": b"/x\0"}, violation=True)
    with read_list(binary_list([*files(5), odd, *files(5)]), screen=PolicyScreen(None)) as rows:
        assert [row.position for row in rows] == [5]


def test_what_no_value_covers_and_other_registers_are_not_judged() -> None:
    covered = [*files(4), ng("/elsewhere", pcr=11)]
    data = binary_list([*covered, ng("/late")])
    found = verify_list(data, pcrs=pcrs_after(covered))
    builder = PolicyBuilder()
    builder.add_digest(b"/usr/bin/prog0", algorithm="sha256", digest=bytes(32))
    counts = appraise_covered(data, found, builder.compile()).facts["counts"]
    assert counts == {"unknown file": 3, "digest differs": 1}


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("/tmp/.*", b"/tmp/"),
        ("^/tmp/", b"/tmp/"),
        (r"/var/lib/x\.y\ z", b"/var/lib/x.y z"),
        (".*", b""),
        ("/ü", "/ü".encode()),
        ("/a\udcff", b"/a\xff"),
        ("/tmp/.*$", None),
        ("/tmp/x*", None),
        ("/tmp/.+", None),
        ("/tmp/.*?", None),
        ("(?i)/tmp", None),
        (r"/tmp\d", None),
        ("a|b", None),
        ("/tmp/[ab]", None),
        ("/tmp/x{2}", None),
        ("a^b", None),
    ],
)
def test_pattern_that_only_begins_is_a_prefix(pattern: str, prefix: bytes | None) -> None:
    assert literal_prefix(pattern) == prefix
    meant = re.compile(pattern.encode("utf-8", "surrogateescape"))
    for name in (
        b"/tmp/",
        b"/tmp",
        b"x/tmp/",
        "/\xfcx".encode(),
        b"/a\xffb",
        b"/var/lib/x.y z",
        b"",
    ):
        for tried in (name, name + b"\n", b"\n" + name):
            if prefix is not None:
                assert tried.startswith(prefix) is (meant.match(tried) is not None)
