"""The optional parts of excise: which of them has a module that is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from excise.errors import HostError

EXTRA_OF_MODULE: Final[Mapping[str, str]] = {
    "tpm2_pytss": "tpm",
    "gmpy2": "attest",
    "starlette": "attest",
    "uvicorn": "attest",
    "httpx": "attest",
    "httptools": "attest",
    "uvloop": "attest",
    "cbor2": "attest",
    "psycopg": "attest",
    "dlib": "face",
    "face_recognition_models": "face",
    "PIL": "face",
    "linuxpy": "face",
    "asyncssh": "remote",
    "serial": "remote",
    "distributed": "fleet",
    "dask": "fleet",
    "fsspec": "fleet",
}
"""Modules of the optional dependencies in `pyproject.toml`, and the names of these there."""


def missing_extra(error: ModuleNotFoundError) -> HostError | None:
    """Return what to say where a module of an optional part is not installed; None for others."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return HostError(
        f"this needs {module}, which is not installed", hint=f"pip install 'excise[{extra}]'"
    )
