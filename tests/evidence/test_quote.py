from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.evidence.attestation_key import read_attestation_key
from excise.evidence.checks import Outcome
from excise.evidence.quote import QuoteAppraisal, verify_quote
from excise.evidence.tpm_structures import (
    parse_attest,
    parse_public,
    parse_signature,
    qualified_name,
)
from quote_builders import (
    AK_ATTRIBUTES,
    QuoteCase,
    digest_over,
    ecc_key,
    pcr_value,
    pem,
    rsa_key,
    sign,
    sized,
    tpm2b_public,
    tpmt_public,
)

GOOD = QuoteCase()
NONCE = GOOD.fields.extra_data


def appraise(case: QuoteCase, **options: object) -> QuoteAppraisal:
    arguments = {
        "attest": case.attest,
        "signature": case.signature,
        "public_key": pem(case.key),
        "qualifying_data": NONCE,
        "pcrs": case.pcrs,
        **options,
    }
    return verify_quote(
        arguments.pop("attest"),
        arguments.pop("signature"),
        arguments.pop("public_key"),
        **arguments,
    )


def failed(result: QuoteAppraisal) -> set[str]:
    ids = {check.id for check in result.checks if check.outcome is Outcome.FAILED}
    assert (result.verdict is Outcome.FAILED) == bool(ids)
    if ids:
        assert not result.pcrs
    return {identifier.removeprefix("quote.") for identifier in ids}


def outcome(result: QuoteAppraisal, name: str) -> Outcome:
    (found,) = (check for check in result.checks if check.id == f"quote.{name}")
    return found.outcome


SCHEMES = [
    ("ECDSA", "sha256"),
    ("ECDSA", "sha512"),
    ("RSASSA", "sha256"),
    ("RSASSA", "sha384"),
    ("RSAPSS", "sha256"),
]


@pytest.mark.parametrize(("scheme", "algorithm"), SCHEMES)
def test_sound_quote_passes_in_every_scheme_and_proves_its_pcrs(
    scheme: str, algorithm: str
) -> None:
    key = ecc_key() if scheme == "ECDSA" else rsa_key()
    case = QuoteCase(
        fields=replace(GOOD.fields, digest_algorithm=algorithm),
        key=key,
        scheme=scheme,
        algorithm=algorithm,
    )
    result = appraise(case)
    assert result.verdict is Outcome.PASSED
    assert result.pcrs == {"sha256": {index: pcr_value("sha256", index) for index in (0, 7, 10)}}
    assert result.hash_algorithm == algorithm
    ids = [check.id for check in result.checks]
    assert len(ids) == len(set(ids))
    assert all(check.clause for check in result.checks)


def test_sized_structures_are_taken_too() -> None:
    public = tpm2b_public(GOOD.key, scheme="ECDSA")
    result = appraise(GOOD, attest=sized(GOOD.attest), public_key=public)
    assert result.verdict is Outcome.PASSED
    assert outcome(result, "key_attributes") is Outcome.PASSED
    assert appraise(GOOD, public_key=tpmt_public(GOOD.key)).verdict is Outcome.PASSED


def test_der_key_passes_and_leaves_its_attributes_open() -> None:
    der = GOOD.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    result = appraise(GOOD, public_key=der)
    assert result.verdict is Outcome.PASSED
    assert outcome(result, "key_attributes") is Outcome.NOT_COVERED
    assert outcome(result, "key_trust") is Outcome.NOT_COVERED


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"magic": 0xFF544346}, {"magic"}),
        ({"trailing": b"\0"}, {"trailing_bytes"}),
        ({"extra_data": b"verifier's noncf"}, {"qualifying_data"}),
        ({"extra_data": b"verifier's nonce\0"}, {"qualifying_data"}),
        ({"extra_data": b"verifier's nonc"}, {"qualifying_data"}),
        ({"safe": 0}, {"clock_safe"}),
        ({"pcr_digest": bytes(32)}, {"pcr_digest"}),
        ({"pcr_digest": b""}, {"pcr_digest"}),
    ],
)
def test_one_changed_field_under_a_valid_signature_fails_its_own_check(
    changed: dict[str, object], fault: set[str]
) -> None:
    case = replace(GOOD, values=GOOD.pcrs).but(**changed)
    result = appraise(case)
    assert outcome(result, "signature") is Outcome.PASSED
    assert failed(result) == fault


