"""The OpenAPI description of the verifier's interface."""

from __future__ import annotations

from typing import Any, Final

from excise import __version__
from excise.attest.service import PROBLEM_MEDIA_TYPE
from excise.attest.verifier.media import (
    ACCEPTED,
    DISCOVERY_TYPE,
    ENDORSEMENT_TYPES,
    PROVISIONING_TYPE,
    SESSION_TYPE,
)

NEW_SESSION: Final = "/challenge-response/v1/newSession"
SESSION: Final = "/challenge-response/v1/session/{session}"
SUBMIT: Final = "/endorsement-provisioning/v1/submit"
VERIFICATION_INFO: Final = "/.well-known/veraison/verification"
PROVISIONING_INFO: Final = "/.well-known/veraison/provisioning"

_BINARY: Final = {"type": "string", "format": "binary", "minLength": 1}
_BASE64URL: Final = "^[A-Za-z0-9_-]*$"
_UUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def describe() -> dict[str, Any]:
    """Return the description, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "excise verifier",
            "version": __version__,
            "description": "Challenge-response verification and endorsement provisioning with "
            "Veraison's paths and media types. A session is answered once.",
        },
        "paths": {
            NEW_SESSION: {"post": _new_session()},
            SESSION: {
                "parameters": [_session_parameter()],
                "post": _submit_evidence(),
                "get": _get_session(),
                "delete": _delete_session(),
            },
            SUBMIT: {"post": _submit_endorsements()},
            VERIFICATION_INFO: {"get": _info("verification")},
            PROVISIONING_INFO: {"get": _info("provisioning")},
        },
        "components": {"schemas": _schemas()},
    }


def _answer(description: str, media_type: str, schema: str, **more: Any) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {media_type: {"schema": reference}}, **more}


def _problem(description: str) -> dict[str, Any]:
    return _answer(description, PROBLEM_MEDIA_TYPE, "Problem")


_PROBLEMS: Final = {
    "400": "The request makes no sense.",
    "404": "There is no such session.",
    "406": "The answer's media type is not accepted.",
    "408": "The body came too slowly.",
    "409": "The session was answered already, or the challenge used before.",
    "410": "The session's time is over.",
    "413": "The body is too large.",
    "415": "The media type is not taken here.",
    "503": "The service cannot take it now.",
}


def _problems(*codes: str) -> dict[str, Any]:
    return {code: _problem(_PROBLEMS[code]) for code in codes}


def _session_parameter() -> dict[str, Any]:
    return {
        "name": "session",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": _UUID},
    }


def _new_session() -> dict[str, Any]:
    # nonce and nonceSize exclude each other: one exploded object, with one of two members.
    nonce = {
        "type": "object",
        "properties": {
            "nonce": {"type": "string", "pattern": "^([A-Za-z0-9_-]{4}){3,21}$",
                      "description": "8 to 64 bytes in base64url, not used before."}
        },
        "required": ["nonce"],
        "additionalProperties": False,
    }  # fmt: skip
    size = {
        "type": "object",
        "properties": {"nonceSize": {"type": "integer", "minimum": 8, "maximum": 64}},
        "additionalProperties": False,
    }
    return {
        "operationId": "newSession",
        "summary": "Open a session with a challenge",
        "parameters": [
            {
                "name": "challenge",
                "in": "query",
                "style": "form",
                "explode": True,
                "schema": {"oneOf": [nonce, size]},
            }
        ],
        "responses": {
            "201": _answer(
                "The session.",
                SESSION_TYPE,
                "Session",
                headers={
                    "Location": {
                        "description": "The session, relative to this path.",
                        "schema": {"type": "string"},
                    }
                },
                links={
                    name: {
                        "operationId": operation,
                        "parameters": {"session": "$response.header.Location#regex:session/(.+)"},
                    }
                    for name, operation in (
                        ("submit", "submitEvidence"),
                        ("get", "getSession"),
                        ("delete", "deleteSession"),
                    )
                },
            ),
            **_problems("400", "406", "408", "409", "413", "503"),
        },
    }


def _submit_evidence() -> dict[str, Any]:
    return {
        "operationId": "submitEvidence",
        "summary": "Submit evidence, once",
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": _BINARY} for media_type in ACCEPTED},
        },
        "responses": {
            "200": _answer("The session with its result.", SESSION_TYPE, "Session"),
            **_problems("400", "404", "406", "408", "409", "410", "413", "415", "503"),
        },
    }


def _get_session() -> dict[str, Any]:
    return {
        "operationId": "getSession",
        "summary": "Read a session",
        "responses": {
            "200": _answer("The session.", SESSION_TYPE, "Session"),
            **_problems("400", "404", "406", "413", "503"),
        },
    }


def _delete_session() -> dict[str, Any]:
    return {
        "operationId": "deleteSession",
        "summary": "Delete a session",
        "responses": {"204": {"description": "Deleted."}, **_problems("400", "404", "413", "503")},
    }


def _submit_endorsements() -> dict[str, Any]:
    return {
        "operationId": "submitEndorsements",
        "summary": "Provision a CoRIM",
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": _BINARY} for media_type in ENDORSEMENT_TYPES},
        },
        "responses": {
            "200": _answer("Taken up, or why not.", PROVISIONING_TYPE, "Provisioning"),
            **_problems("400", "406", "408", "413", "415", "503"),
        },
    }


def _info(what: str) -> dict[str, Any]:
    return {
        "operationId": f"{what}Info",
        "summary": f"What this service offers for {what}",
        "responses": {
            "200": _answer("Media types, paths and keys.", DISCOVERY_TYPE, "Discovery"),
            **_problems("400", "406", "413", "503"),
        },
    }


def _schemas() -> dict[str, Any]:
    text = {"type": "string"}
    texts = {"type": "array", "items": text}
    key = {
        "type": "object",
        "required": ["kty", "crv", "x", "y", "kid"],
        "properties": dict.fromkeys(("kty", "crv", "x", "y", "kid", "alg", "use"), text),
    }
    return {
        "Session": {
            "type": "object",
            "required": ["nonce", "expiry", "accept", "status"],
            "additionalProperties": False,
            "properties": {
                "nonce": {"type": "string", "pattern": _BASE64URL},
                "expiry": {"type": "string", "format": "date-time"},
                "accept": texts,
                "status": {"enum": ["waiting", "processing", "complete", "failed"]},
                "evidence": {
                    "type": "object",
                    "required": ["type", "value"],
                    "properties": {"type": text, "value": text},
                },
                "result": {"type": "string", "description": "The result as a signed JWT (EAR)."},
            },
        },
        "Provisioning": {
            "type": "object",
            "required": ["status", "expiry"],
            "properties": {
                "status": {"enum": ["success", "failed"]},
                "expiry": {"type": "string", "format": "date-time"},
                "failure-reason": text,
            },
        },
        "Discovery": {
            "type": "object",
            "required": ["version", "service-state", "api-endpoints", "media-types"],
            "properties": {
                "version": text,
                "service-state": {"enum": ["READY"]},
                "api-endpoints": {"type": "object", "additionalProperties": text},
                "media-types": texts,
                "ear-verification-key": key,
                "ear-verification-keys": {
                    "type": "object",
                    "properties": {"keys": {"type": "array", "items": key}},
                },
            },
        },
        "Problem": {
            "type": "object",
            "required": ["type", "title", "status"],
            "properties": {
                "type": text,
                "title": text,
                "status": {"type": "integer"},
                "detail": text,
            },
        },
    }
