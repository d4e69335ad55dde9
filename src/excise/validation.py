"""What is wrong in a file that a model describes: the key, and the keys or words it could be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from excise.errors import SpecError

_ERROR: Final = re.compile(r"(?P<reason>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"(?:unknown|required) field `([^`]+)`")
_WORD: Final = re.compile(r"Invalid (?:enum )?value '(.*)'", re.DOTALL)
_STEP: Final = re.compile(r"\[[^]]*\]|[^.\[]+")


def spec_error(error: Exception, *, model: type, source: str, hint: str | None = None) -> SpecError:
    """Return the error that names the key in msgspec's text, `REASON - at `$.tasks[0]``.

    A key that is unknown or missing stands in the reason, and where it belongs in the path. Of a
    word that is none of those a key takes, the reason lists them; of an unknown key the hint has
    the one that was perhaps meant.

    Args:
        error: What msgspec raised.
        model: What was to be read.
        source: The file.
        hint: What to do.
    """
    found = _ERROR.fullmatch(str(error))
    reason, path = found.group("reason", "path") if found else (str(error), None)
    field = _FIELD.search(reason)
    if word := _WORD.fullmatch(reason):
        allowed = sorted(
            str(value)
            for place in _at(model, path or "")
            for value in place.get("enum", ())
            if value is not None
        )
        if allowed:
            reason = f"{word[1]!r} is not one of {', '.join(dict.fromkeys(allowed))}"
    elif field and "unknown" in field[0]:
        known = {name for place in _at(model, path or "") for name in place.get("properties", ())}
        if near := difflib.get_close_matches(field[1], sorted(known), n=1):
            hint = " ".join(filter(None, [f"Did you mean `{near[0]}`?", hint]))
    key = ".".join(part for part in (path, field and field[1]) if part)
    return SpecError(reason, source=source, key=key or None, hint=hint)


def _at(model: type, path: str) -> list[dict[str, Any]]:
    """Return the JSON schemas of what may stand at a path such as `tasks[0].timeout`."""
    schema = msgspec.json.schema(model)
    places = [schema]
    for step in _STEP.findall(path):
        whole = [each for place in places for each in _alternatives(place, schema["$defs"])]
        if step.startswith("["):
            found = [p.get("items", p.get("additionalProperties")) for p in whole]
        else:
            found = [place.get("properties", {}).get(step) for place in whole]
        places = [each for each in found if isinstance(each, dict)]
    return [each for place in places for each in _alternatives(place, schema["$defs"])]


def _alternatives(place: dict[str, Any], defined: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in place:
        yield from _alternatives(defined[place["$ref"].rpartition("/")[2]], defined)
        return
    inner = place.get("anyOf")
    if inner is None:
        yield place
        return
    for each in inner:
        yield from _alternatives(each, defined)
