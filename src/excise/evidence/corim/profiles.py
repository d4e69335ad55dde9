"""What the PSA and CCA profiles of CoRIM say: reference values and trust anchors out of triples.

Two dialects are read. In the present one (`tag:arm.com,2025:psa#1.0.0`) a class is 32 bytes with
tag 560, a measurement has the key `psa.software-component`, and name, version and signer stand in
its value. In the older one (`http://arm.com/psa/iot/1`) a class has tag 600 and a key with tag 601
holds label, version and signer. A document that mixes them is refused: two verifiers would read
two different things.

Sources: draft-fdb-rats-psa-endorsements; draft-ydb-rats-cca-endorsements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from excise.errors import FormatError
from excise.evidence.base64text import decode_base64
from excise.evidence.cbor import Tag
from excise.evidence.checks import Check, Outcome
from excise.evidence.corim.codec import hash_name
from excise.evidence.corim.document import Corim
from excise.evidence.corim.schema import (
    CLASS_ID,
    INSTANCE_ID,
    TAG_BYTES,
    TAG_IMPLEMENTATION_ID,
    TAG_PEM_KEY,
    TAG_REFERENCE_ID,
    TAG_UEID,
)
from excise.evidence.cose_key import VerificationKey, read_key
from excise.units import counted

PSA_PROFILE: Final = "tag:arm.com,2025:psa#1.0.0"
PSA_PROFILES_OLD: Final = ("http://arm.com/psa/iot/1", "http://arm.com/psa/2.0.0")
CCA_PLATFORM_PROFILE: Final = "tag:arm.com,2025:cca_platform#1.0.0"
CCA_REALM_PROFILE: Final = "tag:arm.com,2025:cca_realm#1.0.0"
KNOWN_PROFILES: Final = (PSA_PROFILE, *PSA_PROFILES_OLD, CCA_PLATFORM_PROFILE, CCA_REALM_PROFILE)

SOFTWARE_KEYS: Final = {
    PSA_PROFILE: "psa.software-component",
    CCA_PLATFORM_PROFILE: "cca.software-component",
}
PLATFORM_CONFIG_KEY: Final = "cca.platform-config"
REALM_KEYS: Final = ("cca.rim", "cca.rem0", "cca.rem1", "cca.rem2", "cca.rem3")
REALM_PERSONALIZATION_KEY: Final = "cca.rpv"

_REFERENCE_VALUES, _IDENTITY_KEYS, _VERIFICATION_KEYS = 0, 2, 3
_FULL_DIGESTS: Final = ("sha-256", "sha-384", "sha-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceValue:
    """What one software component is expected to measure.

    Attributes:
        implementation_id: The kind of device it is for.
        name: Its role, such as `PRoT`; empty when any will do.
        version: Empty when any will do.
        algorithm: Name of the digest's algorithm, such as `sha-256`.
        digest: The expected measurement.
        signer_id: Digest of the signer's key; empty when it is not stated.
        corim: Identity of the document it is from.
    """

    implementation_id: bytes
    name: str
    version: str
    algorithm: str
    digest: bytes
    signer_id: bytes
    corim: str

    @property
    def title(self) -> str:
        """Return what to call it in a message."""
        return f"{self.name or self.digest.hex()[:16]} {self.version}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustAnchor:
    """The verification key of one device.

    Attributes:
        implementation_id: The kind of device.
        instance_id: The device: a UEID of 33 bytes.
        key: Its public key.
        corim: Identity of the document it is from.
    """

    implementation_id: bytes
    instance_id: bytes
    key: VerificationKey
    corim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RealmReference:
    """What a CCA realm is expected to measure.

    Attributes:
        measurements: Digest by key: `cca.rim`, `cca.rem0` to `cca.rem3`.
        personalization_value: Empty when any will do.
        corim: Identity of the document it is from.
    """

    measurements: Mapping[str, bytes]
    personalization_value: bytes
    corim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsements:
    """Everything a verifier uses of one document.

    Attributes:
        corim: Identity of the document.
        profile: The profile it was read under.
        values: Reference values of software.
        anchors: Trust anchors.
        configs: Platform configuration by implementation ID (CCA).
        realms: References of realms (CCA).
    """

    corim: str
    profile: str
    values: tuple[ReferenceValue, ...] = ()
    anchors: tuple[TrustAnchor, ...] = ()
    configs: tuple[tuple[bytes, bytes], ...] = ()
    realms: tuple[RealmReference, ...] = ()


def read_endorsements(corim: Corim, *, profile: str = "") -> Endorsements:
    """Return the reference values and trust anchors of a document under its profile.

    Args:
        corim: A document whose structure is checked.
        profile: The profile of a document that names none, from its media type.

    Raises:
        FormatError: The profile is unknown or absent, or a triple is not as it asks.
    """
    named = corim.profile or profile
    if named not in KNOWN_PROFILES:
        raise FormatError(
            f"the profile is {named!r}" if named else "no profile is named",
            source=f"CoRIM {corim.id}",
            field="profile",
            hint=f"Known: {', '.join(KNOWN_PROFILES)}",
        )
    reader = _Reader(corim.id, named)
    for number, comid in enumerate(corim.comids):
        try:
            reader.comid(comid.triples(_REFERENCE_VALUES), comid.triples(_VERIFICATION_KEYS))
            if reader.old:
                # Early documents of the older dialect put the keys under the identity keys.
                reader.comid((), comid.triples(_IDENTITY_KEYS))
        except FormatError as error:
            error.source = f"CoRIM {corim.id}"
            error.field = f"tags[{number}].triples.{error.field}"
            raise
    if not (reader.values or reader.anchors or reader.configs or reader.realms):
        raise FormatError(
            "neither reference values nor trust anchors are in it", source=f"CoRIM {corim.id}"
        )
    return reader.endorsements()


def check_content(corim: Corim) -> Check:
    """Return the check that a document's triples are as its profile asks."""
    try:
        held = read_endorsements(corim)
    except FormatError as error:
        outcome, got = Outcome.FAILED, f"{error.field}: {error.reason}"
    else:
        outcome = Outcome.PASSED
        parts = {
            "reference value": len(held.values),
            "trust anchor": len(held.anchors),
            "configuration": len(held.configs),
            "realm": len(held.realms),
        }
        named = (f"{n} {what}{'s' if n != 1 else ''}" for what, n in parts.items() if n)
        got = ", ".join(named)
    return Check(
        id="corim.content",
        outcome=outcome,
        expected="triples as the profile asks",
        got=got,
        clause="draft-fdb-rats-psa-endorsements",
    )


