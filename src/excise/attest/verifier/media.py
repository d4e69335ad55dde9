"""Media types of evidence and endorsements, and the wrapper evidence may come in (CMW).

Sources: RFC 9783 section 10; draft-ietf-rats-msg-wrap (record and tag forms); RFC 9110 section 8.3.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from excise.errors import FormatError
from excise.evidence.base64text import decode_base64
from excise.evidence.cbor import Tag, read_cbor
from excise.evidence.corim import PSA_PROFILE, PSA_PROFILES_OLD
from excise.evidence.corim.profiles import CCA_PLATFORM_PROFILE, CCA_REALM_PROFILE
from excise.evidence.psa import PROFILE_1, PROFILE_2, PROFILE_TFM, Profile

SESSION_TYPE: Final = "application/vnd.veraison.challenge-response-session+json"
PROVISIONING_TYPE: Final = "application/vnd.veraison.provisioning-session+json"
DISCOVERY_TYPE: Final = "application/vnd.veraison.discovery+json"

_LEGACY: Final = "tag:psacertified.org,2019:psa#legacy"
_CCA: Final = "http://arm.com/CCA-SSD/1.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceType:
    """A media type of evidence.

    Attributes:
        text: As it is offered.
        scheme: `psa` or `cca`.
        profile: The profile that it promises; None for any.
    """

    text: str
    scheme: str
    profile: Profile | None = None


EVIDENCE_TYPES: Final = (
    EvidenceType(text="application/psa-attestation-token", scheme="psa"),
    EvidenceType(
        text=f'application/eat-cwt; profile="{PROFILE_2.name}"', scheme="psa", profile=PROFILE_2
    ),
    EvidenceType(
        text=f'application/eat+cwt; eat_profile="{PROFILE_TFM.name}"',
        scheme="psa",
        profile=PROFILE_TFM,
    ),
    EvidenceType(
        text=f'application/eat+cwt; eat_profile="{_LEGACY}"', scheme="psa", profile=PROFILE_1
    ),
    EvidenceType(text=f'application/eat-collection; profile="{_CCA}"', scheme="cca"),
)
ACCEPTED: Final = [one.text for one in EVIDENCE_TYPES]

_ENDORSEMENTS: Final = (
    *(("application/rim+cbor", p) for p in (PSA_PROFILE, CCA_PLATFORM_PROFILE, CCA_REALM_PROFILE)),
    *(("application/rim+cose", p) for p in (PSA_PROFILE, CCA_PLATFORM_PROFILE, CCA_REALM_PROFILE)),
    *(("application/corim-unsigned+cbor", p) for p in PSA_PROFILES_OLD),
    *(("application/corim-signed+cose", p) for p in PSA_PROFILES_OLD),
)
ENDORSEMENT_TYPES: Final = [f'{kind}; profile="{profile}"' for kind, profile in _ENDORSEMENTS]

_PARAMETER: Final = re.compile(r';\s*([\w!#$&^.+-]+)=("(?:[^"\\]|\\.)*"|[^;\s"]*)\s*')
_CMW_JSON: Final = ("application/cmw+json", "application/vnd.veraison.cmw+json")
_CMW_CBOR: Final = ("application/cmw+cbor", "application/vnd.veraison.cmw+cbor")
_CMW_ANY: Final = ("application/cmw", "application/vnd.veraison.cmw")

# draft-ietf-rats-msg-wrap section 3.2: tag = 1668546817 + content format, with a gap per 255.
_TAG_BASE: Final = 1_668_546_817
_FORMATS: Final = {263: "application/eat+cwt"}


def parse_media_type(text: str) -> tuple[str, dict[str, str]]:
    """Return type and parameters of a media type, both without regard to case and spaces.

    Raises:
        FormatError: It is none.
    """
    kind, separator, _ = text.partition(";")
    kind = kind.strip().lower()
    if not re.fullmatch(r"[\w!#$&^.+*-]+/[\w!#$&^.+*-]+", kind):
        raise FormatError(f"{text!r} is no media type", field="Content-Type")
    rest = text[len(text.partition(";")[0]) :] if separator else ""
    parameters, end = {}, 0
    for matched in _PARAMETER.finditer(rest):
        if matched.start() != end:
            break
        value = matched[2]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        parameters[matched[1].lower()] = value
        end = matched.end()
    if end != len(rest):
        raise FormatError(f"{text!r} has parameters that cannot be read", field="Content-Type")
    return kind, parameters


_PROFILE_PARAMETERS: Final = ("profile", "eat_profile")


def evidence_type(text: str) -> EvidenceType | None:
    """Return what a media type promises, None when it is not taken here.

    A type without its profile promises none; what the evidence itself names decides then.

    Raises:
        FormatError: It is no media type.
    """
    kind, given = parse_media_type(text)
    named = {name: given[name] for name in _PROFILE_PARAMETERS if name in given}
    for known in EVIDENCE_TYPES:
        own_kind, own = parse_media_type(known.text)
        if kind == own_kind and named == own:
            return known
        if kind == own_kind and not named:
            return EvidenceType(text=kind, scheme=known.scheme)
    return None


def endorsement_profile(text: str) -> str | None:
    """Return the CoRIM profile a media type names, None when it is not taken here.

    An empty profile means that the type names none: the document has to.

    Raises:
        FormatError: It is no media type.
    """
    kind, parameters = parse_media_type(text)
    named = parameters.get("profile", "")
    known = {profile for own, profile in _ENDORSEMENTS if own == kind}
    return named if known and named in {"", *known} else None


def unwrap(media_type: str, body: bytes) -> tuple[str, bytes]:
    """Return media type and evidence, taken out of a conceptual message wrapper if it is one.

    Raises:
        FormatError: The wrapper cannot be read.
    """
    kind, _ = parse_media_type(media_type)
    if kind in _CMW_ANY:
        kind = _CMW_JSON[0] if body.lstrip()[:1] in (b"[", b"{") else _CMW_CBOR[0]
    if kind in _CMW_JSON:
        return _from_json(body)
    if kind in _CMW_CBOR:
        return _from_cbor(body)
    return media_type, body


def _from_json(body: bytes) -> tuple[str, bytes]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise FormatError("the wrapper is not JSON", field="CMW") from None
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise FormatError("the wrapper is no record [type, value]", field="CMW")
    return _type_name(value[0]), decode_base64(value[1], field="CMW")


def _from_cbor(body: bytes) -> tuple[str, bytes]:
    tags = tuple(_tag_number(number) for number in _FORMATS)
    value = read_cbor(body, tags=tags, source="CMW")
    if isinstance(value, Tag) and isinstance(value.value, bytes):
        number = next(one for one in _FORMATS if _tag_number(one) == value.number)
        return _FORMATS[number], value.value
    if not isinstance(value, list) or len(value) not in (2, 3) or not isinstance(value[1], bytes):
        raise FormatError("the wrapper is no record [type, value]", field="CMW")
    return _type_name(value[0]), value[1]


def _tag_number(content_format: int) -> int:
    return _TAG_BASE + content_format // 255 * 256 + content_format % 255


def _type_name(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is int and value in _FORMATS:
        return _FORMATS[value]
    raise FormatError(f"the type {value!r} in the wrapper is unknown", field="CMW")


def accepts(header: str | None, *offered: str) -> bool:
    """Return whether an Accept header takes one of the media types."""
    if header is None or not header.strip():
        return True
    for part in header.split(","):
        try:
            kind, parameters = parse_media_type(part)
        except FormatError:
            continue
        if parameters.get("q", "1").rstrip("0").rstrip(".") in ("0", ""):
            continue
        for one in offered:
            if kind in (one, "*/*", f"{one.partition('/')[0]}/*"):
                return True
    return False
