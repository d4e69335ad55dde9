"""Where images come from: a camera (V4L2), a file, or the files of a folder in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from excise.attest.sensor.camera import open_camera
from excise.attest.sensor.images import Image, read_image
from excise.errors import FormatError, UsageError
from excise.files import read_whole

IMAGE_LIMIT_BYTES: Final = 64 << 20
_SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp", ".tif", ".tiff"}


class ImageSource(Protocol):
    """Gives one image after the other."""

    def capture(self) -> Image:
        """Return the next image.

        Raises:
            HostError: The camera gives none.
            FormatError: A file is no image.
        """


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
