"""Trust anchors and reference values of several builds side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from excise.errors import FormatError, Refused
from excise.evidence.checks import Outcome
from excise.evidence.corim.document import (
    MAX_CORIM_BYTES,
    CorimOptions,
    read_corim,
    verify_corim,
)
from excise.evidence.corim.profiles import (
    Endorsements,
    RealmReference,
    ReferenceValue,
    read_endorsements,
)
from excise.evidence.corim.template import build_from_folder, builds_in, unknown_build
from excise.evidence.cose_key import VerificationKey
from excise.files import read_whole


class ReferenceStore:
    """What a verifier knows, by build.

    A build is one consistent set of software (a firmware image): evidence matches a build, never
    a mixture of two.
    """

    def __init__(self, builds: Mapping[str, Sequence[Endorsements]] | None = None) -> None:
        self._builds = {name: tuple(held) for name, held in (builds or {}).items()}
        self._anchors: dict[tuple[bytes, bytes], dict[bytes, VerificationKey]] = {}
        self._values: dict[bytes, dict[str, tuple[ReferenceValue, ...]]] = {}
        for name, held in self._builds.items():
            for one in held:
                self._index(name, one)

    def _index(self, build: str, held: Endorsements) -> None:
        for anchor in held.anchors:
            device = (anchor.implementation_id, anchor.instance_id)
            # One key in two builds is one trust anchor; two keys for a device are a fault.
            self._anchors.setdefault(device, {})[anchor.key.spki()] = anchor.key
        for value in held.values:
            builds = self._values.setdefault(value.implementation_id, {})
            builds[build] = (*builds.get(build, ()), value)

    @property
    def builds(self) -> tuple[str, ...]:
        """Return the names of the builds."""
        return tuple(self._builds)

    def with_build(self, name: str, held: Endorsements) -> ReferenceStore:
        """Return a store with one more document; one of the same build and name is replaced."""
        kept = tuple(one for one in self._builds.get(name, ()) if one.corim != held.corim)
        return ReferenceStore({**self._builds, name: (*kept, held)})

    def only(self, *builds: str) -> ReferenceStore:
        """Return the store with some builds alone.

        Raises:
            UsageError: There is no such build; the hint lists what exists.
        """
        for build in builds:
            if build not in self._builds:
                raise unknown_build(build, self.builds, source="reference values")
        return ReferenceStore({build: self._builds[build] for build in builds})

    def keys_for(
        self, *, implementation_id: bytes, instance_id: bytes
    ) -> Sequence[VerificationKey]:
        """Return the keys registered for a device: implementation and instance must both agree."""
        return tuple(self._anchors.get((implementation_id, instance_id), {}).values())

    def instances_of(self, implementation_id: bytes) -> Sequence[bytes]:
        """Return the instance IDs of one kind of device that have keys."""
        return tuple(instance for kind, instance in self._anchors if kind == implementation_id)

    def values_for(self, implementation_id: bytes) -> Mapping[str, tuple[ReferenceValue, ...]]:
        """Return the reference values for a kind of device, by build."""
        return self._values.get(implementation_id, {})

    def configs_for(self, implementation_id: bytes) -> tuple[bytes, ...]:
        """Return the platform configurations registered for a kind of CCA device."""
        return tuple(
            config
            for held in self._builds.values()
            for one in held
            for implementation, config in one.configs
            if implementation == implementation_id
        )

    def realms(self) -> tuple[RealmReference, ...]:
        """Return the references of CCA realms."""
        return tuple(
            realm for held in self._builds.values() for one in held for realm in one.realms
        )


def load_store(paths: Iterable[Path], *, options: CorimOptions | None = None) -> ReferenceStore:
    """Return a store of files and folders.

    A CoRIM file is a build named as the file is (without suffix); a folder gives each of its CoRIM
    files and each build of its templates.

    Args:
        paths: CoRIM files (`.cbor`, `.corim`) and folders.
        options: What is asked of each CoRIM; None takes them as the caller's own, unsigned too.

    Raises:
        FormatError: A file cannot be read, or nothing is in a folder.
        Refused: A CoRIM is not to be believed; the differences are its failed checks.
    """
    store = ReferenceStore()
    for path in paths:
        for name, data in _documents(path):
            source = f"{path}, build {name}" if path.is_dir() else str(path)
            held = accept_corim(data, options=options, source=source)
            store = store.with_build(name, held)
    return store


def accept_corim(
    data: bytes, *, options: CorimOptions | None, source: str, profile: str = ""
) -> Endorsements:
    """Return what a CoRIM endorses, once it is believed.

    Raises:
        FormatError: It cannot be read.
        Refused: A check failed.
    """
    corim = read_corim(data, source=source)
    if options is not None:
        found = verify_corim(corim, options=options)
        if found.verdict is not Outcome.PASSED and (
            options.require_signed or found.verdict is Outcome.FAILED
        ):
            failed = tuple(
                f"{check.id}: {check.got}, expected {check.expected}".removesuffix(", expected ")
                for check in found.checks
                if check.outcome is Outcome.FAILED
            )
            raise Refused("the CoRIM is not to be believed", source=source, differences=failed)
    return read_endorsements(corim, profile=profile)


def _documents(path: Path) -> list[tuple[str, bytes]]:
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in (".cbor", ".corim", ".cose"))
        found = [(file.stem, _bytes(file)) for file in files]
        found += [(name, build_from_folder(path, build=name)) for name in builds_in(path)]
        if not found:
            hint = "CoRIM files end in .cbor, .corim or .cose; templates are comid-…-refval.json"
            raise FormatError("holds no CoRIM and no template", source=str(path), hint=hint)
        return found
    return [(path.stem, _bytes(path))]


def _bytes(path: Path) -> bytes:
    try:
        return read_whole(path, limit_bytes=MAX_CORIM_BYTES)
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from error
