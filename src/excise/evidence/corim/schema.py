"""CoMID and CoRIM: their members, tags and JSON names, in both dialects of the PSA profile.

Source: draft-ietf-rats-corim (section 5, CoMID; section 4, CoRIM); the tags 600 and 601 are those
of the older PSA profile, http://arm.com/psa/iot/1.
"""

from __future__ import annotations

from typing import Any, Final

from excise.errors import FormatError
from excise.evidence.cbor import Tag
from excise.evidence.corim.codec import (
    BOOLEAN,
    INTEGER,
    TEXT,
    UINT,
    Bytes,
    Choice,
    Codec,
    Digest,
    Field,
    ListOf,
    MapOf,
    Named,
    Oid,
    OneOrList,
    Opaque,
    Row,
    Scalar,
    Struct,
    Time,
    Uri,
    Uuid,
    fail,
)

TAG_CORIM: Final = 501
TAG_SIGNED_CORIM: Final = 502
TAG_COMID: Final = 506
TAG_IMPLEMENTATION_ID: Final = 600
TAG_REFERENCE_ID: Final = 601
TAG_BYTES: Final = 560
TAG_UEID: Final = 550
TAG_PEM_KEY: Final = 554

ALL_TAGS: Final = frozenset({1, 18, 32, 37, 111, *range(500, 570), 600, 601, 602})

_BYTES: Final = Bytes(1)
_SIGNER: Final = Bytes(32, 64)


class TagId:
    """A tag's identity: text, or a UUID as sixteen bytes; a UUID's text in JSON becomes bytes."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is text or sixteen bytes."""
        if isinstance(value, str) and value:
            return
        Uuid().check(value, path)

    def to_cbor(self, value: Any, path: str) -> Any:
        """Return the sixteen bytes of a UUID, or the text."""
        try:
            return Uuid().to_cbor(value, path)
        except FormatError:
            TEXT.check(value, path)
            return value

    def to_json(self, value: Any) -> str:
        """Return the text."""
        return value if isinstance(value, str) else Uuid().to_json(value)


class Profile:
    """A CoRIM's profile: a URI, an object identifier, or (older) a list with one of them."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value names one profile."""
        if isinstance(value, list):
            if len(value) != 1:
                raise fail(path, f"{len(value)} profiles are named")
            value = value[0]
        if isinstance(value, Tag) and value.number == 111:
            Oid().check(value.value, path)
        else:
            Uri().check(value, path)

    def to_cbor(self, value: Any, path: str) -> Any:
        """Return the tagged profile."""
        if isinstance(value, list):
            if len(value) != 1:
                raise fail(path, f"{len(value)} profiles are named")
            TEXT.check(value[0], path)
            return [value[0]]
        kind = value.get("type") if isinstance(value, dict) else "uri"
        held = value.get("value") if isinstance(value, dict) else value
        if kind == "oid":
            return Tag(111, Oid().to_cbor(held, path))
        return Uri().to_cbor(held, path)

    def to_json(self, value: Any) -> Any:
        """Return the profile's text."""
        return profile_name(value)


def profile_name(value: Any) -> str:
    """Return a checked profile as text."""
    if isinstance(value, list):
        value = value[0]
    if isinstance(value, Tag) and value.number == 111:
        return Oid().to_json(value.value)
    return Uri().to_json(value)


VERSION_SCHEMES: Final = {
    1: "multipartnumeric",
    2: "multipartnumeric+suffix",
    3: "alphanumeric",
    4: "decimal",
    16384: "semver",
}

REFERENCE_ID: Final = Struct(
    (
        Field(key=1, json="label", codec=TEXT),
        Field(key=4, json="version", codec=TEXT),
        Field(key=5, json="signer-id", codec=_SIGNER, required=True),
    )
)

_KEY_KINDS: Final[dict[str, tuple[int | None, Codec]]] = {
    "pkix-base64-key": (554, TEXT),
    "pkix-base64-cert": (555, TEXT),
    "pkix-base64-cert-path": (556, TEXT),
    "key-thumbprint": (557, Digest()),
    "cose-key": (558, Opaque(dict, "a COSE_Key")),
    "cert-thumbprint": (559, Digest()),
    "bytes": (560, _BYTES),
    "cert-path-thumbprint": (561, Digest()),
}
CRYPTO_KEY: Final = Choice(kinds=_KEY_KINDS)


class OldKey:
    """A key before tags 554 to 558: `{0: base64 or PEM text}`."""

    def check(self, value: Any, path: str) -> None:
        """Raise unless the value is a map with the key's text."""
        if not isinstance(value, dict) or not isinstance(value.get(0), str):
            raise fail(path, f"{value!r} is no key")

    def to_cbor(self, value: Any, path: str) -> Any:  # noqa: ARG002
        """Raise: this form is only read."""
        raise FormatError("cannot be written", field=path)

    def to_json(self, value: Any) -> str:
        """Return the text."""
        return str(value[0])


