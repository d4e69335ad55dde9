from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import ExciseError, FormatError, Refused, UsageError
from excise.evidence.base64text import encode_base64
from excise.evidence.cbor import Tag, read_cbor, write_cbor
from excise.evidence.checks import Outcome
from excise.evidence.corim import (
    KNOWN_PROFILES,
    PSA_PROFILE,
    CorimOptions,
    ReferenceStore,
    accept_corim,
    build_corim,
    build_from_folder,
    builds_in,
    load_store,
    psa_templates,
    read_comid,
    read_corim,
    read_endorsements,
    sign_corim,
    verify_corim,
)
from excise.evidence.corim.schema import ALL_TAGS, COMID
from excise.evidence.cose import sign1
from excise.evidence.cose_key import read_key
from token_builders import (
    FIRMWARE,
    IMPLEMENTATION,
    SIGNER,
    corim,
    private_key,
    public_key,
    reference,
)

OLD_PROFILE = "http://arm.com/psa/iot/1"
NOT_WRITTEN = {"5", "cend", "cond-endorse-series", "series"}  # COSE_Keys and conditional triples
IN_TIME = 1_700_000_000  # 2023, within the validity of the signed vectors
# The key of the COSE working group's examples, with which veraison/corim signs its own.
VECTOR_KEY = {
    "kty": "EC",
    "crv": "P-256",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
    "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
}


def _vectors(folder: Path) -> Path:
    return folder / "corim" / "veraison__corim"


def test_every_comid_of_veraison_is_read_and_written_back(shared_vectors: Path) -> None:
    paths = sorted(_vectors(shared_vectors).glob("comid__*.cbor"))
    assert len(paths) == 20
    written = 0
    for path in paths:
        comid = read_comid(path.read_bytes(), source=path.name)
        template = json.loads(json.dumps(comid.as_json()))
        if path.stem.rpartition("comid-")[2] in NOT_WRITTEN:
            with pytest.raises(FormatError, match="cannot be written from a template"):
                COMID.to_cbor(template, "")
            continue
        written += 1
        assert COMID.to_cbor(template, "") == comid.content, path.name
    assert written == 16


def test_every_corim_of_veraison_is_read(shared_vectors: Path) -> None:
    paths = sorted(_vectors(shared_vectors).glob("corim__*.cbor"))
    assert len(paths) == 11
    for path in paths:
        found = read_corim(path.read_bytes(), source=path.name)
        assert found.comids, path.name
        assert (found.message is not None) == ("signed-" in path.name.replace("unsigned", "un"))


def test_documents_of_the_psa_profile_get_their_right_answers(shared_vectors: Path) -> None:
    folder = _vectors(shared_vectors)

    def endorse(name: str, profile: str = "") -> Any:
        data = (folder / f"profiles__psa__testcases__{name}.cbor").read_bytes()
        return read_endorsements(read_corim(data), profile=profile)

    held = endorse("psa-valid")
    assert [(one.name, one.version, one.algorithm) for one in held.values] == [
        ("BL", "2.1.0", "sha-256")
    ]
    assert len(held.anchors) == 1
    with pytest.raises(FormatError, match=r"verification-keys\[0\]: 2 keys, and one is wanted"):
        endorse("psa-invalid-attest-key")
    with pytest.raises(FormatError, match="where 32 bytes with tag 560 are wanted"):
        endorse("psa-invalid-impl-id")
    with pytest.raises(FormatError, match=r"no profile is named.*Known: tag:arm.com,2025:psa"):
        endorse("no-profile")
    assert len(endorse("no-profile", PSA_PROFILE).values) == 1


def test_the_validity_of_signed_vectors_is_honoured(shared_vectors: Path) -> None:
    data = (_vectors(shared_vectors) / "corim__testcases__signed-good-corim.cbor").read_bytes()
    found = read_corim(data)
    assert found.signer == "ACME Ltd signing key"
    for now, outcome in ((IN_TIME, Outcome.PASSED), (1_800_000_000, Outcome.FAILED)):
        result = verify_corim(found, options=CorimOptions(require_signed=False, now=now))
        checks = {check.id: check.outcome for check in result.checks}
        assert checks["corim.signature_validity"] is outcome


def test_signed_vectors_verify_with_their_key_and_no_other(shared_vectors: Path) -> None:
    paths = sorted(_vectors(shared_vectors).glob("corim__testcases__signed-*.cbor"))
    assert len(paths) == 3
    key = read_key(json.dumps(VECTOR_KEY).encode())
    for path in paths:
        found = read_corim(path.read_bytes())
        for trusted, verdict in ((key, Outcome.PASSED), (public_key(), Outcome.FAILED)):
            options = CorimOptions(keys=(trusted,), now=IN_TIME)
            assert verify_corim(found, options=options).verdict is verdict, path.name