class _Reader:
    """Collects what the triples of a document say."""

    def __init__(self, corim: str, profile: str) -> None:
        self._corim = corim
        self._profile = profile
        self.old = profile in PSA_PROFILES_OLD
        self.values: list[ReferenceValue] = []
        self.anchors: list[TrustAnchor] = []
        self.configs: list[tuple[bytes, bytes]] = []
        self.realms: list[RealmReference] = []

    def endorsements(self) -> Endorsements:
        """Return what was collected."""
        return Endorsements(
            corim=self._corim,
            profile=self._profile,
            values=tuple(self.values),
            anchors=tuple(self.anchors),
            configs=tuple(self.configs),
            realms=tuple(self.realms),
        )

    def comid(self, references: Sequence[Any], keys: Sequence[Any]) -> None:
        """Take the triples of one CoMID."""
        for index, (environment, measurements) in enumerate(references):
            path = f"reference-values[{index}]"
            if self._profile == CCA_REALM_PROFILE:
                self._realm(measurements, path)
                continue
            if 1 in environment or 2 in environment:
                reason = "reference values are for a class, not for an instance or group"
                raise FormatError(reason, field=f"{path}.environment")
            implementation = self._implementation(environment, path)
            for number, one in enumerate(measurements):
                self._measurement(implementation, one, f"{path}.measurements[{number}]")
        for index, triple in enumerate(keys):
            self._anchor(triple[0], triple[1], f"attester-verification-keys[{index}]")

    def _implementation(self, environment: Mapping[int, Any], path: str) -> bytes:
        held = environment.get(0, {}).get(0)
        wanted = TAG_IMPLEMENTATION_ID if self.old else TAG_BYTES
        if not isinstance(held, Tag) or held.number != wanted or len(held.value) != 32:
            shown = f"{CLASS_ID.to_json(held)}" if held is not None else "absent"
            raise FormatError(
                f"the class id is {shown}, where 32 bytes with tag {wanted} are wanted",
                field=f"{path}.environment.class.id",
                hint=self._mixed(held, wanted),
            )
        return bytes(held.value)

    def _mixed(self, held: Any, wanted: int | None) -> str | None:
        number = held.number if isinstance(held, Tag) else None
        other = number in (TAG_IMPLEMENTATION_ID, TAG_REFERENCE_ID, TAG_BYTES)
        if other and number != wanted:
            return f"Another dialect's form: this document's profile is {self._profile}"
        return None

    def _measurement(self, implementation: bytes, one: Mapping[int, Any], path: str) -> None:
        key, value = one.get(0), one[1]
        if self._profile == CCA_PLATFORM_PROFILE and key == PLATFORM_CONFIG_KEY:
            self.configs.append((implementation, _raw_value(value, path)))
            return
        named: tuple[str, str, bytes]
        if self.old:
            if not isinstance(key, Tag) or key.number != TAG_REFERENCE_ID:
                raise self._wrong_key(key, f"tag {TAG_REFERENCE_ID}", path)
            named = (key.value.get(1, ""), key.value.get(4, ""), key.value[5])
        else:
            wanted = SOFTWARE_KEYS[self._profile]
            if key != wanted:
                raise self._wrong_key(key, repr(wanted), path)
            version = value.get(0, {}).get(0, "")
            named = (value.get(11, ""), version, _signer_id(value, path))
        name, version, signer = named
        for digest in _digests(value, path):
            self.values.append(
                ReferenceValue(
                    implementation_id=implementation,
                    name=name,
                    version=version,
                    algorithm=hash_name(digest),
                    digest=digest[1],
                    signer_id=signer,
                    corim=self._corim,
                )
            )

    def _wrong_key(self, key: Any, wanted: str, path: str) -> FormatError:
        return FormatError(
            f"the measurement's key is {key!r}, where {wanted} is wanted",
            field=f"{path}.key",
            hint=self._mixed(key, TAG_REFERENCE_ID if self.old else None),
        )

    def _anchor(self, environment: Mapping[int, Any], keys: Sequence[Any], path: str) -> None:
        implementation = self._implementation(environment, path)
        instance = environment.get(1)
        if (
            not isinstance(instance, Tag)
            or instance.number != TAG_UEID
            or len(instance.value) != 33
            or instance.value[0] != 1
        ):
            shown = f"{INSTANCE_ID.to_json(instance)}" if instance is not None else "absent"
            reason = f"the instance is {shown}, where a UEID of 33 bytes beginning 0x01 is wanted"
            raise FormatError(reason, field=f"{path}.environment.instance")
        if len(keys) != 1:
            raise FormatError(f"{counted(len(keys), 'key')}, and one is wanted", field=f"{path}")
        self.anchors.append(
            TrustAnchor(
                implementation_id=implementation,
                instance_id=bytes(instance.value),
                key=_anchor_key(keys[0], f"{path}.verification-keys[0]", old=self.old),
                corim=self._corim,
            )
        )

    def _realm(self, measurements: Sequence[Any], path: str) -> None:
        digests: dict[str, bytes] = {}
        personal = b""
        for number, one in enumerate(measurements):
            at = f"{path}.measurements[{number}]"
            key, value = one.get(0), one[1]
            if key == REALM_PERSONALIZATION_KEY:
                personal = _raw_value(value, at)
            elif key in REALM_KEYS:
                found = _digests(value, at)
                if len(found) != 1:
                    raise FormatError(counted(len(found), "digest"), field=f"{at}.value.digests")
                digests[key] = found[0][1]
            else:
                wanted = ", ".join((*REALM_KEYS, REALM_PERSONALIZATION_KEY))
                raise self._wrong_key(key, f"one of {wanted}", at)
        if "cca.rim" not in digests:
            raise FormatError("no cca.rim, the realm's initial measurement", field=path)
        self.realms.append(
            RealmReference(measurements=digests, personalization_value=personal, corim=self._corim)
        )


