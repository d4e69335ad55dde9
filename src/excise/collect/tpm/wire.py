"""TPM commands as bytes over any TCTI, each timed from the call that sends to the answer.

Libraries above the TCTI do cryptography of their own inside a call; here nothing lies between the
clock and the transport, so that the TPM's time is not mixed with the client's.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from excise.clock import Clock
from excise.collect.tpm.codes import (
    COMMANDS,
    NO_SESSIONS,
    PATIENCE,
    RS_PASSWORD,
    SESSIONS,
    base_code,
    explain,
    is_absence,
)
from excise.collect.tpm.library import quiet_tss
from excise.errors import HostError

if TYPE_CHECKING:
    from tpm2_pytss import TCTI

PATIENCE_S: Final = 30.0
"""How long a TPM may go on asking to try again."""

MOST_BYTES: Final = 4096
_HEADER: Final = struct.Struct(">HII")
PASSWORD: Final = struct.pack(">IHBH", RS_PASSWORD, 0, 1, 0)
"""The authorisation of an object without a secret."""


class TpmError(HostError):
    """The TPM answered a command with a response code other than success.

    Attributes:
        command: Name of the command.
        code: Its response code.
    """

    def __init__(self, command: str, code: int, *, source: str) -> None:
        reason, hint = explain(code)
        super().__init__(f"the TPM {reason} at {command}", source=source, hint=hint or None)
        self.command = command
        self.code = code

    @property
    def absent(self) -> bool:
        """Return whether the TPM does not have the command, algorithm, curve or size."""
        return is_absence(self.code)


class Authority(Protocol):
    """What authorises a command and judges its answer, such as an HMAC session."""

    def authorise(self, command: int, handles: bytes, parameters: bytes) -> bytes:
        """Return TPMS_AUTH_COMMAND for a command."""

    def verify(self, command: int, parameters: bytes, authorisation: bytes) -> None:
        """Raise HostError unless the answer's authorisation is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The TPM's answer to one command.

    Attributes:
        command: Name of the command.
        handle: Handle that the command made, or 0.
        parameters: Response parameters, without handle and authorisations.
        start_ns: When the command was sent, CLOCK_MONOTONIC.
        duration_ns: From sending to the answer.
    """

    command: str
    handle: int
    parameters: bytes
    start_ns: int
    duration_ns: int


class Link:
    """An open way to one TPM.

    Attributes:
        tcti: Where the TPM is.
        retries: Commands that had to be sent again, so far.
        made: Handles of objects and sessions that commands over this link made.
    """

    def __init__(self, transport: TCTI, *, tcti: str) -> None:
        self.tcti = tcti
        self.retries = 0
        self.made: set[int] = set()
        self._transport = transport

    def send(
        self,
        name: str,
        *,
        handles: bytes = b"",
        parameters: bytes = b"",
        authority: Authority | bytes | None = None,
        makes_handle: bool = False,
    ) -> Reply:
        """Return the answer to one command.

        Args:
            name: Name of the command, as in `codes.COMMANDS`.
            handles: Handle area, marshalled.
            parameters: Parameter area, marshalled.
            authority: Session that authorises the command, or a marshalled TPMS_AUTH_COMMAND.
            makes_handle: Whether the answer begins with a handle.

        Raises:
            TpmError: The TPM refuses, or goes on asking to try again.
            HostError: The transport fails, or an authorisation of the answer is wrong.
        """
        code = COMMANDS[name]
        area = authority
        if authority is not None and not isinstance(authority, bytes):
            area = authority.authorise(code, handles, parameters)
        command = _command(code, handles, area, parameters)
        response, start_ns, duration_ns = self._patiently(name, command)
        handle, held, authorisation = _split(name, response, makes_handle=makes_handle)
        if makes_handle:
            self.made.add(handle)
        if authority is not None and not isinstance(authority, bytes):
            authority.verify(code, held, authorisation)
        return Reply(
            command=name,
            handle=handle,
            parameters=held,
            start_ns=start_ns,
            duration_ns=duration_ns,
        )

    def flush(self, handle: int) -> Reply:
        """Remove an object or a session from the TPM."""
        return self.send("FlushContext", parameters=u32(handle))

    def _patiently(self, name: str, command: bytes) -> tuple[bytes, int, int]:
        """Send a command again while the TPM asks for it; only the last time is measured."""
        until, pause_s = time.monotonic() + PATIENCE_S, 0.002
        while True:
            response, start_ns, duration_ns = self._exchange(name, command)
            code = _code(name, response, source=self.tcti)
            if code == 0:
                return response, start_ns, duration_ns
            if base_code(code) not in PATIENCE or time.monotonic() >= until:
                raise TpmError(name, code, source=self.tcti)
            self.retries += 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.25)

    def _exchange(self, name: str, command: bytes) -> tuple[bytes, int, int]:
        from tpm2_pytss import TSS2_Exception

        transmit, receive = self._transport.transmit, self._transport.receive
        try:
            start_ns = time.monotonic_ns()
            transmit(command)
            response = receive(MOST_BYTES)
            end_ns = time.monotonic_ns()
        except TSS2_Exception as error:
            raise HostError(
                f"the way to the TPM failed at {name}: {error}",
                source=self.tcti,
                hint="See whether the TPM, its driver or resource manager still runs",
            ) from None
        return response, start_ns, end_ns - start_ns


@contextmanager
def open_link(tcti: str) -> Iterator[Link]:
    """Open the way to a TPM, and close it whatever happens.

    Args:
        tcti: As for tpm2-tools: `device:/dev/tpmrm0`, `swtpm:path=…`, `mssim:host=…`.

    Raises:
        HostError: No tpm2-pytss, no TPM, no permission, or another program holds it.
    """
    with quiet_tss():
        from tpm2_pytss import TCTILdr, TSS2_Exception

        try:
            transport = TCTILdr.parse(tcti)
        except (TSS2_Exception, RuntimeError, ValueError, TypeError) as error:
            raise unreachable(tcti, error) from None
        try:
            yield Link(transport, tcti=tcti)
        finally:
            transport.close()


def clock() -> Clock:
    """Return the clock that commands are timed with."""
    found = time.get_clock_info("monotonic")
    return Clock(name="CLOCK_MONOTONIC", resolution_ns=found.resolution * 1e9)


def device_path(tcti: str) -> str | None:
    """Return the device file that a TCTI names, or None where it is none of this host."""
    name, _, path = tcti.partition(":")
    return (path or "/dev/tpm0") if name == "device" else None


def u16(value: int) -> bytes:
    """Return UINT16, marshalled."""
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    """Return UINT32, marshalled."""
    return value.to_bytes(4, "big")


def sized(data: bytes) -> bytes:
    """Return a TPM2B: the data after its size in two bytes."""
    return u16(len(data)) + data


class Reader:
    """Takes a response's parameters apart; running out of bytes is an error of the TPM's."""

    def __init__(self, data: bytes, *, command: str, source: str = "") -> None:
        self._data = data
        self._at = 0
        self._command = command
        self._source = source

    def number(self, size: int) -> int:
        """Return an unsigned number of so many bytes."""
        return int.from_bytes(self.take(size), "big")

    def sized(self) -> bytes:
        """Return the content of a TPM2B."""
        return self.take(self.number(2))

    def take(self, size: int) -> bytes:
        """Return so many bytes.

        Raises:
            HostError: The answer is too short.
        """
        end = self._at + size
        if end > len(self._data):
            raise HostError(
                f"the TPM's answer to {self._command} is too short", source=self._source or None
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken


def _command(code: int, handles: bytes, area: Any, parameters: bytes) -> bytes:
    body = handles + (b"" if area is None else u32(len(area)) + area) + parameters
    tag = NO_SESSIONS if area is None else SESSIONS
    return _HEADER.pack(tag, _HEADER.size + len(body), code) + body


def _code(name: str, response: bytes, *, source: str) -> int:
    if len(response) < _HEADER.size:
        raise HostError(f"the TPM's answer to {name} has no header", source=source)
    _, size, code = _HEADER.unpack_from(response)
    if size != len(response):
        raise HostError(
            f"the TPM's answer to {name} says {size} bytes and has {len(response)}", source=source
        )
    return int(code)


def _split(name: str, response: bytes, *, makes_handle: bool) -> tuple[int, bytes, bytes]:
    """Return handle, parameters and authorisations of an answer."""
    tag, _, _ = _HEADER.unpack_from(response)
    body = Reader(response[_HEADER.size :], command=name)
    handle = body.number(4) if makes_handle else 0
    rest = response[_HEADER.size + (4 if makes_handle else 0) :]
    if tag != SESSIONS:
        return handle, rest, b""
    size = body.number(4)
    return handle, body.take(size), rest[4 + size :]


def unreachable(tcti: str, error: Exception) -> HostError:
    """Return why a TPM cannot be reached, as precisely as the system tells it."""
    path = device_path(tcti)
    if path is not None:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as refused:
            reasons = {
                errno.EBUSY: (
                    "is held by another program or a resource manager",
                    "Use device:/dev/tpmrm0, or tabrmd: where tpm2-abrmd runs",
                ),
                errno.EACCES: ("permission denied", "Join the group tss, or be root"),
                errno.ENOENT: ("there is no such device", "Is the TPM switched on in firmware?"),
            }
            reason, hint = reasons.get(
                refused.errno or 0, (f"cannot be opened ({refused.strerror})", "")
            )
            return HostError(reason, source=path, hint=hint or None)
    return HostError(
        f"no TPM answers: {error}",
        source=tcti,
        hint=_hint(tcti),
    )


def _hint(tcti: str) -> str:
    kind, _, rest = tcti.partition(":")
    if kind != "swtpm":
        return "Name it as for tpm2-tools: device:/dev/tpmrm0, swtpm:path=…, mssim:host=…,port=…"
    named = re.search(r"path=([^,]+)", rest)
    if named:
        control = f"{named[1]}.ctrl"
        return f"swtpm's control channel must listen too, at {control}; see docs/tpm.md"
    return "swtpm's control channel must listen too, at the next port; see docs/tpm.md"