VERIFICATION_KEY: Final = Choice(kinds={**_KEY_KINDS, "untagged key": (None, OldKey())})

CLASS_ID: Final = Choice(
    kinds={
        "uuid": (37, Uuid()),
        "oid": (111, Oid()),
        "bytes": (TAG_BYTES, _BYTES),
        "psa.impl-id": (TAG_IMPLEMENTATION_ID, Bytes(32, 32)),
        "int": (551, INTEGER),
    }
)
INSTANCE_ID: Final = Choice(
    kinds={
        "ueid": (TAG_UEID, Bytes(7, 33)),
        "uuid": (37, Uuid()),
        **_KEY_KINDS,
    }
)
MEASUREMENT_KEY: Final = Choice(
    kinds={
        "string": (None, TEXT),
        "uint": (None, UINT),
        "uuid": (37, Uuid()),
        "oid": (111, Oid()),
        "psa.refval-id": (TAG_REFERENCE_ID, REFERENCE_ID),
        "cca.platform-config-id": (602, TEXT),
    }
)

CLASS: Final = Struct(
    (
        Field(key=0, json="id", codec=CLASS_ID),
        Field(key=1, json="vendor", codec=TEXT),
        Field(key=2, json="model", codec=TEXT),
        Field(key=3, json="layer", codec=UINT),
        Field(key=4, json="index", codec=UINT),
    ),
    one_of=("id", "vendor", "model", "layer", "index"),
)
ENVIRONMENT: Final = Struct(
    (
        Field(key=0, json="class", codec=CLASS),
        Field(key=1, json="instance", codec=INSTANCE_ID),
        Field(
            key=2,
            json="group",
            codec=Choice(kinds={"uuid": (37, Uuid()), "bytes": (TAG_BYTES, _BYTES)}),
        ),
    ),
    one_of=("class", "instance", "group"),
)

_FLAG_NAMES: Final = (
    "is-configured",
    "is-secure",
    "is-recovery",
    "is-debug",
    "is-replay-protected",
    "is-integrity-protected",
    "is-runtime-meas",
    "is-immutable",
    "is-tcb",
    "is-confidentiality-protected",
)
_NULLABLE_INT: Final = Choice(
    kinds={"int": (None, INTEGER), "none": (None, Scalar(type(None), "null"))}, default="int"
)
_RANGE: Final = Row((("min", _NULLABLE_INT), ("max", _NULLABLE_INT)))
_MASKED: Final = Row((("value", _BYTES), ("mask", _BYTES)))

MEASUREMENT_VALUE: Final = Struct(
    (
        Field(
            key=0,
            json="version",
            codec=Struct(
                (
                    Field(key=0, json="value", codec=TEXT, required=True),
                    Field(key=1, json="scheme", codec=Named(VERSION_SCHEMES)),
                )
            ),
        ),
        Field(
            key=1,
            json="svn",
            codec=Choice(
                kinds={
                    "exact-value": (552, UINT),
                    "min-value": (553, UINT),
                    "plain": (None, UINT),
                },
                default="plain",
            ),
        ),
        Field(key=2, json="digests", codec=ListOf(Digest())),
        Field(
            key=3,
            json="flags",
            codec=Struct(
                tuple(
                    Field(key=number, json=name, codec=BOOLEAN)
                    for number, name in enumerate(_FLAG_NAMES)
                )
            ),
        ),
        Field(
            key=4,
            json="raw-value",
            codec=Choice(kinds={"bytes": (TAG_BYTES, _BYTES), "masked": (563, _MASKED)}),
        ),
        Field(key=5, json="raw-value-mask", codec=_BYTES),
        Field(key=6, json="mac-addr", codec=Bytes(6, 8)),
        Field(key=7, json="ip-addr", codec=Bytes(4, 16)),
        Field(key=8, json="serial-number", codec=TEXT),
        Field(key=9, json="ueid", codec=Bytes(7, 33)),
        Field(key=10, json="uuid", codec=Uuid()),
        Field(key=11, json="name", codec=TEXT),
        Field(key=13, json="cryptokeys", codec=ListOf(CRYPTO_KEY)),
        Field(key=14, json="integrity-registers", codec=MapOf(ListOf(Digest()))),
        Field(
            key=15,
            json="int-range",
            codec=Choice(kinds={"range": (564, _RANGE), "int": (None, INTEGER)}),
        ),
    )
)
MEASUREMENT: Final = Struct(
    (
        Field(key=0, json="key", codec=MEASUREMENT_KEY),
        Field(key=1, json="value", codec=MEASUREMENT_VALUE, required=True),
        Field(key=2, json="authorized-by", codec=ListOf(CRYPTO_KEY)),
    )
)