def test_byte_appended_after_signing_fails() -> None:
    result = appraise(GOOD, attest=GOOD.attest + b"\0")
    assert failed(result) == {"signature", "trailing_bytes"}
    result = appraise(GOOD, signature=GOOD.signature + b"\0")
    assert failed(result) == {"trailing_bytes"}


def test_structure_of_another_type_is_no_quote() -> None:
    certified = b"".join(
        [
            struct.pack(">IH", 0xFF544347, 0x8017),
            sized(bytes(34)),
            sized(NONCE),
            struct.pack(">QIIBQ", 5000, 7, 2, 1, 1),
            sized(b"\x00\x0b" + bytes(32)),
            sized(b"\x00\x0b" + bytes(32)),
        ]
    )
    result = appraise(GOOD, attest=certified, signature=sign(certified, GOOD.key))
    assert outcome(result, "signature") is Outcome.PASSED
    assert outcome(result, "trailing_bytes") is Outcome.NOT_COVERED
    assert failed(result) == {"type", "pcr_selection", "pcr_digest"}
    (check,) = (check for check in result.checks if check.id == "quote.type")
    assert check.got == "TPM_ST_ATTEST_CERTIFY"


# Selection: each case differs from a passing one in the values that will be used, or in what the
# TPM was asked for, and in nothing else.


def relabelled(case: QuoteCase, old: int, new: int) -> QuoteCase:
    held = {new if index == old else index: value for index, value in case.pcrs["sha256"].items()}
    return replace(case, values={"sha256": held})


def test_relabelled_pcr_fails_though_its_digest_fits() -> None:
    assert failed(appraise(replace(GOOD, values=GOOD.pcrs))) == set()
    result = appraise(relabelled(GOOD, 10, 11))
    assert failed(result) == {"pcr_selection", "pcr_digest"}
    (check,) = (check for check in result.checks if check.id == "quote.pcr_selection")
    assert check.detail == "Not quoted: sha256:11; quoted without a value to use: sha256:10."


def test_value_that_is_not_quoted_fails() -> None:
    values = {"sha256": {**GOOD.pcrs["sha256"], 11: pcr_value("sha256", 11)}}
    assert failed(appraise(replace(GOOD, values=values))) == {"pcr_selection"}
    other_bank = {**GOOD.pcrs, "sha1": {0: pcr_value("sha1", 0)}}
    assert failed(appraise(replace(GOOD, values=other_bank))) == {"pcr_selection"}


def test_quoted_pcr_without_a_value_fails() -> None:
    held = {index: value for index, value in GOOD.pcrs["sha256"].items() if index != 7}
    result = appraise(replace(GOOD, values={"sha256": held}))
    assert failed(result) == {"pcr_selection", "pcr_digest"}


@pytest.mark.parametrize("selection", [(), (("sha256", ()),)])
@pytest.mark.parametrize("values", [{}, {"sha256": {}}, GOOD.pcrs, None])
def test_quote_over_no_pcr_fails_whatever_values_are_given(
    selection: tuple[tuple[str, tuple[int, ...]], ...], values: object
) -> None:
    result = appraise(GOOD.but(selection=selection), pcrs=values)
    assert failed(result) >= {"pcr_selection"}


def test_no_value_to_use_fails() -> None:
    result = appraise(GOOD, pcrs={})
    assert failed(result) == {"pcr_selection", "pcr_digest"}


def test_pcr_selected_twice_fails() -> None:
    case = GOOD.but(selection=(("sha256", (0, 7)), ("sha256", (7, 10))))
    assert failed(appraise(case)) == {"pcr_selection"}
    split = GOOD.but(selection=(("sha256", (10,)), ("sha256", (0, 7))))
    assert failed(appraise(split)) == set()


def test_values_that_only_concatenate_to_the_quoted_ones_fail() -> None:
    joined = pcr_value("sha256", 0) + pcr_value("sha256", 7)
    held = {0: joined[:20], 7: joined[20:], 10: pcr_value("sha256", 10)}
    result = appraise(replace(GOOD, values={"sha256": held}))
    assert failed(result) == {"pcr_digest"}


