"""Whether a capture of boots holds a boot already: by its files, and by its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from excise.capture.journal import Event, Record, Run
from excise.errors import UsageError
from excise.events.same_boot import STAGE
from excise.formats.model import Reading
from excise.formats.systemd_analyze import BOOT

_MS: Final = 1_000_000


def require_new_boot(
    path: Path,
    known: Sequence[Record],
    *,
    inputs: Sequence[tuple[str, bytes]],
    reading: Reading,
    live: bool = False,
) -> None:
    """Refuse a boot that a capture holds already, under whatever configuration.

    It is there if one of its files is, whatever ends its lines, or if a boot there has the same
    stages of the same length, to the digits that their files print.

    Args:
        path: The capture.
        known: Its records.
        inputs: Name and bytes of each file of the boot.
        reading: The boot, as `merge_boot` gives it.
        live: Whether it is a boot of this host whose identifier is new: then milliseconds alone,
            in which boots do come to equal each other, do not count.

    Raises:
        UsageError: If the capture holds it.
    """
    boots = [each for each in known if isinstance(each, Run) and each.task == BOOT]
    stages = _stages([each for each in known if isinstance(each, Event)])
    own = _stages(reading.events).get(0, {})
    exact = any(value % _MS for value in own.values())
    files = {} if live else {_text(data): name for name, data in inputs}
    for place, boot in enumerate(boots):
        twin = next((files[text] for text in _texts(path, place) if text and text in files), None)
        what = "" if twin is None else f"{twin} is a file of"
        if not what and (exact or not live) and _equal(own, stages.get(boot.sequence, {})):
            what = "all stages are as long as those of"
        if what:
            raise UsageError(
                f"holds this boot already: {what} its boot {boot.run + 1} of "
                f"{boot.configuration!r}",
                source=str(path),
                hint="Give the files of another boot"
                + ("" if live else "; if this is one nevertheless, give --another-boot"),
            )


def _texts(path: Path, place: int) -> list[bytes]:
    """Return the texts of the files of the boot at this place."""
    return [_text(each.read_bytes()) for each in sorted((path / "raw").glob(f"{place}.*"))]


def _text(data: bytes) -> bytes:
    return b"\n".join(line.rstrip() for line in data.strip().splitlines())


def _stages(events: Sequence[Event]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for event in events:
        if event.layer == STAGE and event.parent is None:
            found.setdefault(event.sequence, {})[event.event] = event.value
    return found


def _without_initrd(stages: Mapping[str, float]) -> dict[str, float]:
    """Return stages as systemd counts them without the kernel's log: the initrd to the kernel."""
    rest = {name: value for name, value in stages.items() if name != "initrd"}
    if "kernel" in rest:
        rest["kernel"] += stages.get("initrd", 0.0)
    return rest


def _equal(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Tell whether two boots have the same stages, as long to the digits that are printed."""
    if ("initrd" in ours) != ("initrd" in theirs):
        ours, theirs = _without_initrd(ours), _without_initrd(theirs)
    if not ours or ours.keys() != theirs.keys():
        return False
    return all(
        value == theirs[name]
        or ((value % _MS == 0 or theirs[name] % _MS == 0) and abs(value - theirs[name]) < _MS)
        for name, value in ours.items()
    )
