"""Entries and small policies for tests of the appraisal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from excise.evidence.checks import Outcome
from excise.evidence.policy import (
    AppraisalOptions,
    EntryClass,
    Policy,
    PolicyAppraisal,
    PolicyBuilder,
    appraise_entries,
)
from excise.evidence.signature import Keyring
from quote_builders import ecc_key
from test_signature import certificate, keyid, xattr


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@dataclass(frozen=True)
class Entry:
    name: bytes | None = b"/bin/a"
    digest: bytes = sha256(b"a")
    position: int = 1
    algorithm: str = "sha256"
    digest_type: str = ""
    signature: bytes | None = None
    buf: bytes | None = None
    violation: bool = False
    template: str = "ima-sig"
    start: int = 0

    @property
    def offset(self) -> int:
        return self.start + 100 * self.position


def buffer(name: bytes, data: bytes, **options: object) -> Entry:
    return Entry(name=name, digest=sha256(data), buf=data, template="ima-buf", **options)  # type: ignore[arg-type]


def policy_of(**files: str) -> Policy:
    builder = PolicyBuilder()
    for name, content in (files or {"a": "a"}).items():
        builder.add_digest(
            f"/bin/{name}".encode(), algorithm="sha256", digest=sha256(content.encode())
        )
    return builder.compile()


def appraise(
    entries: Iterable[Entry],
    policy: Policy | None = None,
    *,
    keyring: Keyring | None = None,
    **options: object,
) -> PolicyAppraisal:
    return appraise_entries(
        entries,
        policy or policy_of(),
        keyring=keyring,
        options=AppraisalOptions(**options),  # type: ignore[arg-type]
    )


def outcomes(result: PolicyAppraisal) -> dict[str, Outcome]:
    return {check.id.removeprefix("policy."): check.outcome for check in result.checks}


def classes(result: PolicyAppraisal) -> dict[EntryClass, int]:
    return {entry_class: count for entry_class, count in result.counts.items() if count}


GOOD = Entry()


def keylime(**members: object) -> bytes:
    policy = {
        "meta": {"version": 5, "generator": 0},
        "release": 0,
        "digests": {"/bin/a": [sha256(b"a").hex()], "/bin/b": []},
        "excludes": ["/tmp/.*"],
        "keyrings": {},
        "ima": {"ignored_keyrings": [], "log_hash_alg": "sha1", "dm_policy": None},
        "ima-buf": {},
        "verification-keys": "",
        **members,
    }
    return json.dumps(policy).encode()


def with_excludes(text: bytes) -> Policy:
    builder = PolicyBuilder()
    builder.add_digest(b"/bin/a", algorithm="sha256", digest=sha256(b"a"))
    builder.add_excludes(text)
    return builder.compile()


CERTIFICATE = certificate(ecc_key(), subject_key_id=keyid(ecc_key()))


def keyring_policy(**options: object) -> Policy:
    builder = PolicyBuilder()
    members = {"keyrings": {".ima": [sha256(CERTIFICATE).hex()]}, **options}
    builder.add_keylime(keylime(**members))
    return builder.compile()


def listed_and_signed(**options: object) -> Entry:
    return Entry(
        **{  # type: ignore[arg-type]
            "name": b"/bin/c",
            "digest": sha256(b"content"),
            "signature": xattr(ecc_key()),
            **options,
        }
    )


SIGNED = Entry(name=b"/bin/s", digest=sha256(b"content"), signature=xattr(ecc_key()), position=3)