def test_a_corim_from_templates_reads_back_as_those_templates() -> None:
    data = corim(reference(), reference("ARoT", b"\7" * 32))
    found = read_corim(data)
    assert found.profile == PSA_PROFILE
    shown = found.as_json()
    manifest = {name: held for name, held in shown.items() if name not in ("tags",)}
    again = build_corim(manifest, [(str(i), one) for i, one in enumerate(shown["tags"])])
    assert again == data


def _old_templates() -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    class_ = {
        "id": {"type": "psa.impl-id", "value": encode_base64(IMPLEMENTATION)},
        "vendor": "ACME",
        "model": "RoadRunner",
    }
    identity = {"id": "43BBE37F-2E61-4B33-AED3-53CFF1428B16", "version": 0}
    values = {
        "lang": "en-GB",
        "tag-identity": identity,
        "triples": {
            "reference-values": [
                {
                    "environment": {"class": class_},
                    "measurements": [
                        {
                            "key": {
                                "type": "psa.refval-id",
                                "value": {
                                    "label": "PRoT",
                                    "version": "4.6.0",
                                    "signer-id": encode_base64(SIGNER),
                                },
                            },
                            "value": {"digests": [f"sha-256;{encode_base64(FIRMWARE)}"]},
                        }
                    ],
                }
            ]
        },
    }
    keys = {
        "tag-identity": identity,
        "triples": {
            "attester-verification-keys": [
                {
                    "environment": {
                        "class": class_,
                        "instance": {
                            "type": "ueid",
                            "value": encode_base64(public_key().instance_id()),
                        },
                    },
                    "verification-keys": [{"type": "pkix-base64-key", "value": public_key().pem()}],
                }
            ]
        },
    }
    manifest = {"corim-id": "5c57e8f4-46cd-421b-91c9-08cf93e13cfc", "profiles": [OLD_PROFILE]}
    return manifest, [("values", values), ("keys", keys)]


def test_both_dialects_say_the_same() -> None:
    manifest, comids = _old_templates()
    old = read_endorsements(read_corim(build_corim(manifest, comids)))
    new = read_endorsements(read_corim(corim()))
    for held in (old, new):
        assert [(v.implementation_id, v.name, v.version, v.digest, v.signer_id, v.algorithm)
                for v in held.values] == [
            (IMPLEMENTATION, "PRoT", "4.6.0", FIRMWARE, SIGNER, "sha-256")
        ]  # fmt: skip
        assert [(a.implementation_id, a.instance_id, a.key.spki()) for a in held.anchors] == [
            (IMPLEMENTATION, public_key().instance_id(), public_key().spki())
        ]


def test_documents_without_the_tag_are_read() -> None:
    manifest, comids = _old_templates()
    content = read_cbor(build_corim(manifest, comids), tags=ALL_TAGS).value
    # As the first tools wrote it: no tag, and each CoMID as bytes that hold the tagged map.
    content[1] = [write_cbor(Tag(506, read_cbor(one.value, tags=ALL_TAGS))) for one in content[1]]
    found = read_corim(write_cbor(content))
    assert found.profile == OLD_PROFILE
    assert len(read_endorsements(found).values) == 1


def test_dialects_are_never_mixed() -> None:
    manifest, comids = _old_templates()
    with pytest.raises(FormatError, match=r"tag 560 are wanted. Another dialect's form"):
        read_endorsements(read_corim(build_corim({**manifest, "profiles": [PSA_PROFILE]}, comids)))
    files = psa_templates(build="x", implementation_id=IMPLEMENTATION, components=[reference()],
                          anchors=[], vendor="v", model="m")  # fmt: skip
    new = files["comid-psa-refval-x.json"]
    with pytest.raises(FormatError, match=r"tag 600 are wanted. Another dialect's form"):
        read_endorsements(read_corim(build_corim(manifest, [("new", new)])))
    old_key = copy.deepcopy(comids[0][1])
    old_key["triples"]["reference-values"][0]["environment"]["class"]["id"]["type"] = "bytes"
    named = {"corim-id": "x", "profile": PSA_PROFILE}
    with pytest.raises(FormatError, match=r"key: the measurement's key is Tag\(number=601"):
        read_endorsements(read_corim(build_corim(named, [("mixed", old_key)])))


