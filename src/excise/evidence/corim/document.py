"""Read and write CoRIM documents: unsigned, untagged as older tools write them, and signed.

Reading checks the structure of the manifest and of every CoMID in it. Tags of other kinds (CoSWID,
CoTS) are counted and not used. Whether a document is to be believed (signature, validity, profile)
is asked by `verify_corim`.

Sources: draft-ietf-rats-corim sections 4 and 5; RFC 9052.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from excise.errors import FormatError
from excise.evidence.cbor import Tag, read_cbor, write_cbor
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.evidence.corim.schema import (
    ALL_TAGS,
    COMID,
    CORIM,
    CORIM_META,
    TAG_COMID,
    TAG_CORIM,
    TAG_SIGNED_CORIM,
    TagId,
    profile_name,
)
from excise.evidence.cose import (
    TAG_SIGN1,
    CoseMessage,
    first_tag,
    read_message,
    sign1,
    verify_read,
)
from excise.evidence.cose_key import VerificationKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

MAX_CORIM_BYTES: Final = 16 << 20
CONTENT_TYPE: Final = "application/rim+cbor"
_CONTENT_TYPES: Final = (CONTENT_TYPE, "application/corim-unsigned+cbor")
_HEADER_CONTENT_TYPE, _HEADER_META = 3, 8
# #6.500 and #6.502 before a COSE_Sign1: drafts before 08 wrapped the choice in tags of its own.
_WRAPPERS: Final = (500, TAG_SIGNED_CORIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comid:
    """One CoMID, its structure checked.

    Attributes:
        id: The tag's identity as text.
        content: Plain CBOR values.
    """

    id: str
    content: Mapping[int, Any]

    def triples(self, key: int) -> Sequence[Any]:
        """Return the triples of one kind, by CBOR key; empty when there are none."""
        found: Sequence[Any] = self.content[4].get(key, ())
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the CoMID as a JSON template."""
        return COMID.to_json(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corim:
    """A manifest, its structure checked.

    Attributes:
        id: Its identity as text.
        profile: Name of its profile; empty when it names none.
        comids: The CoMIDs in it.
        other_tags: How many tags of other kinds it holds, which are not used.
        not_before: Start of validity in seconds since the epoch; None when open.
        not_after: End of validity; None when open.
        content: Plain CBOR values of the manifest.
        message: The signed message around it; None when unsigned.
        meta: Signer and validity of the signature; None when unsigned.
    """

    id: str
    profile: str
    comids: tuple[Comid, ...]
    other_tags: int
    not_before: int | None
    not_after: int | None
    content: Mapping[int, Any]
    message: CoseMessage | None = None
    meta: Mapping[int, Any] | None = None

    @property
    def signer(self) -> str:
        """Return the signer's name as the document states it; empty when unsigned."""
        return str(self.meta[0][0]) if self.meta is not None else ""

    def as_json(self) -> dict[str, Any]:
        """Return the manifest and its CoMIDs as JSON templates."""
        shown = CORIM.to_json(self.content)
        shown["tags"] = [comid.as_json() for comid in self.comids]
        if self.meta is not None:
            shown["signature"] = CORIM_META.to_json(self.meta)
        if self.other_tags:
            shown["other-tags"] = self.other_tags
        return shown


def read_corim(data: bytes, *, source: str = "CoRIM") -> Corim:
    """Return a CoRIM; nothing about who made it is checked here.

    Raises:
        FormatError: Encoding or structure is wrong, with the path of the fault.
    """
    try:
        if len(data) > MAX_CORIM_BYTES:
            raise FormatError(f"{len(data)} bytes are more than {MAX_CORIM_BYTES}")
        return _read(data)
    except FormatError as error:
        error.source = source
        raise


def _read(data: bytes) -> Corim:
    tag = first_tag(data)
    if tag in _WRAPPERS and first_tag(data[3:]) is not None:
        data, tag = data[3:], first_tag(data[3:])
    if tag != TAG_SIGN1:
        return _manifest(data)
    message = read_message(data)
    declared = message.headers.get(_HEADER_CONTENT_TYPE)
    if declared not in _CONTENT_TYPES:
        raise FormatError(f"the signed content is {declared!r}", field="content type")
    held = message.headers.get(_HEADER_META)
    if not isinstance(held, bytes):
        raise FormatError("the signature has no CoRIM meta (header 8)", field="corim-meta")
    meta = read_cbor(held, tags=ALL_TAGS)
    CORIM_META.check(meta, "corim-meta")
    return _manifest(message.payload, message=message, meta=meta)


def _manifest(
    data: bytes,
    *,
    message: CoseMessage | None = None,
    meta: Mapping[int, Any] | None = None,
) -> Corim:
    value = read_cbor(data, tags=ALL_TAGS)
    if isinstance(value, Tag):
        if value.number not in (TAG_CORIM, TAG_COMID):
            raise FormatError(f"tag {value.number}, where {TAG_CORIM} is expected", field="tag")
        if value.number == TAG_COMID:
            raise _comid_alone()
        value = value.value
    if _looks_like_comid(value):
        raise _comid_alone()
    CORIM.check(value, "")
    comids, others = [], 0
    for index, held in enumerate(value[1]):
        comid = _comid(held, f"tags[{index}]")
        if comid is None:
            others += 1
        else:
            comids.append(comid)
    validity = value.get(4, {})
    return Corim(
        id=TagId().to_json(value[0]),
        profile=profile_name(value[3]) if 3 in value else "",
        comids=tuple(comids),
        other_tags=others,
        not_before=validity[0].value if 0 in validity else None,
        not_after=validity[1].value if 1 in validity else None,
        content=value,
        message=message,
        meta=meta,
    )


def _looks_like_comid(value: object) -> bool:
    return isinstance(value, Mapping) and 0 not in value and 4 in value


def _comid_alone() -> FormatError:
    return FormatError(
        "is a CoMID, one tag of a CoRIM, and no CoRIM",
        hint="cocli corim create puts it into one; excise corim build makes one of templates",
    )


def is_comid(data: bytes) -> bool:
    """Return whether something is a CoMID that stands alone, going by its outermost structure."""
    if first_tag(data) == TAG_COMID:
        return True
    try:
        return _looks_like_comid(read_cbor(data, tags=ALL_TAGS))
    except FormatError:
        return False


def _comid(held: Any, path: str) -> Comid | None:
    """Return the CoMID of one tag: #6.506(bytes), or bytes that hold #6.506(map)."""
    if isinstance(held, Tag) and isinstance(held.value, bytes):
        if held.number != TAG_COMID:
            return None
        encoded = held.value
    elif isinstance(held, bytes):
        encoded = held
    else:
        raise FormatError("is neither a tagged nor a plain byte string", field=path)
    value = read_cbor(encoded, tags=ALL_TAGS)
    if isinstance(value, Tag):
        if value.number != TAG_COMID:
            return None
        value = value.value
        if isinstance(value, bytes):  # as it stands in a CoRIM, tag and all
            value = read_cbor(value, tags=ALL_TAGS)
    try:
        COMID.check(value, "")
    except FormatError as error:
        error.field = f"{path}.{error.field}" if error.field else path
        raise
    return Comid(id=TagId().to_json(value[1][0]), content=value)


def read_comid(data: bytes, *, source: str = "CoMID") -> Comid:
    """Return a CoMID that stands alone, tagged or not.

    Raises:
        FormatError: Encoding or structure is wrong.
    """
    try:
        found = _comid(data, "")
        if found is None:
            raise FormatError(f"tag {first_tag(data)}, where {TAG_COMID} is expected", field="tag")
        return found
    except FormatError as error:
        error.source = source
        raise


def write_corim(content: Mapping[int, Any]) -> bytes:
    """Return a manifest's encoding, tagged 501.

    Raises:
        FormatError: The manifest is not right.
    """
    CORIM.check(content, "")
    return write_cbor(Tag(TAG_CORIM, content))


def sign_corim(
    unsigned: bytes,
    key: EllipticCurvePrivateKey,
    *,
    signer: str,
    not_after: int | None = None,
) -> bytes:
    """Return a signed CoRIM around an unsigned one.

    Args:
        unsigned: The manifest's encoding.
        key: The signing key.
        signer: Name of the signer.
        not_after: End of the signature's validity, in seconds since the epoch.
    """
    _manifest(unsigned)
    meta: dict[int, Any] = {0: {0: signer}}
    if not_after is not None:
        meta[1] = {1: Tag(1, not_after)}
    headers = {_HEADER_CONTENT_TYPE: CONTENT_TYPE, _HEADER_META: write_cbor(meta)}
    return sign1(unsigned, key, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorimOptions:
    """What is asked of a document.

    Attributes:
        keys: Keys that may have signed it.
        require_signed: Whether an unsigned one is refused.
        profiles: Profiles that are understood; empty for any.
        now: Seconds since the epoch at which it must be valid; None for the present.
    """

    keys: tuple[VerificationKey, ...] = ()
    require_signed: bool = True
    profiles: tuple[str, ...] = ()
    now: float | None = None


def verify_corim(corim: Corim, *, options: CorimOptions) -> AppraisalResult:
    """Return the checks that decide whether a document is to be believed."""
    now = time.time() if options.now is None else options.now
    checks = [*_signed_checks(corim, options), _profile_check(corim, options)]
    windows = [("corim.validity", corim.not_before, corim.not_after)]
    if corim.meta is not None:
        held = corim.meta.get(1, {})
        start = held[0].value if 0 in held else None
        windows.append(("corim.signature_validity", start, held[1].value if 1 in held else None))
    checks += [_window_check(name, start, end, now) for name, start, end in windows]
    facts = {
        "id": corim.id,
        "signer": corim.signer or None,
        "tags": len(corim.comids),
        "tags of other kinds, not used": corim.other_tags or None,
    }
    return AppraisalResult(subject="corim", checks=tuple(checks), facts=facts)


def _signed_checks(corim: Corim, options: CorimOptions) -> list[Check]:
    clause = "draft-ietf-rats-corim section 4.2"
    if corim.message is None:
        outcome = Outcome.FAILED if options.require_signed else Outcome.NOT_COVERED
        check = Check(
            id="corim.signed",
            outcome=outcome,
            expected="a signature",
            got="unsigned",
            clause=clause,
        )
        return [check]
    got = f"signed by {corim.signer!r}, as the document says"
    signed = Check(id="corim.signed", outcome=Outcome.PASSED, got=got, clause=clause)
    made: Sequence[Check] = ()
    for key in options.keys:
        made = verify_read(corim.message, key)
        if all(check.outcome is Outcome.PASSED for check in made):
            break
    if made:
        return [signed, *made]
    outcome = Outcome.FAILED if options.require_signed else Outcome.NOT_COVERED
    return [
        signed,
        Check(
            id="cose.signature",
            outcome=outcome,
            expected="a key of the signer",
            got="no key was given to check the signature with",
            clause=clause,
        ),
    ]


def _profile_check(corim: Corim, options: CorimOptions) -> Check:
    known = not options.profiles or corim.profile in options.profiles
    return Check(
        id="corim.profile",
        outcome=Outcome.PASSED if known else Outcome.FAILED,
        expected=" or ".join(options.profiles),
        got=corim.profile or "none",
        clause="draft-ietf-rats-corim section 4.1.4",
    )


def _window_check(name: str, start: int | None, end: int | None, now: float) -> Check:
    if start is None and end is None:
        outcome, got = Outcome.NOT_COVERED, "no validity is stated"
    else:
        inside = (start is None or start <= now) and (end is None or now <= end)
        outcome = Outcome.PASSED if inside else Outcome.FAILED
        since = f"from {_date(start)}" if start is not None else ""
        until = f"until {_date(end)}" if end is not None else ""
        got = f"{since} {until}".strip()
    return Check(
        id=name,
        outcome=outcome,
        expected=f"valid at {_date(int(now))}",
        got=got,
        clause="draft-ietf-rats-corim section 7.3",
    )


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
