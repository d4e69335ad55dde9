"""Build PSA and CCA tokens, CoRIMs and results, right ones and wrong ones."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from excise.evidence.cbor import Tag, write_cbor
from excise.evidence.corim import ReferenceStore, accept_corim, build_corim, psa_templates
from excise.evidence.corim.profiles import (
    CCA_PLATFORM_PROFILE,
    Endorsements,
    RealmReference,
    ReferenceValue,
    TrustAnchor,
)
from excise.evidence.corim.template import component_template
from excise.evidence.cose import sign1
from excise.evidence.cose_key import VerificationKey, wrap_public_key

NONCE = bytes(range(32))
IMPLEMENTATION = b"qemu-optee-ra-000000000000000001"
SIGNER = b"\x5a" * 32
FIRMWARE = hashlib.sha256(b"firmware").digest()
APPLICATION = hashlib.sha256(b"application").digest()


@cache
def _generated(_name: str, curve: type[ec.EllipticCurve]) -> Any:
    return ec.generate_private_key(curve())


def private_key(name: str = "device", curve: type[ec.EllipticCurve] = ec.SECP256R1) -> Any:
    """Return the same key for the same name in one run of the tests."""
    return _generated(name, curve)


def public_key(
    name: str = "device", curve: type[ec.EllipticCurve] = ec.SECP256R1
) -> VerificationKey:
    return wrap_public_key(private_key(name, curve).public_key())


def component(
    kind: str = "PRoT", value: bytes = FIRMWARE, *, version: str = "4.6.0", **more: Any
) -> dict[int, Any]:
    made: dict[int, Any] = {1: kind, 2: value, 4: version, 5: SIGNER}
    extra = {"signer": 5, "description": 6}
    made |= {extra[name]: held for name, held in more.items()}
    return {key: held for key, held in made.items() if held not in ("", b"")}


def claims_2(**changes: Any) -> dict[int, Any]:
    """Return claims of http://arm.com/psa/2.0.0; `k2396=None` leaves a claim out."""
    made: dict[int, Any] = {
        265: "http://arm.com/psa/2.0.0",
        10: NONCE,
        256: public_key().instance_id(),
        2394: 1,
        2395: 0x3000,
        2396: IMPLEMENTATION,
        2397: b"\x07" * 32,
        2399: [component()],
    }
    return _changed(made, changes)


def claims_1(**changes: Any) -> dict[int, Any]:
    """Return claims of PSA_IOT_PROFILE_1; keys are given without their minus sign."""
    made: dict[int, Any] = {
        -75000: "PSA_IOT_PROFILE_1",
        -75001: 1,
        -75002: 0x3000,
        -75003: IMPLEMENTATION,
        -75004: b"\x07" * 32,
        -75006: [component()],
        -75008: NONCE,
        -75009: public_key().instance_id(),
    }
    return _changed(made, {f"k-{name[1:]}": held for name, held in changes.items()})


def claims_tfm(**changes: Any) -> dict[int, Any]:
    """Return claims of RFC 9783."""
    made = claims_2(k265="tag:psacertified.org,2023:psa#tfm", k2397=None, k268=b"\x07" * 8)
    return _changed(made, changes)


def _changed(made: dict[int, Any], changes: dict[str, Any]) -> dict[int, Any]:
    for name, held in changes.items():
        key = int(name[1:])
        if held is None:
            made.pop(key, None)
        else:
            made[key] = held
    return made


def token(
    claims: dict[int, Any] | bytes | None = None, *, key: Any = None, **headers: Any
) -> bytes:
    payload = claims if isinstance(claims, bytes) else write_cbor(claims or claims_2())
    return sign1(payload, key or private_key(), **headers)


def reference(kind: str = "PRoT", value: bytes = FIRMWARE, *, version: str = "4.6.0",
              signer: bytes = SIGNER) -> dict[str, Any]:  # fmt: skip
    return component_template(kind, value, version=version, signer_id=signer)


def corim(*references: dict[str, Any], build: str = "qemu", keys: tuple[str, ...] = ("device",),
          implementation: bytes = IMPLEMENTATION) -> bytes:  # fmt: skip
    files = psa_templates(
        build=build,
        implementation_id=implementation,
        components=references or (reference(),),
        anchors=[(public_key(name).instance_id(), public_key(name)) for name in keys],
        vendor="ACME",
        model="RoadRunner",
    )
    manifest = files.pop(f"corim-psa-{build}.json")
    return build_corim(manifest, list(files.items()))


def store(**builds: bytes) -> ReferenceStore:
    made = ReferenceStore()
    for name, data in (builds or {"qemu": corim()}).items():
        made = made.with_build(name, accept_corim(data, options=None, source=name))
    return made


def realm_key() -> Any:
    return private_key("realm", ec.SECP384R1)


def realm_point() -> bytes:
    return realm_key().public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def realm_claims(*, nonce: bytes = NONCE, **changes: Any) -> dict[int, Any]:
    made: dict[int, Any] = {
        10: nonce.ljust(64, b"\0"),
        44235: b"\x41" * 64,
        44236: "sha-256",
        44237: realm_point(),
        44238: b"\x43" * 32,
        44239: [b"\x44" * 32] * 4,
        44240: "sha-256",
    }
    return _changed(made, changes)


def platform_claims(**changes: Any) -> dict[int, Any]:
    made: dict[int, Any] = {
        265: "tag:arm.com,2023:cca_platform#1.0.0",
        10: hashlib.sha256(realm_point()).digest(),
        256: public_key("platform", ec.SECP384R1).instance_id(),
        2395: 0x3000,
        2396: IMPLEMENTATION,
        2399: [component("BL")],
        2401: b"\x01\x02\x03",
        2402: "sha-256",
    }
    return _changed(made, changes)


def cca_token(
    platform: dict[int, Any] | None = None,
    realm: dict[int, Any] | None = None,
    *,
    tag: int = 907,
    platform_key: Any = None,
    signing_realm_key: Any = None,
) -> bytes:
    first = sign1(
        write_cbor(platform or platform_claims()),
        platform_key or private_key("platform", ec.SECP384R1),
    )
    second = sign1(write_cbor(realm or realm_claims()), signing_realm_key or realm_key())
    held: dict[int, Any] = {44234: first, 44241: second}
    if tag == 907:
        held = {key: [263, value] for key, value in held.items()}
    return write_cbor(Tag(tag, held))


def cca_store(**changes: Any) -> ReferenceStore:
    key = public_key("platform", ec.SECP384R1)
    value = ReferenceValue(
        implementation_id=IMPLEMENTATION,
        name="BL",
        version="4.6.0",
        algorithm="sha-256",
        digest=FIRMWARE,
        signer_id=SIGNER,
        corim="x",
    )
    realm = RealmReference(
        measurements={"cca.rim": b"\x43" * 32, **{f"cca.rem{n}": b"\x44" * 32 for n in range(4)}}
        | changes.pop("realm", {}),
        personalization_value=changes.pop("personal", b""),
        corim="x",
    )
    held = Endorsements(
        corim="x",
        profile=CCA_PLATFORM_PROFILE,
        values=(value,),
        anchors=(
            TrustAnchor(
                implementation_id=IMPLEMENTATION,
                instance_id=key.instance_id(),
                key=key,
                corim="x",
            ),
        ),
        configs=((IMPLEMENTATION, changes.pop("config", b"\x01\x02\x03")),),
        realms=(realm,),
    )
    return ReferenceStore({"x": [held]})