@pytest.mark.parametrize("digest", ["base64", "base64url", "pair"])
def test_digests_in_json_mix_both_alphabets(digest: str) -> None:
    value = bytes([0xFB, 0xEF, 0xFF] * 11)[:32]
    plain = encode_base64(value)
    url = plain.replace("+", "-").replace("/", "_").rstrip("=")
    assert plain != url
    template = reference(value=value)
    given = {"base64": f"sha-256;{plain}", "base64url": f"sha-256;{url}", "pair": [1, url]}
    template["value"]["digests"] = [given[digest]]
    held = read_endorsements(read_corim(corim(template)))
    assert held.values[0].digest == value


MUTATIONS: list[tuple[str, list[Any], Any, str]] = [
    ("certificate for a key", ["keys", "verification-keys", 0],
     {"type": "pkix-base64-cert", "value": "-----BEGIN CERTIFICATE-----"},
     "a certificate, where a public key with tag 554"),
    ("no instance", ["keys", "environment", "instance"], None, "the instance is absent"),
    ("instance that is a UUID", ["keys", "environment", "instance"],
     {"type": "uuid", "value": "7df7714e-aa04-4638-bcbf-434b1dd720f1"}, "a UEID of 33 bytes"),
    ("reference for an instance", ["values", "environment", "instance"],
     {"type": "ueid", "value": encode_base64(b"\1" + bytes(32))}, "for a class, not for an"),
    ("class that is a UUID", ["values", "environment", "class", "id"],
     {"type": "uuid", "value": "dd6661f0-0928-4401-966b-589ea74e3272"}, "where 32 bytes with tag"),
    ("key that is a number", ["values", "measurements", 0, "key"],
     {"type": "uint", "value": 6}, "the measurement's key is 6"),
    ("no digests", ["values", "measurements", 0, "value", "digests"], None, "no digests"),
    ("prefix of a digest", ["values", "measurements", 0, "value", "digests"],
     ["sha-256-32;AAAAAA=="], "a sha-256-32 digest, where PSA measures with"),
    ("no signer", ["values", "measurements", 0, "value", "cryptokeys"], None, "exactly one signer"),
    ("key that is none", ["keys", "verification-keys", 0],
     {"type": "pkix-base64-key", "value": "-----BEGIN PUBLIC KEY-----"}, "not a public key in PEM"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "reason"), [case[1:] for case in MUTATIONS],
                         ids=[case[0] for case in MUTATIONS])  # fmt: skip
def test_triples_that_break_the_profile_are_refused_with_their_path(
    place: list[Any], value: Any, reason: str
) -> None:
    files = psa_templates(
        build="x",
        implementation_id=IMPLEMENTATION,
        components=[reference()],
        anchors=[(public_key().instance_id(), public_key())],
        vendor="v",
        model="m",
    )
    manifest = files.pop("corim-psa-x.json")
    files = copy.deepcopy(files)
    triples = {
        "values": files["comid-psa-refval-x.json"]["triples"]["reference-values"],
        "keys": files["comid-psa-ta-x.json"]["triples"]["attester-verification-keys"],
    }
    assert read_endorsements(read_corim(build_corim(manifest, list(files.items())))).values
    held = triples[place[0]][0]
    for step in place[1:-1]:
        held = held[step]
    if value is None:
        del held[place[-1]]
    else:
        held[place[-1]] = value
    with pytest.raises(FormatError, match=r"tags\[\d\]\.triples\..*" + reason):
        read_endorsements(read_corim(build_corim(manifest, list(files.items()))))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ({}, "tag-identity is missing"),
        ({"tag-identity": {"id": "x"}}, "triples is missing"),
        ({"tag-identity": {"id": "x"}, "triples": {}}, "none of reference-values"),
        ({"tag-identity": {"id": "x"}, "triple": 1}, "'triple' is unknown. Known: lang"),
        ({"tag-identity": {"id": "x"}, "entities": [{"name": "a", "roles": ["boss"]}],
          "triples": {}}, r"entities\[0\].roles\[0\]: 'boss' is unknown. Known: tagCreator"),
    ],
)  # fmt: skip
def test_templates_that_are_wrong_are_refused_with_their_path(
    template: dict[str, Any], reason: str
) -> None:
    with pytest.raises(FormatError, match=r"my.json: .*" + reason):
        build_corim({"corim-id": "x"}, [("my.json", template)])


