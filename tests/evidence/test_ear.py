from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError, UsageError
from excise.evidence.appraisal import VERAISON, appraise_psa
from excise.evidence.base64text import decode_base64, encode_base64url
from excise.evidence.checks import Check, Outcome
from excise.evidence.cose_key import read_key, read_key_set
from excise.evidence.ear import (
    EarAppraisal,
    EarOptions,
    check_ear_claims,
    key_named,
    make_ear,
    sign_ear,
    verify_ear,
)
from excise.evidence.psa import verify_token
from excise.evidence.trust_vector import Status
from token_builders import NONCE, claims_2, component, private_key, public_key, store, token

KEY = public_key("verifier")
SUBMOD = {"ear.status": "affirming", "ear.appraisal-policy-id": "policy:PSA_IOT"}


def _claims(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "eat_profile": "tag:github.com,2023:veraison/ear",
        "iat": int(time.time()),
        "ear.verifier-id": {"build": "1", "developer": "excise"},
        "eat_nonce": encode_base64url(NONCE),
        "submods": {"PSA_IOT": dict(SUBMOD)},
    }
    made |= changes
    return {name: held for name, held in made.items() if held is not None}


def _sign(claims: dict[str, Any], **header: Any) -> str:
    """Return a JWT whose header may say anything, with a signature that holds."""
    if not header:
        return sign_ear(claims, private_key("verifier"))
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    parts = ({"alg": "ES256", "typ": "JWT", **header}, claims)
    signed = ".".join(encode_base64url(json.dumps(part).encode()) for part in parts)
    r, s = decode_dss_signature(private_key("verifier").sign(signed.encode(), ec.ECDSA(SHA256())))
    return f"{signed}.{encode_base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _verify(
    claims: dict[str, Any], *, header: dict[str, Any] | None = None, **options: Any
) -> EarAppraisal:
    return verify_ear(
        _sign(claims, **(header or {})), KEY, nonce=NONCE, options=EarOptions(**options)
    )


def _failed(result: EarAppraisal) -> dict[str, Check]:
    assert result.verdict is Outcome.FAILED
    return {check.id: check for check in result.checks if check.outcome is Outcome.FAILED}


def test_tokens_of_veraison_get_their_right_answers(shared_vectors: Path) -> None:
    vectors = json.loads((shared_vectors / "ear" / "jwt_vectors.json").read_text())
    key = read_key(json.dumps(vectors["public_key_jwk"]).encode())
    first = {
        "": set(),
        "HS256": {"ear.algorithm", "ear.signature"},
        '"none"': {"ear.algorithm", "ear.signature"},
        "formatting": {"ear.format"},
        "empty": {"ear.profile", "ear.issued_at", "ear.verifier_id", "ear.submods"},
        "rubbish": {"ear.format"},
    }
    assert len(vectors["vectors"]) == len(first)
    for vector in vectors["vectors"]:
        word = next(word for word in reversed(list(first)) if word in vector["comment"])
        result = verify_ear(vector["token"], key, nonce=None)
        failed = {check.id for check in result.checks if check.outcome is Outcome.FAILED}
        assert first[word] <= failed, vector["comment"]
        assert (result.verdict is Outcome.PASSED) == (word == "")


def test_claim_sets_of_veraison_get_their_right_answers(shared_vectors: Path) -> None:
    paths = sorted((shared_vectors / "ear").glob("*/*claims*.json"))
    assert len(paths) == 6
    for path in paths:
        checks = check_ear_claims(json.loads(path.read_text()))
        failed = [check for check in checks if check.outcome is Outcome.FAILED]
        assert bool(failed) == path.name.endswith("-ko.json"), path.name


def test_a_result_is_read_by_who_relies_on_it() -> None:
    known = store()
    one = appraise_psa(verify_token(token(), known, nonce=NONCE), known)
    claims = make_ear([one], nonce=NONCE, developer="excise", build="1")
    result = _verify(claims, submodules=("PSA_IOT",), max_age_s=60)
    assert result.verdict is Outcome.PASSED
    assert result.status is Status.AFFIRMING
    submodule = claims["submods"]["PSA_IOT"]
    assert submodule["ear.veraison.policy-claims"]["reasons"]["hardware"].startswith(
        "the signature"
    )
    assert submodule["ear.veraison.annotated-evidence"]["psa-security-lifecycle"] == 12288


