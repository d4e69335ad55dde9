"""The packages that services need beyond those of excise itself."""

from __future__ import annotations

from excise.errors import HostError

try:
    import httpx  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise HostError(
        f"a package for HTTP services cannot be loaded: {error}",
        hint="pip install 'excise[attest]'",
    ) from None