@pytest.mark.parametrize(
    ("digest", "reason"),
    [
        ("sha-256;AAAA", "a digest of 3 bytes, and sha-256 has 32"),
        ("sha-256", "is not like `sha-256;base64`"),
        ("sha-256;A*==", "neither base64 nor base64url"),
        ([1], "is not \\[algorithm, base64\\]"),
    ],
)
def test_digests_that_are_wrong_are_refused(digest: Any, reason: str) -> None:
    template = reference()
    template["value"]["digests"] = [digest]
    with pytest.raises(FormatError, match=reason):
        corim(template)


def test_an_unsigned_document_is_refused_where_signed_is_required() -> None:
    data = corim()
    options = CorimOptions(keys=(public_key("vendor"),))
    with pytest.raises(Refused, match="not to be believed") as info:
        accept_corim(data, options=options, source="x")
    assert info.value.differences == ("corim.signed: unsigned, expected a signature",)
    signed = sign_corim(data, private_key("vendor"), signer="vendor", not_after=4_000_000_000)
    assert accept_corim(signed, options=options, source="x").values
    thief = sign_corim(data, private_key("thief"), signer="vendor", not_after=4_000_000_000)
    with pytest.raises(Refused, match="not to be believed"):
        accept_corim(thief, options=options, source="x")
    with pytest.raises(Refused, match="not to be believed"):
        accept_corim(signed, options=CorimOptions(), source="x")  # no key to check it with


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({3: "text/plain"}, "the signed content is 'text/plain'"),
        ({3: None}, "the signed content is None"),
        ({8: None}, "the signature has no CoRIM meta"),
    ],
)
def test_a_signature_over_something_else_makes_no_corim(headers: Any, reason: str) -> None:
    sound = {3: "application/rim+cbor", 8: write_cbor({0: {0: "vendor"}})}
    assert read_corim(sign1(corim(), private_key("vendor"), headers=sound)).signer == "vendor"
    kept = {key: value for key, value in {**sound, **headers}.items() if value is not None}
    with pytest.raises(FormatError, match=reason):
        read_corim(sign1(corim(), private_key("vendor"), headers=kept))


def test_a_signature_that_is_over_is_refused() -> None:
    signed = sign_corim(corim(), private_key("vendor"), signer="vendor", not_after=IN_TIME)
    trusted = (public_key("vendor"),)
    accept_corim(signed, options=CorimOptions(keys=trusted, now=IN_TIME), source="x")
    with pytest.raises(Refused, match="not to be believed"):
        accept_corim(signed, options=CorimOptions(keys=trusted, now=IN_TIME + 1), source="x")


def test_a_document_outside_its_validity_is_refused() -> None:
    files = psa_templates(build="x", implementation_id=IMPLEMENTATION, components=[reference()],
                          anchors=[], vendor="v", model="m")  # fmt: skip
    comid = [("values", files["comid-psa-refval-x.json"])]
    window = {"not-before": "2022-01-01T00:00:00Z", "not-after": "2024-01-01T00:00:00Z"}
    found = read_corim(build_corim({"corim-id": "x", "profile": PSA_PROFILE,
                                    "validity": window}, comid))  # fmt: skip
    outcomes = {}
    for year, now in ((2021, 1_630_000_000), (2023, IN_TIME), (2026, 1_790_000_000)):
        options = CorimOptions(require_signed=False, now=now, profiles=KNOWN_PROFILES)
        outcomes[year] = verify_corim(found, options=options).verdict
    assert outcomes == {2021: "FAILED", 2023: "PASSED", 2026: "FAILED"}


