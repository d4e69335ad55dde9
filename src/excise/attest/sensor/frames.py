"""Frames of the pixel formats that cameras speak, as RGB.

Sources: Linux, Documentation/userspace-api/media/v4l/pixfmt*.rst; ITU-R BT.601 and BT.709.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from excise.attest.sensor.images import read_image
from excise.errors import HostError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Bytes of a pixel, and where red, green and blue are in it.
_PACKED_RGB: Final = {
    "RGB24": (3, (0, 1, 2)),
    "BGR24": (3, (2, 1, 0)),
    "RGB32": (4, (1, 2, 3)),
    "XRGB32": (4, (1, 2, 3)),
    "ARGB32": (4, (1, 2, 3)),
    "BGR32": (4, (2, 1, 0)),
    "XBGR32": (4, (2, 1, 0)),
    "ABGR32": (4, (2, 1, 0)),
    "RGBX32": (4, (0, 1, 2)),
    "RGBA32": (4, (0, 1, 2)),
    "GREY": (1, (0, 0, 0)),
}
# Where Y of the left pixel, U, Y of the right one and V are in the four bytes of two pixels.
_PAIRS: Final = {
    "YUYV": (0, 1, 2, 3),
    "YVYU": (0, 3, 2, 1),
    "UYVY": (1, 0, 3, 2),
    "VYUY": (1, 2, 3, 0),
}
# Planes after that of Y at half its height: one of U and V in turns, or one of each; U first?
_PLANES: Final = {
    "NV12": (1, True),
    "NV21": (1, False),
    "YUV420": (2, True),
    "YVU420": (2, False),
}
_COMPRESSED: Final = ("MJPEG", "JPEG")

FORMATS: Final = (*_PACKED_RGB, *_PAIRS, *_PLANES, *_COMPRESSED)
"""Names of the formats that are known, as linuxpy has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a camera lays out its frames.

    Attributes:
        form: One of `FORMATS`.
        width: Pixels of a line.
        height: Lines.
        bytes_per_line: From a line to the next; more than the pixels take where it is padded, 0
            for as many.
        full_range: Whether luma goes from 0 to 255, and not from 16 to 235.
        bt709: Whether colours are those of BT.709, and not of BT.601.
    """

    form: str
    width: int
    height: int
    bytes_per_line: int = 0
    full_range: bool = False
    bt709: bool = False


def frame_pixels(data: bytes, layout: Layout, *, source: str) -> NDArray[np.uint8]:
    """Return a frame's pixels: uint8, shape (height, width, 3), red first.

    Raises:
        HostError: The format is not known, or the frame is shorter than its format says.
        FormatError: A compressed frame is no image.
    """
    import numpy as np

    if layout.form in _COMPRESSED:
        return read_image(data, source=source).pixels
    if layout.form in _PACKED_RGB:
        depth, order = _PACKED_RGB[layout.form]
        lines = _lines(data, layout, depth * layout.width, layout.height, 0, source)
        pixels = lines.reshape(layout.height, layout.width, depth)
        return np.ascontiguousarray(pixels[:, :, list(order)])
    if layout.form in _PAIRS:
        lines = _lines(data, layout, 4 * (-(-layout.width // 2)), layout.height, 0, source)
        pairs = lines.reshape(layout.height, -1, 4)
        y0, u, y1, v = _PAIRS[layout.form]
        luma = pairs[..., [y0, y1]].reshape(layout.height, -1)
        blue, red = (np.repeat(pairs[..., at], 2, axis=1) for at in (u, v))
        return _rgb(luma, blue, red, layout)[:, : layout.width]
    if layout.form in _PLANES:
        return _from_planes(data, layout, source)
    raise HostError(
        f"the camera's format {layout.form} is not known",
        source=source,
        hint=f"Set another, such as by v4l2-ctl --set-fmt-video; known are {', '.join(FORMATS)}",
    )


def _from_planes(data: bytes, layout: Layout, source: str) -> NDArray[np.uint8]:
    """Return RGB of 4:2:0 in planes."""
    import numpy as np

    planes, blue_first = _PLANES[layout.form]
    width, height = -(-layout.width // 2), -(-layout.height // 2)
    stride = layout.bytes_per_line or layout.width
    luma = _lines(data, layout, layout.width, layout.height, 0, source)
    at = stride * layout.height
    if planes == 1:
        pairs = _lines(data, layout, 2 * width, height, at, source).reshape(height, width, 2)
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        half = Layout(form=layout.form, width=width, height=height, bytes_per_line=stride // 2)
        first = _lines(data, half, width, height, at, source)
        second = _lines(data, half, width, height, at + stride // 2 * height, source)
    blue, red = (first, second) if blue_first else (second, first)
    wide = (np.repeat(np.repeat(each, 2, axis=0), 2, axis=1) for each in (blue, red))
    blue, red = (each[: layout.height, : layout.width] for each in wide)
    return _rgb(luma, blue, red, layout)


def _lines(
    data: bytes, layout: Layout, width: int, height: int, offset: int, source: str
) -> NDArray[np.uint8]:
    """Return lines of so many bytes of a plane that begins at an offset, without their padding."""
    import numpy as np

    stride = max(layout.bytes_per_line, width)
    size = offset + stride * (height - 1) + width
    if len(data) < size:
        raise HostError(f"a frame has {len(data)} bytes, not {size}", source=source)
    raw = np.frombuffer(data, dtype=np.uint8, count=size - offset, offset=offset)
    padded = np.zeros(stride * height, dtype=np.uint8)
    padded[: raw.size] = raw
    return padded.reshape(height, stride)[:, :width]


def _rgb(
    luma: NDArray[np.uint8], blue: NDArray[np.uint8], red: NDArray[np.uint8], layout: Layout
) -> NDArray[np.uint8]:
    """Return RGB of luma and the two differences of colour, all of one shape."""
    import numpy as np

    red_part, blue_part = (0.2126, 0.0722) if layout.bt709 else (0.299, 0.114)
    lowest, luma_range, colour_range = (0, 255, 255) if layout.full_range else (16, 219, 224)
    y = (luma.astype(np.float32) - lowest) * (255 / luma_range)
    cb, cr = ((each.astype(np.float32) - 128) * (255 / colour_range) for each in (blue, red))
    r = y + 2 * (1 - red_part) * cr
    b = y + 2 * (1 - blue_part) * cb
    g = (y - red_part * r - blue_part * b) / (1 - red_part - blue_part)
    pixels: NDArray[np.uint8] = np.clip(np.rint(np.stack([r, g, b], axis=-1)), 0, 255).astype("u1")
    return pixels
