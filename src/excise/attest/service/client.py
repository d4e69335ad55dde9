"""A client of the services here, whose errors are those of the service."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import msgspec

from excise.errors import ExciseError, FormatError, HostError, Refused, UsageError

_T = TypeVar("_T")
_MAX_ANSWER_BYTES = 16 << 20


class ServiceClient:
    """Asks one service; a context manager.

    Args:
        url: The service, such as https://issuer.example:8443.
        ca_file: PEM of the certificates to trust for TLS; those of the system when None.
        timeout_s: Longest time to wait for an answer.

    Raises:
        UsageError: Not an http or https URL.
        FormatError: The certificates cannot be read.
    """

    def __init__(self, url: str, *, ca_file: Path | None = None, timeout_s: float = 30.0) -> None:
        try:
            parsed = httpx.URL(url if url.isprintable() else "")
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"{url!r} is no http or https URL")
        self._url = url.rstrip("/")
        verify: Any = True
        if ca_file is not None:
            try:
                verify = ssl.create_default_context(cafile=str(ca_file))
            except (OSError, ssl.SSLError) as error:
                raise FormatError(
                    f"no certificates that can be read ({error.strerror or error})",
                    source=str(ca_file),
                ) from None
        self._client = httpx.Client(base_url=self._url, verify=verify, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, kind: type[_T]) -> _T:
        """Return the answer to a GET, as the msgspec type asked for.

        Raises:
            ExciseError: As `post`.
        """
        return self.decode(self.ask("GET", path)[1], kind)

    def post(self, path: str, value: Any, kind: type[_T]) -> _T:
        """Return the answer to a POST of a msgspec value as JSON.

        Raises:
            Refused: The service says no.
            FormatError: It cannot read what was sent, or the answer cannot be read.
            HostError: It does not answer, or cannot do it now.
        """
        body = msgspec.json.encode(value)
        return self.decode(self.ask("POST", path, body, media_type="application/json")[1], kind)

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, media_type: str = ""
    ) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body of the answer to any request.

        Raises:
            ExciseError: As `post`.
        """
        headers = {"Content-Type": media_type} if media_type else {}
        try:
            with self._client.stream(method, path, content=body, headers=headers) as response:
                parts, size = [], 0
                for part in response.iter_bytes():
                    size += len(part)
                    if size > _MAX_ANSWER_BYTES:
                        raise FormatError("the answer is too large", source=self._url + path)
                    parts.append(part)
        except httpx.HTTPError as error:
            raise HostError(
                f"the service does not answer ({error})",
                source=self._url + path,
                hint="Is it running, and is the certificate one this client trusts?",
            ) from None
        answer = b"".join(parts)
        if response.is_success:
            return response.headers, answer
        raise _error(response.status_code, answer, source=self._url + path)

    def decode(self, body: bytes, kind: type[_T]) -> _T:
        """Return a body as the msgspec type asked for.

        Raises:
            FormatError: It is none.
        """
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"the answer cannot be read ({error})", source=self._url) from None


def _error(status: int, body: bytes, *, source: str) -> ExciseError:
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    reason = str(problem.get("reason") or problem.get("detail") or f"HTTP status {status}")
    hint = problem.get("hint")
    hint = str(hint) if hint is not None else None
    differences = problem.get("differences") or ()
    if status in (403, 404, 409, 410):
        lines = tuple(map(str, differences)) if isinstance(differences, list) else ()
        return Refused(reason, source=source, differences=lines, hint=hint)
    if status < 500:
        return FormatError(reason, source=source, hint=hint)
    return HostError(reason, source=source, hint=hint)