@pytest.mark.parametrize(
    "selection",
    [
        (("sha1", (0, 10)), ("sha256", (7,))),
        (("sha256", (7,)), ("sha1", (0, 10))),
        (("sha512", (23, 16)), ("sha1", (0,)), ("sha384", (8, 15))),
    ],
)
def test_banks_count_in_the_order_of_the_quote(
    selection: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    ordered = tuple((bank, tuple(sorted(indices))) for bank, indices in selection)
    case = GOOD.but(selection=ordered)
    assert failed(appraise(case)) == set()
    swapped = case.but(pcr_digest=digest_over(tuple(reversed(ordered)), "sha256"))
    assert failed(appraise(swapped)) == {"pcr_digest"}


def test_pcr_above_23_and_empty_bitmaps_are_read_by_their_bits() -> None:
    case = GOOD.but(selection=(("sha256", (0, 24, 31)), ("sha1", ())), sizeof_select=4)
    assert failed(appraise(case)) == set()
    assert parse_attest(case.attest).pcr_select == (("sha256", (0, 24, 31)), ("sha1", ()))


@pytest.mark.parametrize(("bank", "algorithm"), [("sha1", "sha256"), ("sha256", "sha384")])
def test_pcr_digest_uses_the_hash_of_the_signature_and_not_of_the_bank(
    bank: str, algorithm: str
) -> None:
    selection = ((bank, (0, 1)),)
    fields = replace(GOOD.fields, selection=selection, digest_algorithm=algorithm)
    case = replace(GOOD, fields=fields, algorithm=algorithm)
    assert failed(appraise(case)) == set()
    by_bank = case.but(pcr_digest=digest_over(selection, bank))
    assert failed(appraise(by_bank)) == {"pcr_digest"}


# Key, scheme and hash.


def test_other_key_fails_the_signature_alone() -> None:
    assert failed(appraise(GOOD, public_key=pem(ecc_key("another")))) == {"signature"}


def test_key_of_the_other_kind_fails_scheme_and_signature() -> None:
    assert failed(appraise(GOOD, public_key=pem(rsa_key()))) == {"scheme", "signature"}
    rsa = QuoteCase(key=rsa_key(), scheme="RSASSA")
    assert failed(appraise(rsa, public_key=pem(ecc_key()))) == {"scheme", "signature"}


def test_sha1_fails_unless_allowed_and_then_nothing_else_does() -> None:
    case = QuoteCase(fields=replace(GOOD.fields, digest_algorithm="sha1"), algorithm="sha1")
    assert failed(appraise(case)) == {"hash_algorithm"}
    assert failed(appraise(case, allow_sha1=True)) == set()


def test_key_bound_to_another_scheme_or_hash_fails_the_scheme() -> None:
    key = rsa_key()
    case = QuoteCase(key=key, scheme="RSASSA")
    bound = tpm2b_public(key, scheme="RSASSA")
    assert failed(appraise(case, public_key=bound)) == set()
    pss = tpm2b_public(key, scheme="RSAPSS")
    assert failed(appraise(case, public_key=pss)) == {"scheme"}
    other_hash = tpm2b_public(key, scheme="RSASSA", scheme_hash="sha384")
    assert failed(appraise(case, public_key=other_hash)) == {"scheme"}


@pytest.mark.parametrize("bit", [1, 16, 18])
def test_key_without_a_needed_attribute_fails(bit: int) -> None:
    assert failed(appraise(GOOD, public_key=tpm2b_public(GOOD.key))) == set()
    public = tpm2b_public(GOOD.key, attributes=AK_ATTRIBUTES & ~(1 << bit))
    assert failed(appraise(GOOD, public_key=public)) == {"key_attributes"}


def test_key_that_may_decrypt_fails() -> None:
    public = tpm2b_public(GOOD.key, attributes=AK_ATTRIBUTES | 1 << 17)
    assert failed(appraise(GOOD, public_key=public)) == {"key_attributes"}


def test_short_rsa_key_fails_its_size() -> None:
    case = QuoteCase(key=rsa_key(1024), scheme="RSASSA")
    assert failed(appraise(case)) == {"key_size"}


def test_expected_name_is_compared_where_the_key_has_one() -> None:
    public = tpm2b_public(GOOD.key)
    name = parse_public(public).name
    assert name is not None
    assert name[:2] == b"\x00\x0b"
    result = appraise(GOOD, public_key=public, expected_name=name)
    assert outcome(result, "key_name") is Outcome.PASSED
    other = parse_public(tpm2b_public(ecc_key("another"))).name
    assert failed(appraise(GOOD, public_key=public, expected_name=other)) == {"key_name"}
    unnamed = appraise(GOOD, expected_name=name)
    assert outcome(unnamed, "key_name") is Outcome.NOT_COVERED


def test_qualified_signer_tells_the_hierarchy_and_the_parents() -> None:
    public, parent = parse_public(tpm2b_public(GOOD.key)), parse_public(tpmt_public(rsa_key()))
    primary = qualified_name(public, 0x4000000B.to_bytes(4, "big"))
    parent_name = qualified_name(parent, 0x40000001.to_bytes(4, "big"))
    assert primary is not None
    assert parent_name is not None
    child = qualified_name(public, parent_name)
    result = appraise(GOOD.but(qualified_signer=primary), public_key=public_bytes())
    assert result.facts["hierarchy"] == "endorsement"
    assert outcome(result, "qualified_signer") is Outcome.PASSED
    below = GOOD.but(qualified_signer=child)
    open_chain = appraise(below, public_key=public_bytes())
    assert outcome(open_chain, "qualified_signer") is Outcome.NOT_COVERED
    chain = appraise(below, public_key=public_bytes(), parents=[tpmt_public(rsa_key())])
    assert chain.facts["hierarchy"] == "owner"
    wrong = appraise(below, public_key=public_bytes(), parents=[public_bytes()])
    assert failed(wrong) == {"qualified_signer"}


def public_bytes() -> bytes:
    return tpm2b_public(GOOD.key)


# Freshness.


def test_empty_qualifying_data_fails_unless_allowed() -> None:
    case = GOOD.but(extra_data=b"")
    assert failed(appraise(case, qualifying_data=b"")) == {"qualifying_data"}
    allowed = appraise(case, qualifying_data=b"", allow_empty_qualifying_data=True)
    assert failed(allowed) == set()
    filled = appraise(GOOD, qualifying_data=b"", allow_empty_qualifying_data=True)
    assert failed(filled) == {"qualifying_data"}


BEFORE = GOOD.but(clock_ms=4_000)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, set()),
        ({"clock_ms": 5_000}, set()),
        ({"clock_ms": 5_001}, {"clock"}),
        ({"reset_count": 8}, {"reset_count"}),
        ({"reset_count": 6, "restart_count": 9}, set()),
        ({"restart_count": 3}, {"restart_count"}),
        ({"restart_count": 1}, set()),
        ({"qualified_signer": b"\x00\x0b" + b"\1" * 32}, {"previous_signer"}),
        ({"firmware_version": 1}, {"firmware"}),
    ],
)
def test_earlier_quote_differs_in_one_thing(changed: dict[str, object], fault: set[str]) -> None:
    previous = BEFORE.but(**changed).attest
    assert failed(appraise(GOOD, previous=previous)) == fault


