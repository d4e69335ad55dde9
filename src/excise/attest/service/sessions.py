"""Sessions and nonces: made here, used once, for a limited time, and only so many at once."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from excise.errors import HostError, Refused, UsageError
from excise.units import counted

TOKEN_BYTES: Final = 32

_T = TypeVar("_T")


class SessionError(Refused):
    """A session that cannot be gone on with."""


class SessionUnknown(SessionError):  # noqa: N818  an answer, not a fault
    """No such session was opened here, or it is long over."""


class SessionUsed(SessionError):  # noqa: N818  an answer, not a fault
    """This step of the session was taken already: the message is a replay."""


class SessionExpired(SessionError):  # noqa: N818  an answer, not a fault
    """The session's time is over."""


class NoRoomError(HostError):
    """So many sessions are open that no other can be."""


@dataclass(slots=True)
class _Entry(Generic[_T]):
    state: _T | None
    expires_s: float


class SessionStore(Generic[_T]):
    """State by random token, each taken once; safe to use from several threads.

    A step of a protocol takes the state and, if there is a next step, keeps a new one under the
    same token. Whoever comes with the same step again finds it used.

    Args:
        lifetime_s: How long a session lasts from when it was opened, whatever happens in it.
        capacity: How many sessions may be open.
        clock: Seconds that only grow; for tests.

    Raises:
        UsageError: The lifetime is no time.
    """

    def __init__(
        self,
        *,
        lifetime_s: float = 120.0,
        capacity: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (math.isfinite(lifetime_s) and lifetime_s > 0):
            raise UsageError(f"a session of {lifetime_s} seconds", hint="Give a time above zero")
        self.lifetime_s = lifetime_s
        self._capacity = capacity
        self._clock = clock
        self._entries: dict[str, _Entry[_T]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many sessions are held, used and expired ones included."""
        return len(self._entries)

    def open(self, state: _T) -> str:
        """Return the token of a new session: 32 random bytes, in hexadecimal.

        Raises:
            NoRoomError: Too many are open.
        """
        now = self._clock()
        with self._lock:
            self._forget(now)
            if len(self._entries) >= self._capacity:
                raise NoRoomError(
                    f"{counted(self._capacity, 'session is', 'sessions are')} open",
                    hint=f"Try again in {self.lifetime_s:g} s",
                )
            token = secrets.token_hex(TOKEN_BYTES)
            self._entries[token] = _Entry(state=state, expires_s=now + self.lifetime_s)
            return token

    def take(self, token: str) -> _T:
        """Return a session's state, and leave the session used.

        Raises:
            SessionUnknown: There is none of this token.
            SessionUsed: It was taken before.
            SessionExpired: Its time is over.
        """
        now = self._clock()
        with self._lock:
            entry = self._entries.get(token)
            if entry is None:
                raise SessionUnknown("no such session", hint="Open a new one")
            state, entry.state = entry.state, None
            if now >= entry.expires_s:
                raise SessionExpired(
                    f"the session lasted {self.lifetime_s:g} s", hint="Open a new one"
                )
            if state is None:
                raise SessionUsed("the session was used already", hint="Open a new one")
            return state

    def keep(self, token: str, state: _T) -> None:
        """Give a session that was taken its next state; its end stays where it was.

        Raises:
            SessionUnknown: It ended meanwhile.
        """
        with self._lock:
            entry = self._entries.get(token)
            if entry is None:
                raise SessionUnknown("the session ended meanwhile", hint="Open a new one")
            entry.state = state

    def _forget(self, now: float) -> None:
        # Tokens are entered in the order of their end. One that is over is remembered for as long
        # again, so that it can be told from one that never was.
        while self._entries:
            token, entry = next(iter(self._entries.items()))
            full = len(self._entries) >= self._capacity
            if now < entry.expires_s + (0 if full else self.lifetime_s):
                return
            del self._entries[token]
