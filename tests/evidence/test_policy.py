"""What a policy says of entries: digests, violations, excludes, buffers, signatures, real lists."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from excise.errors import FormatError, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.ima import read_list
from excise.evidence.policy import (
    Accept,
    EntryClass,
    LearnKeys,
    PolicyBuilder,
    Treatment,
    appraise_entries,
)
from excise.evidence.signature import Keyring, SignatureResult
from policy_entries import (
    CERTIFICATE,
    GOOD,
    SIGNED,
    Entry,
    appraise,
    buffer,
    classes,
    keylime,
    keyring_policy,
    listed_and_signed,
    outcomes,
    policy_of,
    sha256,
    with_excludes,
)
from quote_builders import ecc_key, pem
from test_signature import certificate, xattr

# Digests.


def test_listed_file_passes() -> None:
    result = appraise([GOOD, GOOD])
    assert result.verdict is Outcome.PASSED
    assert classes(result) == {EntryClass.ALLOWED: 2}
    assert result.offenders == ()


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (Entry(name=b"/bin/b"), EntryClass.UNKNOWN_FILE),
        (Entry(name=b"/bin/A"), EntryClass.UNKNOWN_FILE),
        (Entry(name=b"bin/a"), EntryClass.UNKNOWN_FILE),
        (Entry(digest=sha256(b"b")), EntryClass.DIGEST_DIFFERS),
        (Entry(digest=sha256(b"a")[:-1]), EntryClass.DIGEST_DIFFERS),
        (Entry(digest=sha256(b"a") + b"\0"), EntryClass.DIGEST_DIFFERS),
        (Entry(algorithm="sha1", digest=bytes(20)), EntryClass.OTHER_ALGORITHM),
        (Entry(digest_type="verity"), EntryClass.OTHER_ALGORITHM),
        (Entry(name=None), EntryClass.UNREADABLE),
        (Entry(digest=b"", algorithm=""), EntryClass.UNREADABLE),
        (Entry(name=b"memfd:kernel", digest=sha256(b"k")), EntryClass.PSEUDO_FILE),
        (Entry(name=b"/memfd:x (deleted)"), EntryClass.PSEUDO_FILE),
    ],
)
def test_one_entry_that_is_not_allowed_fails_beside_a_good_one(
    entry: Entry, found: EntryClass
) -> None:
    result = appraise([GOOD, entry])
    assert outcomes(result)["digests"] is Outcome.FAILED
    assert result.verdict is Outcome.FAILED
    assert classes(result) == {EntryClass.ALLOWED: 1, found: 1}
    (offender,) = result.offenders
    assert (offender.position, offender.offset, offender.entry_class) == (1, 100, found)
    json.dumps(result.as_dict())


def test_differing_digest_shows_expected_and_got() -> None:
    builder = PolicyBuilder()
    for content in (b"a", b"b"):
        builder.add_digest(b"/bin/a", algorithm="sha256", digest=sha256(content))
    result = appraise([Entry(digest=sha256(b"c"))], builder.compile())
    (offender,) = result.offenders
    assert set(offender.expected) == {sha256(b"a").hex(), sha256(b"b").hex()}
    assert offender.got == f"sha256:{sha256(b'c').hex()}"


def test_unknown_file_with_a_listed_digest_says_so() -> None:
    (offender,) = appraise([Entry(name=b"/sbin/a")]).offenders
    assert offender.detail == "the digest is listed under another name"
    (other,) = appraise([Entry(name=b"/sbin/a", digest=sha256(b"x"))]).offenders
    assert other.detail == ""


def test_names_are_bytes_and_compared_as_they_are() -> None:
    builder = PolicyBuilder()
    for name in (b"/bin/\xff", b"/bin/a\nb", b"/bin/a b"):
        builder.add_digest(name, algorithm="sha256", digest=sha256(b"a"))
    policy = builder.compile()
    good = [Entry(name=name) for name in (b"/bin/\xff", b"/bin/a\nb", b"/bin/a b")]
    assert appraise(good, policy).verdict is Outcome.PASSED
    result = appraise([Entry(name=b"/bin/\xfe")], policy)
    assert result.facts["offenders"][0]["name"] == "/bin/\\xfe"


def test_first_offenders_are_kept_in_order_and_all_are_counted() -> None:
    entries = [Entry(name=b"/x%d" % number, position=number) for number in range(50)]
    result = appraise(entries, first=3)
    assert [offender.position for offender in result.offenders] == [0, 1, 2]
    assert result.counts[EntryClass.UNKNOWN_FILE] == 50


def test_no_entry_and_nothing_but_excluded_entries_prove_nothing() -> None:
    assert appraise([]).verdict is Outcome.NOT_COVERED
    builder = PolicyBuilder()
    builder.add_digest(b"/bin/a", algorithm="sha256", digest=sha256(b"a"))
    builder.add_excludes(b".*\n")
    result = appraise([Entry(name=b"/x")], builder.compile())
    assert result.verdict is Outcome.NOT_COVERED
    assert outcomes(result)["digests"] is Outcome.NOT_COVERED
    assert outcomes(result)["excludes"] is Outcome.NOT_COVERED


def test_digest_without_an_algorithm_is_sha1_or_md5_as_the_old_template_has_it() -> None:
    builder = PolicyBuilder()
    digest = hashlib.sha1(b"a").digest()
    builder.add_digest(b"/bin/a", algorithm="sha1", digest=digest)
    policy = builder.compile()
    assert appraise([Entry(digest=digest, algorithm="")], policy).verdict is Outcome.PASSED
    other = appraise([Entry(digest=bytes(20), algorithm="")], policy)
    assert classes(other) == {EntryClass.DIGEST_DIFFERS: 1}


# boot_aggregate.


def test_boot_aggregate_is_left_to_its_own_check_and_no_file_may_pose_as_it() -> None:
    first = Entry(name=b"boot_aggregate", digest=sha256(b"pcrs"), position=0)
    after_kexec = Entry(name=b"boot_aggregate", digest=sha256(b"pcrs"), position=5)
    result = appraise([first, GOOD, after_kexec])
    assert classes(result) == {EntryClass.ALLOWED: 1, EntryClass.BOOT_AGGREGATE: 2}
    assert result.verdict is Outcome.PASSED
    posing = Entry(name=b"boot_aggregate", digest=sha256(b"malware"), position=6)
    assert appraise([first, GOOD, posing]).verdict is Outcome.FAILED
    alone = appraise([posing])
    assert classes(alone) == {EntryClass.UNKNOWN_FILE: 1}


def test_first_row_of_a_resumed_list_does_not_pass_as_boot_aggregate() -> None:
    posing = Entry(name=b"boot_aggregate", digest=sha256(b"malware"), position=0, start=5000)
    assert classes(appraise([posing])) == {EntryClass.UNKNOWN_FILE: 1}


def test_listed_boot_aggregate_is_compared() -> None:
    builder = PolicyBuilder()
    builder.add_digest(b"boot_aggregate", algorithm="sha256", digest=sha256(b"pcrs"))
    policy = builder.compile()
    good = Entry(name=b"boot_aggregate", digest=sha256(b"pcrs"), position=0)
    assert classes(appraise([good], policy)) == {EntryClass.ALLOWED: 1}
    bad = Entry(name=b"boot_aggregate", digest=sha256(b"other"), position=0)
    assert classes(appraise([bad], policy)) == {EntryClass.DIGEST_DIFFERS: 1}


# Violations and pseudo files.


@pytest.mark.parametrize(
    ("treatment", "outcome", "verdict"),
    [
        (Treatment.FAIL, Outcome.FAILED, Outcome.FAILED),
        (Treatment.REPORT, Outcome.NOT_COVERED, Outcome.PASSED),
        (Treatment.IGNORE, Outcome.PASSED, Outcome.PASSED),
    ],
)
def test_violations_do_what_their_setting_says(
    treatment: Treatment, outcome: Outcome, verdict: Outcome
) -> None:
    violation = Entry(violation=True, digest=bytes(32))
    result = appraise([GOOD, violation], violations=treatment)
    assert (outcomes(result)["violations"], result.verdict) == (outcome, verdict)
    (offender,) = result.offenders
    assert offender.detail.startswith("name and digest are not authenticated")
    assert appraise([GOOD], violations=treatment).verdict is Outcome.PASSED


def test_violation_is_reported_by_default() -> None:
    assert outcomes(appraise([GOOD, Entry(violation=True)]))["violations"] is Outcome.NOT_COVERED


def test_violation_is_neither_allowed_nor_excluded_by_its_unauthenticated_name() -> None:
    builder = PolicyBuilder()
    builder.add_digest(b"/bin/a", algorithm="sha256", digest=sha256(b"a"))
    builder.add_excludes(b"/var/log/\n")
    policy = builder.compile()
    for name in (b"/bin/a", b"/var/log/x"):
        result = appraise([GOOD, Entry(name=name, violation=True)], policy)
        assert result.counts[EntryClass.VIOLATION] == 1


@pytest.mark.parametrize(
    ("treatment", "verdict"),
    [
        (Treatment.FAIL, Outcome.FAILED),
        (Treatment.REPORT, Outcome.PASSED),
        (Treatment.IGNORE, Outcome.PASSED),
    ],
)
def test_pseudo_files_do_what_their_setting_says(treatment: Treatment, verdict: Outcome) -> None:
    result = appraise([GOOD, Entry(name=b"memfd:kernel")], pseudo_files=treatment)
    assert result.verdict is verdict
    assert result.counts[EntryClass.PSEUDO_FILE] == 1


# Excludes.


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        (b"/tmp/x", True),
        (b"/var/tmp/x", False),
        (b"/opt/a/cache/\xff", True),
        (b"/OPT/a/cache/", False),
        (b"/Home/x", True),
        (b"/srv/aa", True),
        (b"/srv/ab", False),
    ],
)
def test_excludes_match_bytes_at_the_start(name: bytes, excluded: bool) -> None:
    policy = with_excludes(
        b"# comment\n\n/tmp/.*\r\n/opt/[^/]*/cache/\n(?i)/home/\n/srv/(a)\\1\n/mnt/\n"
    )
    assert policy.is_excluded(name) is excluded
    expected = Outcome.PASSED if excluded else Outcome.FAILED
    assert appraise([GOOD, Entry(name=name)], policy).verdict is expected


def test_pattern_of_uncertain_future_is_taken_without_a_warning() -> None:
    policy = with_excludes(b"/srv/[[x]\n/opt/[ab||c]\n")
    assert policy.is_excluded(b"/srv/[")


def test_invalid_pattern_is_named_with_its_line() -> None:
    with pytest.raises(FormatError, match=r"ex\.txt: line 3: .*'\[' is not a regular") as caught:
        PolicyBuilder().add_excludes(b"/tmp\n\n[\n", label="ex.txt")
    assert caught.value.line == 3


# Buffers and learnt keys.


def test_key_the_policy_lists_is_learnt_and_verifies_the_files_after_it() -> None:
    key = buffer(b".ima", CERTIFICATE)
    result = appraise([key, GOOD, SIGNED], keyring_policy())
    assert result.verdict is Outcome.PASSED
    assert classes(result) == {
        EntryClass.ALLOWED: 1,
        EntryClass.SIGNED: 1,
        EntryClass.BUFFER_ALLOWED: 1,
    }
    assert result.facts["keys_learnt"] == 1
    early = appraise([SIGNED, key], keyring_policy())
    assert early.signature_counts[SignatureResult.UNKNOWN_KEY] == 1
    assert early.verdict is Outcome.FAILED


def test_key_the_policy_does_not_list_fails_and_is_not_learnt_unless_all_are() -> None:
    other = buffer(b".ima", certificate(ecc_key("another"), subject_key_id=None))
    signed = Entry(
        name=b"/bin/s", digest=sha256(b"content"), signature=xattr(ecc_key("another")), position=3
    )
    result = appraise([other, GOOD, signed], keyring_policy())
    assert outcomes(result)["buffers"] is Outcome.FAILED
    assert result.signature_counts[SignatureResult.UNKNOWN_KEY] == 1
    everything = appraise([other, GOOD, signed], learn_keys=LearnKeys.ALL)
    assert everything.signature_counts[SignatureResult.OK] == 1
    nothing = appraise([buffer(b".ima", CERTIFICATE), SIGNED], keyring_policy(), learn_keys="none")
    assert nothing.signature_counts[SignatureResult.UNKNOWN_KEY] == 1


def test_key_whose_entry_has_another_digest_than_its_buffer_is_not_learnt() -> None:
    forged = Entry(name=b".ima", digest=sha256(CERTIFICATE), buf=CERTIFICATE + b"\0")
    result = appraise([forged, SIGNED], keyring_policy())
    assert result.facts["keys_learnt"] == 0


def test_key_learnt_from_one_list_verifies_nothing_of_another() -> None:
    shared = Keyring()
    key = buffer(b".ima", CERTIFICATE)
    first = appraise([key, SIGNED], keyring_policy(), keyring=shared)
    assert first.signature_counts[SignatureResult.OK] == 1
    second = appraise([SIGNED], keyring_policy(), keyring=shared)
    assert second.signature_counts[SignatureResult.UNKNOWN_KEY] == 1
    assert len(shared) == 0


def test_other_buffers_are_compared_by_name() -> None:
    version = b"6.12.0"
    policy = keyring_policy(**{"ima-buf": {"kernel_version": [sha256(version).hex()]}})
    good = buffer(b"kernel_version", version)
    assert appraise([good, GOOD], policy).verdict is Outcome.PASSED
    for bad in (buffer(b"kernel_version", b"6.13.0"), buffer(b"dm_table_load", b"x")):
        result = appraise([bad, GOOD], policy)
        assert outcomes(result)["buffers"] is Outcome.FAILED
        assert result.verdict is Outcome.FAILED
    reported = appraise([buffer(b"x", b"x"), GOOD], policy, buffers=Treatment.REPORT)
    assert reported.verdict is Outcome.PASSED


def test_buffers_are_left_open_where_the_policy_lists_none() -> None:
    result = appraise([buffer(b"kernel_version", b"6.12.0"), GOOD])
    assert outcomes(result)["buffers"] is Outcome.NOT_COVERED
    assert result.verdict is Outcome.PASSED


def test_ignored_keyrings_are_excluded_and_other_buffers_are_not() -> None:
    ima = {"ignored_keyrings": ["*"]}
    builder = PolicyBuilder()
    builder.add_keylime(keylime(ima=ima))
    policy = builder.compile()
    key, other = buffer(b".platform", CERTIFICATE), buffer(b"kernel_version", b"6.12.0")
    assert classes(appraise([key, other], policy)) == {
        EntryClass.EXCLUDED: 1,
        EntryClass.BUFFER_UNKNOWN: 1,
    }


# Signatures.


def keyring_of(name: str = "ak") -> Keyring:
    made = Keyring()
    made.add_bytes(pem(ecc_key(name)), source="key")
    return made


POLICY = policy_of(a="a", c="content")


@pytest.mark.parametrize(
    ("accept", "entry", "failed"),
    [
        (Accept.EITHER, listed_and_signed(), set()),
        (Accept.EITHER, listed_and_signed(name=b"/bin/x"), set()),
        (Accept.EITHER, listed_and_signed(signature=b""), set()),
        (Accept.EITHER, listed_and_signed(name=b"/bin/x", signature=b""), {"digests"}),
        (Accept.DIGEST, listed_and_signed(signature=b""), set()),
        (Accept.DIGEST, listed_and_signed(name=b"/bin/x"), {"digests"}),
        (Accept.SIGNATURE, listed_and_signed(name=b"/bin/x"), set()),
        (Accept.SIGNATURE, listed_and_signed(signature=b""), {"signatures"}),
        (Accept.SIGNATURE, listed_and_signed(signature=None), {"signatures"}),
        (Accept.BOTH, listed_and_signed(), set()),
        (Accept.BOTH, listed_and_signed(signature=b""), {"signatures"}),
        (Accept.BOTH, listed_and_signed(name=b"/bin/x"), {"digests"}),
    ],
)
def test_what_makes_a_file_acceptable_is_a_setting(
    accept: Accept, entry: Entry, failed: set[str]
) -> None:
    result = appraise([entry], POLICY, keyring=keyring_of(), accept=accept)
    found = {name for name, outcome in outcomes(result).items() if outcome is Outcome.FAILED}
    assert found == failed
    assert (result.verdict is Outcome.FAILED) == bool(failed)


@pytest.mark.parametrize("accept", list(Accept))
@pytest.mark.parametrize(
    ("signature", "result"),
    [
        (xattr(ecc_key(), digest=sha256(b"other")), SignatureResult.BAD_SIGNATURE),
        (xattr(ecc_key())[:-1], SignatureResult.MALFORMED),
    ],
    ids=["bad", "malformed"],
)
def test_bad_and_malformed_signatures_always_fail_where_keys_are_given(
    accept: Accept, signature: bytes, result: SignatureResult
) -> None:
    made = appraise(
        [listed_and_signed(signature=signature)], POLICY, keyring=keyring_of(), accept=accept
    )
    assert outcomes(made)["signatures"] is Outcome.FAILED
    assert made.signature_counts[result] == 1
    (offender,) = made.offenders
    assert offender.signature is not None
    assert offender.signature.result is result


def test_signatures_without_keys_are_counted_and_left_open() -> None:
    result = appraise([listed_and_signed(), listed_and_signed(signature=b"\x07")], POLICY)
    assert outcomes(result)["signatures"] is Outcome.NOT_COVERED
    assert result.verdict is Outcome.PASSED
    counts = result.facts["signatures"]
    assert counts == {"unknown key": 1, "malformed signature": 1}


def test_portable_evm_signature_does_not_make_a_file_acceptable() -> None:
    entry = Entry(name=b"/bin/x", signature=b"\x05\x02\x04" + bytes(70))
    result = appraise([entry], POLICY, keyring=keyring_of())
    assert result.verdict is Outcome.FAILED
    assert result.signature_counts[SignatureResult.NO_SIGNATURE] == 1


def test_keys_alone_make_a_policy_and_digests_then_cannot_be_asked_for() -> None:
    builder = PolicyBuilder()
    builder.add_key(pem(ecc_key()))
    policy = builder.compile()
    assert appraise([listed_and_signed()], policy).verdict is Outcome.PASSED
    assert appraise([GOOD], policy).verdict is Outcome.FAILED
    with pytest.raises(UsageError, match="the policy has none"):
        appraise([GOOD], policy, accept=Accept.DIGEST)


def test_keys_of_a_keylime_policy_are_used() -> None:
    der = ecc_key().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ring = json.dumps({"pubkeys": [base64.b64encode(der).decode()], "keyids": [1]})
    builder = PolicyBuilder()
    builder.add_keylime(keylime(**{"verification-keys": ring}))
    assert appraise([SIGNED], builder.compile()).signature_counts[SignatureResult.OK] == 1


# Real lists.


@pytest.mark.parametrize("guest", ["tcb-ng", "tcb-ngv2", "tcb-ng-violations", "k61cloud-ng"])
def test_lists_that_kernels_wrote_pass_by_their_own_digests_and_fail_by_one_other(
    shared_vectors: Path, guest: str
) -> None:
    path = shared_vectors / "ima" / "lab" / guest / "binary_runtime_measurements"
    with read_list(path) as rows:
        entries = list(rows)
    files = [row for row in entries[1:] if not row.violation and row.name is not None]
    assert len(files) > 20
    builder = PolicyBuilder()
    for row in files:
        builder.add_digest(row.name, algorithm=row.algorithm, digest=row.digest)
    good = appraise_entries(entries, builder.compile())
    violations = sum(row.violation for row in entries)
    assert good.verdict is Outcome.PASSED
    assert good.counts[EntryClass.BOOT_AGGREGATE] == 1
    assert good.counts[EntryClass.VIOLATION] == violations
    assert violations == int((path.parent / "violations").read_text())
    assert good.counts[EntryClass.ALLOWED] == len(files)
    target = files[7]
    other = PolicyBuilder()
    for row in files:
        digest = bytes(len(row.digest)) if row.name == target.name else row.digest
        other.add_digest(row.name, algorithm=row.algorithm, digest=digest)
    bad = appraise_entries(entries, other.compile())
    assert bad.verdict is Outcome.FAILED
    assert {offender.name for offender in bad.offenders if offender.expected} == {target.name}


def test_signatures_of_a_fedora_boot_are_told_apart_without_its_key(shared_vectors: Path) -> None:
    path = shared_vectors / "ima" / "kgoldman__ibmtss" / "binary_runtime_measurements_sha256.log"
    with read_list(path) as rows:
        result = appraise_entries(rows, policy_of(), keyring=keyring_of())
    counts = result.signature_counts
    assert counts[SignatureResult.OK] == counts[SignatureResult.BAD_SIGNATURE] == 0
    assert counts[SignatureResult.MALFORMED] == 0
    assert sum(counts.values()) == 361  # all but boot_aggregate


@pytest.mark.parametrize(
    ("log", "result", "detail"),
    [
        ("24-ima-sig-evm-portable", SignatureResult.NO_SIGNATURE, "a portable EVM signature"),
        ("25-sigv3-verity", SignatureResult.UNKNOWN_KEY, "no key"),
    ],
)
def test_attributes_of_the_made_lists_are_named(
    shared_vectors: Path, log: str, result: SignatureResult, detail: str
) -> None:
    with read_list(shared_vectors / "ima" / "made" / f"{log}.bin") as rows:
        appraisal = appraise_entries(rows, policy_of(), keyring=keyring_of())
    details = {
        offender.signature.detail
        for offender in appraisal.offenders
        if offender.signature is not None and offender.signature.result is result
    }
    assert any(text.startswith(detail) for text in details), appraisal.facts