def test_counters_are_compared_modulo_two_to_the_32_since_they_may_be_obfuscated() -> None:
    now = GOOD.but(reset_count=1)
    assert failed(appraise(now, previous=BEFORE.but(reset_count=2**32 - 1).attest)) == set()
    assert failed(appraise(now, previous=BEFORE.but(reset_count=2).attest)) == {"reset_count"}


def test_resets_since_the_earlier_quote_are_counted() -> None:
    result = appraise(GOOD, previous=parse_attest(BEFORE.but(reset_count=4).attest))
    assert result.facts["resets_since_previous"] == 3
    assert outcome(result, "restart_count") is Outcome.NOT_COVERED


def test_unsafe_clock_is_accepted_on_request_and_said_not_to_be_covered() -> None:
    case = GOOD.but(safe=0)
    result = appraise(case, allow_unsafe_clock=True, previous=BEFORE.attest)
    assert failed(result) == set()
    assert outcome(result, "clock_safe") is Outcome.NOT_COVERED
    assert outcome(result, "clock") is Outcome.NOT_COVERED


def test_expected_firmware_version_is_compared() -> None:
    version = GOOD.fields.firmware_version
    assert failed(appraise(GOOD, expected_firmware_version=version)) == set()
    assert failed(appraise(GOOD, expected_firmware_version=version + 1)) == {"firmware"}


# Values found by replay.