_VALUES: Final = ListOf(Row((("environment", ENVIRONMENT), ("measurements", ListOf(MEASUREMENT)))))
_CONDITIONS: Final = Struct(
    (
        Field(key=0, json="key", codec=MEASUREMENT_KEY),
        Field(key=1, json="authorized-by", codec=ListOf(CRYPTO_KEY)),
    )
)
_KEYS: Final = ListOf(
    Row(
        (
            ("environment", ENVIRONMENT),
            ("verification-keys", ListOf(VERIFICATION_KEY)),
            ("conditions", _CONDITIONS),
        ),
        optional=1,
    )
)
_ENVIRONMENTS: Final = ListOf(
    Row((("environment", ENVIRONMENT), ("environments", ListOf(ENVIRONMENT))))
)
_SERIES: Final = Opaque(list, "an array")

TRIPLES: Final = Struct(
    (
        Field(key=0, json="reference-values", codec=_VALUES),
        Field(key=1, json="endorsed-values", codec=_VALUES),
        Field(key=2, json="dev-identity-keys", codec=_KEYS),
        Field(key=3, json="attester-verification-keys", codec=_KEYS),
        Field(key=4, json="dependency-triples", codec=_ENVIRONMENTS),
        Field(key=5, json="membership-triples", codec=_ENVIRONMENTS),
        Field(key=6, json="coswid-triples", codec=_SERIES),
        Field(key=8, json="conditional-endorsement-series", codec=_SERIES),
        Field(key=10, json="conditional-endorsements", codec=_SERIES),
    ),
    one_of=(
        "reference-values",
        "endorsed-values",
        "dev-identity-keys",
        "attester-verification-keys",
        "dependency-triples",
        "membership-triples",
        "coswid-triples",
        "conditional-endorsement-series",
        "conditional-endorsements",
    ),
)


def _entities(roles: dict[int, str]) -> ListOf:
    return ListOf(
        Struct(
            (
                Field(key=0, json="name", codec=TEXT, required=True),
                Field(key=1, json="regid", codec=Uri()),
                Field(key=2, json="roles", codec=ListOf(Named(roles)), required=True),
            )
        )
    )


COMID: Final = Struct(
    (
        Field(key=0, json="lang", codec=TEXT),
        Field(
            key=1,
            json="tag-identity",
            codec=Struct(
                (
                    Field(key=0, json="id", codec=TagId(), required=True),
                    Field(key=1, json="version", codec=UINT),
                ),
                defaults=((1, 0),),
            ),
            required=True,
        ),
        Field(
            key=2,
            json="entities",
            codec=_entities({0: "tagCreator", 1: "creator", 2: "maintainer"}),
        ),
        Field(
            key=3,
            json="linked-tags",
            codec=ListOf(
                Struct(
                    (
                        Field(key=0, json="target", codec=TagId(), required=True),
                        Field(
                            key=1,
                            json="rel",
                            codec=Named({0: "supplements", 1: "replaces"}),
                            required=True,
                        ),
                    )
                )
            ),
        ),
        Field(key=4, json="triples", codec=TRIPLES, required=True),
    )
)

VALIDITY: Final = Struct(
    (
        Field(key=0, json="not-before", codec=Time()),
        Field(key=1, json="not-after", codec=Time(), required=True),
    )
)
CORIM: Final = Struct(
    (
        Field(key=0, json="corim-id", codec=TagId(), required=True),
        Field(key=1, json="tags", codec=ListOf(Opaque(object, "a tag")), required=True),
        Field(
            key=2,
            json="dependent-rims",
            codec=ListOf(
                Struct(
                    (
                        Field(key=0, json="href", codec=OneOrList(Uri()), required=True),
                        Field(key=1, json="thumbprint", codec=OneOrList(Digest())),
                    )
                )
            ),
        ),
        Field(key=3, json="profile", codec=Profile()),
        Field(key=4, json="validity", codec=VALIDITY),
        Field(
            key=5,
            json="entities",
            codec=_entities({1: "manifestCreator", 2: "manifestSigner"}),
        ),
    )
)
CORIM_META: Final = Struct(
    (
        Field(
            key=0,
            json="signer",
            codec=Struct(
                (
                    Field(key=0, json="name", codec=TEXT, required=True),
                    Field(key=1, json="uri", codec=Uri()),
                )
            ),
            required=True,
        ),
        Field(key=1, json="validity", codec=VALIDITY),
    )
)
