"""Images: decoded from files, hashed, and written."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from excise.errors import FormatError, HostError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_PIXELS: Final = 50_000_000


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


def _pillow() -> Any:
    try:
        from PIL import Image as Pillow
    except ImportError as error:
        raise HostError(
            "reading images needs the library Pillow", hint="pip install 'excise[face]'"
        ) from error
    return Pillow