def test_the_veraison_preset_gives_veraisons_result_and_nothing_else() -> None:
    known = store()

    def result(**changes: Any) -> dict[str, Any]:
        nonce = changes.pop("nonce", NONCE)
        found = verify_token(token(claims_2(**changes)), known, nonce=nonce)
        one = appraise_psa(found, known, policy=VERAISON)
        claims = make_ear([one], nonce=nonce, developer="excise", build="1", issued_s=7)
        assert claims["iat"] == 7
        submodules = claims["submods"]
        assert list(submodules) == ["PSA_IOT"]
        return dict(submodules["PSA_IOT"])

    good = result()
    assert list(good) == [
        "ear.status",
        "ear.trustworthiness-vector",
        "ear.appraisal-policy-id",
        "ear.veraison.annotated-evidence",
    ]
    assert good["ear.status"] == "affirming"
    bad = result(k2399=[component(value=b"\xee" * 32)])
    assert bad["ear.status"] == "warning"
    assert bad["ear.trustworthiness-vector"]["executables"] == 33
    stale = result(nonce=b"\x75" * 32)
    assert stale == {
        "ear.status": "contraindicated",
        "ear.trustworthiness-vector": dict.fromkeys(good["ear.trustworthiness-vector"], 99),
        "ear.appraisal-policy-id": "policy:PSA_IOT",
        "ear.veraison.policy-claims": {
            "problem": "integrity validation failed: bad evidence: freshness: psa-nonce "
            f"({NONCE.hex()}) does not match session nonce ({'75' * 32})"
        },
    }


def test_an_independent_library_verifies_what_is_signed() -> None:
    from joserfc import jwt
    from joserfc.jwk import ECKey

    key = ECKey.import_key(KEY.pem())
    signed = sign_ear(_claims(), private_key("verifier"), key_id="k1")
    decoded = jwt.decode(signed, key, algorithms=["ES256"])
    assert decoded.claims == _claims(iat=decoded.claims["iat"])
    assert decoded.header == {"alg": "ES256", "typ": "JWT", "kid": "k1"}


@pytest.mark.parametrize(
    ("submods", "got"),
    [
        ({"PSA_IOT": {"ear.status": "none"}}, "PSA_IOT is none"),
        ({"PSA_IOT": {"ear.status": "warning"}}, "PSA_IOT is warning"),
        ({"PSA_IOT": {"ear.status": "contraindicated"}}, "PSA_IOT is contraindicated"),
        ({"PSA_IOT": SUBMOD, "B": {"ear.status": "warning"}}, "B is warning"),
        ({"PSA_IOT": SUBMOD, "B": {"ear.status": 0}}, "B is none"),
        ({"OTHER": SUBMOD}, "PSA_IOT is missing"),
    ],
)
def test_only_affirming_submodules_are_relied_on(submods: dict[str, Any], got: str) -> None:
    failed = _failed(_verify(_claims(submods=submods), submodules=("PSA_IOT",)))
    assert set(failed) == {"ear.status"}
    assert got in failed["ear.status"].got


def test_the_worst_submodule_is_the_status() -> None:
    submods = {"A": SUBMOD, "B": {"ear.status": "warning"}, "C": {"ear.status": "none"}}
    result = _verify(_claims(submods=submods), accept=tuple(Status))
    assert result.status is Status.WARNING
    assert result.verdict is Outcome.PASSED


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"submods": None}, "ear.submods"),
        ({"submods": {}}, "ear.submods"),
        ({"submods": []}, "ear.submods"),
        ({"submods": {"A": 1}}, "ear.submods"),
        ({"submods": {"A": {}}}, "ear.submods"),
        ({"submods": {"A": {"ear.status": "good"}}}, "ear.submods"),
        (
            {"submods": {"A": {**SUBMOD, "ear.trustworthiness-vector": {"hardware": 97}}}},
            "ear.submods",
        ),
        (
            {"submods": {"A": {**SUBMOD, "ear.trustworthiness-vector": {"hardware": 200}}}},
            "ear.submods",
        ),
        ({"submods": {"A": {**SUBMOD, "ear.trustworthiness-vector": {"soft": 2}}}}, "ear.submods"),
        ({"submods": {"A": {**SUBMOD, "ear_status": "affirming"}}}, "ear.submods"),
        ({"iat": None}, "ear.issued_at"),
        ({"iat": "now"}, "ear.issued_at"),
        ({"iat": True}, "ear.issued_at"),
        ({"eat_profile": None}, "ear.profile"),
        ({"eat_profile": "tag:example.com:x"}, "ear.profile"),
        ({"ear.verifier-id": None}, "ear.verifier_id"),
        ({"ear.verifier-id": {"build": "1"}}, "ear.verifier_id"),
        ({"eat_nonce": None}, "ear.nonce"),
        ({"eat_nonce": encode_base64url(NONCE[:31])}, "ear.nonce"),
        ({"iat": int(time.time()) + 3600}, "ear.age"),
        ({"iat": int(time.time()) - 3600}, "ear.age"),
    ],
)
def test_a_result_that_lacks_what_it_must_have_is_refused(
    changes: dict[str, Any], check: str
) -> None:
    assert check in _failed(_verify(_claims(**changes), max_age_s=600))


