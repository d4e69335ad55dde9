"""Face embeddings: the numbers by which a face is known again."""

from __future__ import annotations

import importlib.util
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

from excise.attest.sensor.images import Image
from excise.errors import FormatError, HostError, Refused

FILE_MAGIC: Final = b"excise embedding 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What a model makes of a face.

    Attributes:
        model: Name of the model.
        values: float32 numbers; 128 for dlib's.
        image_sha256: Of the image it is from.
    """

    model: str
    values: tuple[float, ...]
    image_sha256: bytes

    def to_bytes(self) -> bytes:
        """Return the form in which it is handed over by file."""
        name = self.model.encode()
        numbers = struct.pack(f">{len(self.values)}f", *self.values)
        return FILE_MAGIC + bytes([len(name)]) + name + self.image_sha256 + numbers

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Embedding:
        """Return an embedding from that form.

        Raises:
            FormatError: The bytes are not of that form.
        """
        at = len(FILE_MAGIC)
        if not data.startswith(FILE_MAGIC) or len(data) < at + 1:
            raise FormatError("is no embedding of excise sensor embed", source=source)
        size = data[at]
        numbers = data[at + 1 + size + 32 :]
        digest = data[at + 1 + size : at + 1 + size + 32]
        if len(digest) != 32 or not numbers or len(numbers) % 4:
            raise FormatError("is cut short", source=source, offset=len(data))
        try:
            name = data[at + 1 : at + 1 + size].decode()
        except UnicodeDecodeError as error:
            raise FormatError("the model's name is not UTF-8", source=source) from error
        values = struct.unpack(f">{len(numbers) // 4}f", numbers)
        return cls(model=name, values=values, image_sha256=digest)


class Embedder(Protocol):
    """Makes an embedding of the face in an image."""

    def embed(self, image: Image) -> Embedding:
        """Return the embedding of the largest face.

        Raises:
            Refused: There is no face in the image.
            HostError: The model is not there.
        """


class DlibEmbedder:
    """dlib's ResNet model of 128 numbers (D. King, dlib_face_recognition_resnet_model_v1).

    The models are those of the package face_recognition_models; loading takes seconds, so an
    embedder is kept.
    """

    name: Final = "dlib_face_recognition_resnet_model_v1"

    @cached_property
    def _models(self) -> tuple[Any, Any, Any]:
        try:
            import dlib
        except ImportError as error:
            raise HostError(
                "the face embedding needs the library dlib", hint="pip install 'excise[face]'"
            ) from error
        folder = _model_folder()
        return (
            dlib.get_frontal_face_detector(),
            dlib.shape_predictor(str(folder / "shape_predictor_5_face_landmarks.dat")),
            dlib.face_recognition_model_v1(str(folder / f"{self.name}.dat")),
        )

    def embed(self, image: Image) -> Embedding:
        """Return the embedding of the largest face; see `Embedder`."""
        detect, landmarks, recognise = self._models
        faces = detect(image.pixels, 1)
        if not len(faces):
            raise Refused(
                "there is no face in the image",
                source=image.source,
                hint="The face must look at the camera and be 40 pixels wide or more",
            )
        largest = max(faces, key=lambda face: face.area())
        found = recognise.compute_face_descriptor(image.pixels, landmarks(image.pixels, largest))
        return Embedding(
            model=self.name, values=tuple(map(float, found)), image_sha256=image.sha256
        )


def _model_folder() -> Path:
    found = importlib.util.find_spec("face_recognition_models")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        raise HostError(
            "dlib's models are not installed (package face_recognition_models)",
            hint="pip install 'excise[face]'",
        )
    return Path(places[0]) / "models"