def test_quote_without_values_is_not_covered_and_tells_which_values_it_proves() -> None:
    result = appraise(GOOD, pcrs=None)
    assert result.verdict is Outcome.NOT_COVERED
    assert result.proves(GOOD.pcrs)
    other = {"sha256": {**GOOD.pcrs["sha256"], 10: pcr_value("sha256", 11)}}
    assert not result.proves(other)
    assert not result.proves({})
    assert not result.proves(relabelled(GOOD, 10, 11).pcrs)
    unsound = appraise(GOOD, pcrs=None, qualifying_data=b"another nonce")
    assert unsound.verdict is Outcome.FAILED
    assert not unsound.proves(GOOD.pcrs)


# Signature forms.


def test_plain_signatures_are_read_in_the_scheme_of_the_key_or_tried() -> None:
    parsed = parse_signature(GOOD.signature)
    der = encode_dss_signature(parsed.r or 0, parsed.s or 0)
    assert failed(appraise(GOOD, signature=der)) == set()
    for scheme in ("RSASSA", "RSAPSS"):
        case = QuoteCase(key=rsa_key(), scheme=scheme)
        plain = case.signature[6:]
        assert failed(appraise(case, signature=plain)) == set()
        other = {"RSASSA": "RSAPSS", "RSAPSS": "RSASSA"}[scheme]
        bound = tpm2b_public(case.key, scheme=other)
        assert failed(appraise(case, signature=plain, public_key=bound)) == {"signature"}


@pytest.mark.parametrize("scheme", [b"\x00\x14", b"\x00\x18", b"\x00\x10"])
def test_a_plain_signature_that_begins_as_a_scheme_is_plain(scheme: bytes) -> None:
    plain = scheme + bytes(range(2, 256))
    assert parse_signature(plain).rsa == plain


def test_plain_signature_of_another_hash_needs_it_named() -> None:
    case = QuoteCase(
        fields=replace(GOOD.fields, digest_algorithm="sha384"),
        key=rsa_key(),
        scheme="RSASSA",
        algorithm="sha384",
    )
    plain = case.signature[6:]
    assert failed(appraise(case, signature=plain)) == {"signature", "pcr_digest"}
    assert failed(appraise(case, signature=plain, plain_hash="sha384")) == set()


@pytest.mark.parametrize("salt", [0, 20, 32, 222])
def test_a_salt_of_any_length_that_tpms_use_verifies(salt: int) -> None:
    # As long as the digest, as FIPS 186 wants it, or as long as fits into 2048 bits.
    key = rsa_key()
    signature = sign(QuoteCase().attest, key, scheme="RSAPSS", salt=salt)
    found = verify_quote(
        QuoteCase().attest,
        signature,
        pem(key),
        qualifying_data=QuoteCase().fields.extra_data,
        pcrs=QuoteCase().pcrs,
    )
    assert found.verdict is Outcome.PASSED


def test_padded_and_shortened_ecdsa_numbers_are_the_same_numbers() -> None:
    parsed = parse_signature(GOOD.signature)
    head = GOOD.signature[:4]
    for length in (33, 48, 66):
        padded = head + b"".join(
            sized(number.to_bytes(length, "big")) for number in (parsed.r or 0, parsed.s or 0)
        )
        assert failed(appraise(GOOD, signature=padded)) == set()


@pytest.mark.parametrize("number", [0, 1, 2**256 - 1, 2**2000])
def test_impossible_ecdsa_numbers_fail(number: int) -> None:
    forged = GOOD.signature[:4] + sized(number.to_bytes(260, "big")) * 2
    assert failed(appraise(GOOD, signature=forged)) == {"signature"}


@pytest.mark.parametrize(
    "signature",
    [b"\x00\x10", struct.pack(">HH", 5, 0xB) + bytes(32), struct.pack(">HHHH", 0x1A, 0xB, 0, 0)],
)
def test_null_hmac_and_daa_signatures_are_not_taken_for_good(signature: bytes) -> None:
    assert {"scheme", "signature"} <= failed(appraise(GOOD, signature=signature))


# Unreadable bytes.


def test_every_truncation_of_an_attest_is_a_format_error_with_its_field() -> None:
    attest = GOOD.attest
    for length in range(len(attest)):
        with pytest.raises(FormatError, match=r"TPMS_ATTEST\.\w+.*left") as caught:
            appraise(GOOD, attest=attest[:length])
        assert caught.value.offset is not None
        assert caught.value.source == "quote"


