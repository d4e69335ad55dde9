"""CoRIMs from JSON templates, as Veraison's tools and optee-ra write them.

A folder of templates may hold several builds of one device side by side, told apart by the end of
their names: `comid-psa-refval-imx-caam.json` and `comid-psa-ta-imx-caam.json` are the build
`imx-caam`, and the manifest is `corim-psa-imx-caam.json` or, for all builds, `corim-psa.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from excise.errors import FormatError, UsageError
from excise.evidence.base64text import encode_base64
from excise.evidence.cbor import Tag, write_cbor
from excise.evidence.corim.document import MAX_CORIM_BYTES, write_corim
from excise.evidence.corim.profiles import PSA_PROFILE
from excise.evidence.corim.schema import COMID, CORIM, TAG_COMID
from excise.evidence.cose_key import VerificationKey
from excise.files import read_whole, unwritable

DEFAULT_BUILD: Final = "default"
_COMID_NAME: Final = re.compile(
    r"comid-(?P<scheme>.+?)-(?P<kind>refval|ta)(?:-(?P<build>.+))?\.json"
)
_JSON_CORIM_FIELDS: Final = frozenset(field.json for field in CORIM.fields) | {"profiles"}


def build_corim(
    manifest: Mapping[str, Any], comids: Sequence[tuple[str, Mapping[str, Any]]]
) -> bytes:
    """Return the encoding of a CoRIM made of a manifest template and CoMID templates.

    Args:
        manifest: The manifest's JSON object; its `profiles` list makes the older form.
        comids: Name (for errors) and JSON object of each CoMID.

    Raises:
        FormatError: A template is wrong; the field is the path in it.
        UsageError: There is no CoMID.
    """
    if not comids:
        raise UsageError("a CoRIM needs at least one CoMID template", source="corim build")
    tags = []
    for name, template in comids:
        try:
            tags.append(Tag(TAG_COMID, write_cbor(COMID.to_cbor(template, ""))))
        except FormatError as error:
            error.source = name
            raise
    named = {("profile" if key == "profiles" else key): held for key, held in manifest.items()}
    unknown = set(manifest) - _JSON_CORIM_FIELDS
    if unknown:
        known = ", ".join(sorted(_JSON_CORIM_FIELDS - {"tags"}))
        raise FormatError(
            f"{', '.join(sorted(unknown))}: unknown", source="manifest", hint=f"Known: {known}"
        )
    named.pop("tags", None)
    content: dict[int, Any] = {1: tags}
    for field in CORIM.fields:
        if field.json in named:
            content[field.key] = field.codec.to_cbor(named[field.json], field.json)
    if 0 not in content:
        raise FormatError("corim-id is missing", source="manifest")
    return write_corim(content)


def read_template(path: Path) -> dict[str, Any]:
    """Return the JSON object in a template.

    Raises:
        FormatError: The file cannot be read or holds no object.
    """
    try:
        value = json.loads(read_whole(path, limit_bytes=MAX_CORIM_BYTES))
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON ({error})", source=str(path)) from None
    if not isinstance(value, dict):
        raise FormatError("no JSON object", source=str(path))
    return value


def builds_in(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the CoMID templates of a folder by the build they belong to."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("comid-*.json")):
        matched = _COMID_NAME.fullmatch(path.name)
        if matched:
            found.setdefault(matched["build"] or DEFAULT_BUILD, []).append(path)
    return {name: tuple(paths) for name, paths in sorted(found.items())}


def build_from_folder(folder: Path, *, build: str) -> bytes:
    """Return the CoRIM of one build in a folder of templates.

    Raises:
        UsageError: There is no such build; the hint lists what exists.
        FormatError: A template is wrong, or the manifest is missing.
    """
    builds = builds_in(folder)
    if build not in builds:
        raise unknown_build(build, list(builds), source=str(folder))
    paths = builds[build]
    matched = _COMID_NAME.fullmatch(paths[0].name)
    scheme = matched["scheme"] if matched else "psa"
    candidates = [folder / f"corim-{scheme}-{build}.json", folder / f"corim-{scheme}.json"]
    manifest = next((path for path in candidates if path.is_file()), None)
    if manifest is None:
        names = " or ".join(path.name for path in candidates)
        raise FormatError(f"no manifest template {names}", source=str(folder))
    return build_corim(
        read_template(manifest), [(path.name, read_template(path)) for path in paths]
    )


def unknown_build(build: str, existing: Sequence[str], *, source: str) -> UsageError:
    """Return the error for a build that does not exist, which lists those that do."""
    listed = ", ".join(sorted(existing)) or "none"
    return UsageError(f"there is no build {build!r}", source=source, hint=f"Builds: {listed}")


def component_template(
    name: str, digest: bytes, *, version: str, signer_id: bytes
) -> dict[str, Any]:
    """Return the measurement of one software component as JSON, in the present PSA profile.

    Args:
        name: Measurement type, such as `PRoT`.
        digest: SHA-256 of the component.
        version: Its version; "" where it has none.
        signer_id: SHA-256 of the key that signs it.
    """
    value: dict[str, Any] = {
        "name": name,
        "digests": [f"sha-256;{encode_base64(digest)}"],
        "cryptokeys": [{"type": "bytes", "value": encode_base64(signer_id)}],
    }
    if version:
        value["version"] = {"value": version}
    return {"key": {"type": "string", "value": "psa.software-component"}, "value": value}


def psa_templates(
    *,
    build: str,
    implementation_id: bytes,
    components: Sequence[Mapping[str, Any]],
    anchors: Sequence[tuple[bytes, VerificationKey]],
    vendor: str,
    model: str,
) -> dict[str, dict[str, Any]]:
    """Return the templates of one build by file name.

    Identities are UUIDs of the content, so that the same build gives the same document.

    Args:
        build: Name of the build.
        implementation_id: 32 bytes.
        components: Measurements, as `component_template` makes them.
        anchors: Instance ID and key of each device.
        vendor: Who makes the device.
        model: Which device it is.
    """
    class_ = {
        "id": {"type": "bytes", "value": encode_base64(implementation_id)},
        "vendor": vendor,
        "model": model,
    }
    values = [{"environment": {"class": class_}, "measurements": list(components)}]
    keys = [
        {
            "environment": {
                "class": class_,
                "instance": {"type": "ueid", "value": encode_base64(instance)},
            },
            "verification-keys": [{"type": "pkix-base64-key", "value": key.pem()}],
        }
        for instance, key in anchors
    ]
    files = {
        f"comid-psa-refval-{build}.json": _comid({"reference-values": values}, vendor),
        f"comid-psa-ta-{build}.json": _comid({"attester-verification-keys": keys}, vendor),
    }
    content = json.dumps(files, sort_keys=True)
    manifest = {
        "corim-id": f"{build}-{hashlib.sha256(content.encode()).hexdigest()[:12]}",
        "profile": PSA_PROFILE,
    }
    return {**files, f"corim-psa-{build}.json": manifest}


def write_templates(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Write templates by file name into a folder, which is made if need be: all or none.

    Raises:
        OutputError: They cannot be written.
        HostError: There is no room.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".excise-") as held:
            for name, content in files.items():
                (Path(held) / name).write_text(json.dumps(content, indent=2) + "\n")
            for name in files:
                (Path(held) / name).replace(folder / name)
    except OSError as error:
        with contextlib.suppress(OSError):  # Empty, as it was made for these files.
            for each in missing:
                each.rmdir()
        raise unwritable(error, source=folder) from error


def _comid(triples: Mapping[str, Any], vendor: str) -> dict[str, Any]:
    content = json.dumps(triples, sort_keys=True)
    return {
        "tag-identity": {"id": str(uuid.uuid5(uuid.NAMESPACE_OID, content)), "version": 0},
        "entities": [{"name": vendor, "roles": ["tagCreator", "creator"]}],
        "triples": dict(triples),
    }
