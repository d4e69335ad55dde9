"""Where images come from: a camera (V4L2), a file, or the files of a folder in turn."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from excise.errors import FormatError, HostError, UsageError
from excise.files import read_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IMAGE_LIMIT_BYTES: Final = 64 << 20
MAX_PIXELS: Final = 50_000_000
_SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp", ".tif", ".tiff"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image.

    Attributes:
        pixels: uint8, shape (height, width, 3), red first.
        source: Where it is from.
    """

    pixels: NDArray[np.uint8]
    source: str

    @property
    def sha256(self) -> bytes:
        """Return SHA-256 over height and width as four bytes each, then the pixels."""
        height, width = self.pixels.shape[:2]
        head = height.to_bytes(4, "big") + width.to_bytes(4, "big")
        return hashlib.sha256(head + self.pixels.tobytes()).digest()

    def to_png(self) -> bytes:
        """Return the image as PNG, without loss."""
        from PIL import Image as Pillow

        out = io.BytesIO()
        Pillow.fromarray(self.pixels).save(out, format="PNG", compress_level=1)
        return out.getvalue()


class ImageSource(Protocol):
    """Gives one image after the other."""

    def capture(self) -> Image:
        """Return the next image.

        Raises:
            HostError: The camera gives none.
            FormatError: A file is no image.
        """


def read_image(data: bytes, *, source: str) -> Image:
    """Return an image from the bytes of a file.

    Raises:
        FormatError: They are no image, or one of more than 50 million pixels.
        HostError: Pillow is not installed.
    """
    pillow = _pillow()
    try:
        opened = pillow.open(io.BytesIO(data))
        if opened.width * opened.height > MAX_PIXELS:
            raise FormatError(f"has more than {MAX_PIXELS:,} pixels", source=source)
        rgb = opened.convert("RGB")
    except FormatError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds on broken files
        # Where Pillow knows no format, its text names a Python object.
        unknown = isinstance(error, pillow.UnidentifiedImageError)
        reason = "of no format that Pillow knows" if unknown else str(error)
        raise FormatError(f"is no image: {reason}", source=source) from error
    import numpy as np

    return Image(pixels=np.asarray(rgb, dtype=np.uint8), source=source)


@contextmanager
def open_source(name: str) -> Iterator[ImageSource]:
    """Open a source of images for as long as it is used.

    Args:
        name: A video device such as /dev/video0, an image file, or a folder of image files.

    Raises:
        UsageError: There is no such file or folder, or it holds no image.
        HostError: The device cannot be opened or gives no format that can be read.
    """
    path = Path(name)
    if path.is_char_device():
        from excise.attest.sensor.camera import open_camera

        with open_camera(path) as camera:
            yield camera
        return
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix.lower() in _SUFFIXES)
        if not files:
            raise UsageError(
                "holds no image", source=name, hint=f"Names end in {', '.join(sorted(_SUFFIXES))}"
            )
        yield _Files(files)
        return
    if not path.exists():
        raise UsageError(
            "there is no such device, file or folder",
            source=name,
            hint="Cameras are /dev/video0 and so on; an image file or a folder will do too",
        )
    yield _Files([path])


class _Files:
    """Image files, over and over."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._next = 0

    def capture(self) -> Image:
        path = self._files[self._next % len(self._files)]
        self._next += 1
        try:
            data = read_whole(path, limit_bytes=IMAGE_LIMIT_BYTES)
        except OSError as error:
            raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from error
        return read_image(data, source=str(path))


def _pillow() -> Any:
    try:
        from PIL import Image as Pillow
    except ImportError as error:
        raise HostError(
            "reading images needs the library Pillow", hint="pip install 'excise[face]'"
        ) from error
    return Pillow