def test_selection_that_no_tpm_makes_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="sizeofSelect 5 exceeds 4"):
        appraise(GOOD, attest=GOOD.but(sizeof_select=5).attest)
    with pytest.raises(FormatError, match="17 selections exceed 16"):
        appraise(GOOD, attest=GOOD.but(selection=(("sha256", ()),) * 17).attest)
    with pytest.raises(FormatError, match="2 is neither YES nor NO"):
        appraise(GOOD, attest=GOOD.but(safe=2).attest)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key"),
        (b"\x30\x03abc", "not a public key or certificate in DER"),
        (tpmt_public(ecc_key())[:-1], "needs 32 bytes, 31 are left"),
        (tpmt_public(ecc_key()) + b"\0", "1 bytes after the structure"),
        (tpmt_public(ecc_key())[:-1] + b"\xff", "not a usable key"),
        (struct.pack(">H", 0x25) + bytes(60), "0x0025 is no RSA or ECC key"),
        (b"", "needs 2 bytes"),
    ],
)
def test_unreadable_key_is_a_format_error(key: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        appraise(GOOD, public_key=key)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_structures_or_a_format_error(data: bytes) -> None:
    for parse in (parse_attest, parse_signature, parse_public, read_attestation_key):
        try:
            assert parse(data) is not None
        except FormatError:
            continue


@given(st.integers(0, len(GOOD.attest) - 1), st.integers(1, 255))
def test_any_changed_byte_fails_or_is_unreadable(position: int, change: int) -> None:
    attest = bytearray(GOOD.attest)
    attest[position] ^= change
    try:
        result = appraise(GOOD, attest=bytes(attest))
    except FormatError:
        return
    assert "signature" in failed(result)


# Vectors.


@pytest.mark.parametrize("scheme", ["ecdsa", "rsassa", "rsapss"])
def test_quotes_of_a_software_tpm_in_the_vectors_pass(shared_vectors: Path, scheme: str) -> None:
    folder = shared_vectors / "quote" / "swtpm_quotes"
    meta = json.loads((folder / f"{scheme}.json").read_text())
    pcrs: dict[str, dict[int, bytes]] = {}
    for label, value in meta["pcrs"].items():
        bank, index = label.split(":")
        pcrs.setdefault(bank, {})[int(index)] = bytes.fromhex(value)
    files = [(folder / f"{scheme}.{suffix}").read_bytes() for suffix in ("attest", "sig", "pem")]
    nonce = bytes.fromhex(meta["nonce"])
    assert failed(verify_quote(*files, qualifying_data=nonce, pcrs=pcrs)) == set()
    relabel = {"sha256": {i + 1 if i == 10 else i: v for i, v in pcrs["sha256"].items()}}
    result = verify_quote(*files, qualifying_data=nonce, pcrs=relabel)
    assert failed(result) == {"pcr_selection", "pcr_digest"}


def test_windows_quote_with_sha1_and_no_nonce_passes_only_when_both_are_allowed(
    shared_vectors: Path,
) -> None:
    vector = json.loads((shared_vectors / "quote" / "windows_gcp_shielded_vm.json").read_text())
    decode = base64.b64decode
    quote, log = vector["Quote"], vector["Log"]
    pcrs = {"sha1": {entry["Index"]: decode(entry["Digest"]) for entry in log["PCRs"]}}
    files = [decode(quote["Quote"]), decode(quote["Signature"]), decode(vector["AK"]["Public"])]

    def faults(**options: bool) -> set[str]:
        return failed(verify_quote(*files, qualifying_data=b"", pcrs=pcrs, **options))

    assert faults() == {"hash_algorithm", "qualifying_data"}
    assert faults(allow_sha1=True) == {"qualifying_data"}
    assert faults(allow_empty_qualifying_data=True) == {"hash_algorithm"}
    assert faults(allow_sha1=True, allow_empty_qualifying_data=True) == set()
    creation = [decode(vector["AK"]["CreateAttestation"]), decode(vector["AK"]["CreateSignature"])]
    created = verify_quote(
        *creation,
        files[2],
        qualifying_data=b"",
        pcrs=pcrs,
        allow_sha1=True,
        allow_empty_qualifying_data=True,
    )
    assert failed(created) == {"type", "pcr_selection", "pcr_digest"}
