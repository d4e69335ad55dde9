"""The one tree of errors: attributes first, text derived from them (what, where, what to do).

Every error carries its exit code, so that one place (`excise.cli.main`) maps errors to codes:
1 answered "no" · 2 usage · 3 unreadable input · 4 this host cannot.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ExciseError(Exception):
    """Base class of everything excise raises on purpose.

    Attributes:
        reason: What is wrong, in one clause without a full stop.
        source: The file, command or object it is wrong in, if any.
        hint: What the reader can do about it, if known.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, reason: str, *, source: str | None = None, hint: str | None = None) -> None:
        self.reason = reason
        self.source = source
        self.hint = hint
        super().__init__(reason)

    def where(self) -> str:
        """Return the place of the fault, as precise as it is known; empty when unknown."""
        return self.source or ""

    def as_dict(self) -> dict[str, Any]:
        """Return the error's attributes, for `--json`."""
        fields = {k: v for k, v in vars(self).items() if not k.startswith("_") and v is not None}
        return {"error": type(self).__name__, **fields, "exit_code": self.exit_code}

    def __str__(self) -> str:
        place = self.where()
        text = f"{place}: {self.reason}" if place else self.reason
        return f"{text}. {self.hint}" if self.hint else text


class UsageError(ExciseError):
    """The command line or the call asks for something that makes no sense."""

    exit_code = 2


class OutputError(UsageError):
    """What was named for an output cannot be written there, or is taken by something else."""


class SpecError(UsageError):
    """A campaign file has a wrong key or value.

    Attributes:
        key: Dotted path of the key, such as `tasks[2].timeout_s`.
    """

    def __init__(
        self,
        reason: str,
        *,
        source: str | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(reason, source=source, hint=hint)
        self.key = key

    def where(self) -> str:
        """Return the file and the key."""
        return ": ".join(part for part in (self.source, self.key) if part)


class FormatError(ExciseError):
    """Input that cannot be read as what it claims to be.

    Attributes:
        line: Line number in text input, from 1.
        offset: Byte offset in binary input, from 0.
        field: The field being read.
    """

    exit_code = 3

    def __init__(
        self,
        reason: str,
        *,
        source: str | None = None,
        line: int | None = None,
        offset: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(reason, source=source, hint=hint)
        self.line = line
        self.offset = offset
        self.field = field

    def where(self) -> str:
        """Return source, line or offset, and field."""
        parts = [self.source] if self.source else []
        if self.line is not None:
            parts.append(f"line {self.line}")
        if self.offset is not None:
            parts.append(f"offset {self.offset}")
        if self.field is not None:
            parts.append(f"field {self.field}")
        return ": ".join(parts)


class CaptureError(ExciseError):
    """A capture that cannot be opened, written or trusted as it stands."""

    exit_code = 3


class HostError(ExciseError):
    """This host cannot do what was asked (no kernel support, no privilege, no program)."""

    exit_code = 4


class ConnectionLost(HostError):  # noqa: N818  an event on the way, not a fault
    """The connection to a machine broke, or could not be made for now; trying again may help."""


class EffectError(HostError):
    """A configuration did not take effect, so measuring it would measure something else."""


class Refused(ExciseError):  # noqa: N818  an answer, not a fault
    """The answer is "no": a comparison refused, a regression found, evidence rejected.

    Attributes:
        differences: One line for each reason, when there are several.
    """

    exit_code = 1

    def __init__(
        self,
        reason: str,
        *,
        source: str | None = None,
        differences: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(reason, source=source, hint=hint)
        self.differences = differences

    def __str__(self) -> str:
        text = super().__str__()
        return "\n".join([text, *(f"  {line}" for line in self.differences)])