def test_an_unknown_profile_is_refused() -> None:
    files = psa_templates(build="x", implementation_id=IMPLEMENTATION, components=[reference()],
                          anchors=[], vendor="v", model="m")  # fmt: skip
    comid = [("values", files["comid-psa-refval-x.json"])]
    found = read_corim(build_corim({"corim-id": "x", "profile": "http://example.com/p"}, comid))
    with pytest.raises(FormatError, match=r"the profile is 'http://example.com/p'. Known:"):
        read_endorsements(found)
    result = verify_corim(found, options=CorimOptions(require_signed=False, now=IN_TIME,
                                                      profiles=KNOWN_PROFILES))  # fmt: skip
    assert result.verdict is Outcome.FAILED


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    for build, value in (("imx-caam", b"\1" * 32), ("imx-cpu", b"\2" * 32), ("qemu", b"\3" * 32)):
        files = psa_templates(
            build=build,
            implementation_id=IMPLEMENTATION,
            components=[reference(value=value)],
            anchors=[(public_key().instance_id(), public_key())],
            vendor="v",
            model=build,
        )
        for name, content in files.items():
            (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_builds_stand_side_by_side_and_are_chosen_by_name(templates: Path) -> None:
    assert list(builds_in(templates)) == ["imx-caam", "imx-cpu", "qemu"]
    store = load_store([templates])
    assert sorted(store.builds) == ["imx-caam", "imx-cpu", "qemu"]
    assert {name: held[0].digest[0] for name, held in store.values_for(IMPLEMENTATION).items()} == {
        "imx-caam": 1,
        "imx-cpu": 2,
        "qemu": 3,
    }
    assert list(store.only("qemu").values_for(IMPLEMENTATION)) == ["qemu"]
    device = {"implementation_id": IMPLEMENTATION, "instance_id": public_key().instance_id()}
    assert len(store.keys_for(**device)) == 1
    for call in (lambda: store.only("imx"), lambda: build_from_folder(templates, build="imx")):
        with pytest.raises(UsageError, match=r"no build 'imx'. Builds: imx-caam, imx-cpu, qemu"):
            call()


def test_one_manifest_serves_all_builds_of_a_folder(templates: Path) -> None:
    for path in templates.glob("corim-psa-*.json"):
        path.unlink()
    with pytest.raises(FormatError, match=r"no manifest template corim-psa-qemu.json or corim-psa"):
        build_from_folder(templates, build="qemu")
    (templates / "corim-psa.json").write_text(json.dumps({"corim-id": "a", "profile": PSA_PROFILE}))
    assert read_corim(build_from_folder(templates, build="qemu")).id == "a"


def test_files_are_builds_named_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "qemu.cbor").write_bytes(corim())
    assert load_store([tmp_path / "qemu.cbor"]).builds == ("qemu",)
    assert load_store([tmp_path]).builds == ("qemu",)
    (tmp_path / "qemu.cbor").unlink()
    with pytest.raises(FormatError, match="holds no CoRIM and no template"):
        load_store([tmp_path])


def test_a_document_of_the_same_name_replaces_the_older_one() -> None:
    first = accept_corim(corim(), options=None, source="x")
    assert (
        len(ReferenceStore({"x": [first]}).with_build("x", first).values_for(IMPLEMENTATION)["x"])
        == 1
    )


@given(st.binary(max_size=120))
def test_any_bytes_are_a_document_or_an_error(data: bytes) -> None:
    for encoded in (data, b"\xd9\x01\xf5" + data, b"\xd2\x84" + data):
        with suppress(ExciseError):
            read_endorsements(read_corim(encoded))


@given(st.binary(min_size=1, max_size=6), st.integers(0, 500))
def test_any_damage_gives_a_document_or_an_error(damage: bytes, at: int) -> None:
    good = corim()
    with suppress(ExciseError):
        found = read_corim(good[:at] + damage + good[at + len(damage) :])
        found.as_json()
        read_endorsements(found)


_NAMES = st.sampled_from(
    ["tag-identity", "id", "version", "triples", "reference-values", "environment", "class",
     "type", "value", "measurements", "key", "digests", "cryptokeys", "svn", "name", "layer",
     "integrity-registers", "raw-value", "flags", "entities", "roles", "7", "²"]
)  # fmt: skip
_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=6),
        st.sampled_from(["uuid", "bytes", "oid", "1.2.3", "AAAA", "sha-256;AAAA", "2.999"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


@given(_JSON, st.sampled_from(["class", "measurement", "triples", "whole"]))
def test_any_template_is_a_document_that_reads_back_or_an_error(value: Any, place: str) -> None:
    measurement: Any = {"key": {"type": "string", "value": "x"}, "value": {"name": "x"}}
    class_: Any = {"vendor": "v"}
    if place == "class":
        class_ = value
    elif place == "measurement":
        measurement = {**measurement, "value": value}
    triples: Any = {
        "reference-values": [{"environment": {"class": class_}, "measurements": [measurement]}]
    }
    if place == "triples":
        triples = value
    template = {"tag-identity": {"id": "x"}, "triples": triples}
    with suppress(ExciseError):
        data = build_corim({"corim-id": "x"}, [("t", value if place == "whole" else template)])
        read_corim(data).as_json()


def test_an_integer_that_needs_a_tag_is_refused() -> None:
    template = reference()
    template["value"]["svn"] = {"type": "exact-value", "value": 1 << 64}
    with pytest.raises(FormatError, match="is not an unsigned integer of 64 bits"):
        corim(template)
