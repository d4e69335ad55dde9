"""A verifier as a service: Veraison's interface, sessions that are answered once, a web page."""

from excise.attest.service.database import Database, open_database
from excise.attest.verifier.engine import Engine
from excise.attest.verifier.records import Records
from excise.attest.verifier.service import VerifierSettings, verifier_app
from excise.attest.verifier.signing import require_keys, rotate

__all__ = [
    "Database",
    "Engine",
    "Records",
    "VerifierSettings",
    "open_database",
    "require_keys",
    "rotate",
    "verifier_app",
]