@pytest.mark.parametrize("submods", [None, {}, []])
def test_a_result_without_a_submodule_is_not_relied_on(submods: Any) -> None:
    failed = _failed(_verify(_claims(submods=submods)))
    assert failed["ear.status"].got == "no submodule"


def test_the_names_of_the_newer_draft_are_read() -> None:
    claims = {
        "eat_profile": "tag:ietf.org,2026:rats/ear#03",
        "iat": int(time.time()),
        "ear_verifier_id": {"build": "1", "developer": "excise"},
        "eat_nonce": encode_base64url(NONCE),
        "submods": {
            "PSA_IOT": {
                "ear_status": "affirming",
                "ear_trustworthiness_vector": {"instance_identity": 2, "hardware": 2},
                "ear_appraisal_policy_ids": ["policy:PSA_IOT"],
            }
        },
    }
    assert _verify(claims).verdict is Outcome.PASSED
    claims["submods"]["PSA_IOT"]["ear_status"] = "warning"
    assert _failed(_verify(claims))["ear.status"].got == "PSA_IOT is warning"


@pytest.mark.parametrize("algorithm", ["none", "HS256", "ES384", "RS256", None, "es256", ["ES256"]])
def test_only_es256_is_taken(algorithm: Any) -> None:
    assert "ear.algorithm" in _failed(_verify(_claims(), header={"alg": algorithm}))


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused() -> None:
    import hashlib
    import hmac

    parts = ({"alg": "HS256", "typ": "JWT"}, _claims())
    signed = ".".join(encode_base64url(json.dumps(part).encode()) for part in parts)
    tag = hmac.new(KEY.pem().encode(), signed.encode(), hashlib.sha256).digest()
    result = verify_ear(f"{signed}.{encode_base64url(tag)}", KEY, nonce=NONCE)
    assert {"ear.algorithm", "ear.signature"} <= set(_failed(result))


def test_a_signature_of_another_length_is_refused_though_its_numbers_are_right() -> None:
    head, claims, signature = _sign(_claims()).split(".")
    raw = decode_base64(signature, field="signature")
    padded = encode_base64url(b"\0" + raw[:32] + b"\0" + raw[32:])
    for held, failed in ((signature, set()), (padded, {"ear.signature"})):
        result = verify_ear(f"{head}.{claims}.{held}", KEY, nonce=NONCE)
        assert {c.id for c in result.checks if c.outcome is Outcome.FAILED} == failed


def test_a_key_in_the_header_is_ignored() -> None:
    numbers = private_key("thief").public_key().public_numbers()
    jwk = {
        "kty": "EC",
        "crv": "P-256",
        "x": encode_base64url(numbers.x.to_bytes(32, "big")),
        "y": encode_base64url(numbers.y.to_bytes(32, "big")),
    }
    honest = _verify(_claims(), header={"jwk": jwk})
    assert honest.verdict is Outcome.PASSED
    assert {check.id: check.got for check in honest.checks}["ear.embedded_key"] == "jwk: ignored"
    header = encode_base64url(json.dumps({"alg": "ES256", "jwk": jwk}).encode())
    claims = encode_base64url(json.dumps(_claims()).encode())
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    r, s = decode_dss_signature(
        private_key("thief").sign(f"{header}.{claims}".encode(), ec.ECDSA(SHA256()))
    )
    forged = f"{header}.{claims}.{encode_base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"
    assert set(_failed(verify_ear(forged, KEY, nonce=NONCE))) == {"ear.signature"}


def test_critical_headers_are_refused() -> None:
    assert "ear.algorithm" in _failed(_verify(_claims(), header={"crit": ["x"]}))


@pytest.mark.parametrize("change", ["", ".x", "=", "+"])
def test_other_forms_are_no_jwt(change: str) -> None:
    good = sign_ear(_claims(), private_key("verifier"))
    broken = f"{good}{change}" if change else f".{good}"
    assert set(_failed(verify_ear(broken, KEY, nonce=NONCE))) == {"ear.format"}