def _digests(value: Mapping[int, Any], path: str) -> Sequence[Any]:
    found: Sequence[Any] = value.get(2, ())
    if not found:
        raise FormatError("no digests", field=f"{path}.value.digests")
    for digest in found:
        if hash_name(digest) not in _FULL_DIGESTS:
            raise FormatError(
                f"a {hash_name(digest)} digest, where PSA measures with {', '.join(_FULL_DIGESTS)}",
                field=f"{path}.value.digests",
            )
    return found


def _signer_id(value: Mapping[int, Any], path: str) -> bytes:
    keys = value.get(13, ())
    if len(keys) != 1 or not isinstance(keys[0], Tag) or keys[0].number != TAG_BYTES:
        reason = "exactly one signer ID with tag 560 is wanted"
        raise FormatError(reason, field=f"{path}.value.cryptokeys")
    if len(keys[0].value) not in (32, 48, 64):
        reason = f"a signer ID of {len(keys[0].value)} bytes"
        raise FormatError(reason, field=f"{path}.value.cryptokeys")
    return bytes(keys[0].value)


def _raw_value(value: Mapping[int, Any], path: str) -> bytes:
    held = value.get(4)
    if not isinstance(held, Tag) or not isinstance(held.value, bytes):
        raise FormatError("no raw value", field=f"{path}.value.raw-value")
    return held.value


def _anchor_key(held: Any, path: str, *, old: bool) -> VerificationKey:
    number = held.number if isinstance(held, Tag) else None
    if number == TAG_PEM_KEY:
        text = held.value
    elif old and number is None:
        text = held[0]
    else:
        what = "a certificate" if number in (555, 556) else f"tag {number}"
        reason = f"{what}, where a public key with tag {TAG_PEM_KEY} is wanted"
        raise FormatError(reason, field=path)
    try:
        data = text.encode() if "-----BEGIN " in text else decode_base64(text, field=path)
        return read_key(data)
    except FormatError as error:
        raise FormatError(error.reason, field=path) from None