def test_a_name_that_comes_twice_is_refused() -> None:
    header = encode_base64url(b'{"alg":"ES256","alg":"none"}')
    claims = encode_base64url(json.dumps(_claims()).encode())
    result = verify_ear(f"{header}.{claims}.{'A' * 86}", KEY, nonce=NONCE)
    assert _failed(result)["ear.format"].got == "a name occurs twice in a JSON object"


def test_a_result_is_signed_on_p256_alone() -> None:
    with pytest.raises(UsageError, match="ES256 signs with a key on P-256, not secp384r1"):
        sign_ear(_claims(), private_key("x", ec.SECP384R1))
    wrong = public_key("x", ec.SECP384R1)
    result = verify_ear(sign_ear(_claims(), private_key("verifier")), wrong, nonce=NONCE)
    assert "ear.signature" in _failed(result)


@given(st.text(max_size=80))
def test_any_text_gives_a_result_that_fails(text: str) -> None:
    assert verify_ear(text, KEY, nonce=NONCE).verdict is Outcome.FAILED


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-200, 200), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["ear.status", "ear_status", "submods", "iat", "eat_profile",
                             "ear.trustworthiness-vector", "ear.veraison.key-attestation"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["submods", "iat", "eat_nonce", "ear.verifier-id"]), _JSON))
def test_any_claims_give_a_result(claims: dict[str, Any]) -> None:
    assert verify_ear(_sign(claims), KEY, nonce=NONCE).verdict is Outcome.FAILED


@pytest.mark.parametrize(
    ("iat", "told"),
    [
        (lambda now: now + 7200, "s in the future: the verifier's clock or this one is wrong"),
        (lambda _: 1e300, "more than a century in the future"),
        (lambda now: now - 7200, "7,20"),
    ],
)
def test_an_age_that_cannot_be_says_whose_clock_may_be_wrong(
    iat: Callable[[float], float], told: str
) -> None:
    failed = _failed(_verify(_claims(iat=iat(time.time())), max_age_s=86_400 / 24))
    assert told in failed["ear.age"].got
    assert failed["ear.age"].expected.endswith("at most 3,600 s ago")


def test_a_status_comes_with_the_claims_that_are_not_affirming_and_why() -> None:
    vector = {"hardware": 2, "executables": 33, "configuration": 0}
    submodule = {
        "ear.status": "warning",
        "ear.trustworthiness-vector": vector,
        "ear.veraison.policy-claims": {"reasons": {"executables": "PRoT is unknown"}},
    }
    found = _failed(_verify(_claims(submods={"PSA_IOT": submodule})))["ear.status"].detail
    assert found == (
        "PSA_IOT: executables is 33, some software is not recognised (PRoT is unknown)."
    )
    submodule["ear.veraison.policy-claims"] = {"problem": "no trust anchor for evidence"}
    found = _failed(_verify(_claims(submods={"PSA_IOT": submodule})))["ear.status"].detail
    assert found == "PSA_IOT: no trust anchor for evidence."


def _jwk(name: str, kid: str) -> dict[str, str]:
    point = public_key(name).point()
    x, y = (encode_base64url(point[at : at + 32]) for at in (1, 33))
    return {"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": kid}


def test_of_several_keys_the_one_that_the_result_names_is_used() -> None:
    listed = {"keys": [_jwk("other", "new"), _jwk("verifier", "old")]}
    discovery = {"ear-verification-key": listed["keys"][0], "ear-verification-keys": listed}
    for form in (listed, discovery):
        keys = read_key_set(json.dumps(form).encode())
        assert list(keys) == ["new", "old"]
        named = sign_ear(_claims(), private_key("verifier"), key_id="old")
        assert key_named(named, keys) is keys["old"]
        assert verify_ear(named, key_named(named, keys), nonce=NONCE).verdict is Outcome.PASSED
        for kid in ("", "new", "unknown"):
            other = sign_ear(_claims(), private_key("verifier"), key_id=kid)
            assert "ear.signature" in _failed(verify_ear(other, keys["new"], nonce=NONCE))
            assert key_named(other, keys) is keys["new"]
    assert key_named("no result", keys) is keys["new"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"keys": []}', "a set of keys that holds none"),
        ('{"keys": {}}', "a set of keys that holds none"),
        ('{"keys": [1]}', "a key of the set is no JSON object"),
        ('{"keys": ' + "[" * 100_000, "not JSON"),
        ('{"ear-verification-keys": 1}', "it has no 'kty'"),
    ],
)
def test_a_set_without_a_key_is_none(text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_key_set(text.encode(), source="keys.json")
