"""A V4L2 camera: frames as they come, in one of the formats that are known here.

A camera keeps the format that it was set to, where that is known; else the first known one that it
offers is set. Frames are streamed, or read(2) from a device that cannot stream.

Source: Linux, Documentation/userspace-api/media/v4l: device capabilities, formats, defaults of
colour encoding and quantization.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from excise.attest.sensor.frames import FORMATS, Layout, frame_pixels
from excise.attest.sensor.images import Image
from excise.errors import HostError

if TYPE_CHECKING:
    from linuxpy.video.device import Device, Frame, VideoCapture

FRAME_S: Final = 10.0
"""How long to wait for a frame: a camera that was off takes seconds."""

_BROKEN_FRAMES: Final = 30
_BT709: Final = (2, 4)  # V4L2_YCBCR_ENC_709 and V4L2_YCBCR_ENC_XV709
_PREFERRED: Final = ("RGB24", "BGR24", "YUYV", "UYVY", "NV12", "YUV420", "MJPEG", "JPEG")
_HINTS: Final = {
    errno.EBUSY: "Another program uses it: fuser -v {path}",
    errno.EACCES: "Cameras belong to the group video, or to root",
    errno.EPERM: "Cameras belong to the group video, or to root",
    errno.ENODEV: "It was unplugged, or its driver has gone",
    errno.ENXIO: "It was unplugged, or its driver has gone",
}


class Camera:
    """A device that gives frames.

    Args:
        path: The device.
        device: It, opened.
        stream: Its stream, which is on; None where it is read.
    """

    def __init__(self, path: Path, device: Device, stream: VideoCapture | None) -> None:
        self._path, self._device, self._stream = path, device, stream
        self._layout = _layout(device)
        self._frame_bytes = int(_raw_format(device).fmt.pix.sizeimage)

    def capture(self) -> Image:
        """Return the next frame that came whole.

        Raises:
            HostError: None does, in time.
        """
        for _ in range(_BROKEN_FRAMES):
            data = self._frame()
            if data is not None:
                pixels = frame_pixels(data, self._layout, source=str(self._path))
                return Image(pixels=pixels, source=str(self._path))
        raise HostError(
            f"of {_BROKEN_FRAMES} frames none came whole",
            source=str(self._path),
            hint="Try another cable or port, or a smaller format",
        )

    def _frame(self) -> bytes | None:
        """Return the next frame's bytes; None for one that the driver says is broken."""
        try:
            ready, _, _ = select.select([self._device.fileno()], [], [], FRAME_S)
            if not ready:
                raise HostError(
                    f"the camera gave no frame in {FRAME_S:g} s",
                    source=str(self._path),
                    hint="Is its lens closed, or its input without a signal?",
                )
            if self._stream is None:
                return os.read(self._device.fileno(), self._frame_bytes)
            frame = self._stream.buffer.raw_read()
        except OSError as error:
            raise _unusable(error, self._path, "gives no frame") from error
        return bytes(frame) if _whole(frame) else None


@contextmanager
def open_camera(path: Path, *, streaming: bool | None = None) -> Iterator[Camera]:
    """Open a camera and let it stream for as long as it is used.

    Args:
        path: The device.
        streaming: Whether it streams, or its frames are read; None for what it can.

    Raises:
        HostError: It cannot be opened, is used by another program, captures no images, or offers
            no format that is known here.
    """
    try:
        from linuxpy.video.device import Device, VideoCapture
    except ImportError as error:
        reason = "a camera needs the library linuxpy"
        raise HostError(reason, hint="pip install 'excise[face]'") from error
    device = Device(str(path))
    try:
        device.open()
    except OSError as error:
        raise _unusable(error, path, "cannot be opened") from error
    with ExitStack() as stack:
        stack.callback(_leave, device)
        try:
            can_stream = _require_capture(device, path)
            _choose_format(device, path)
            stream = (
                VideoCapture(device) if (streaming is None and can_stream) or streaming else None
            )
            if stream is not None:
                stack.callback(_leave, stream)
                stream.open()
            camera = Camera(path, device, stream)
        except OSError as error:
            raise _unusable(error, path, "cannot be used") from error
        yield camera


def _leave(opened: Device | VideoCapture) -> None:
    """Close what was opened, as far as it was; the device may be gone."""
    with suppress(OSError, ValueError):
        opened.close()


def _unusable(error: OSError, path: Path, what: str) -> HostError:
    hint = _HINTS.get(error.errno or 0, "").format(path=path)
    if error.errno in (errno.ENOTTY, errno.EINVAL) and what != "gives no frame":
        return HostError("is no camera (it does not speak V4L2)", source=str(path))
    name = os.strerror(error.errno) if error.errno else str(error)
    return HostError(f"the camera {what} ({name})", source=str(path), hint=hint or None)


def _require_capture(device: Device, path: Path) -> bool:
    """Return whether a camera can stream; raise where it is none."""
    from linuxpy.video.device import Capability

    has = device.info.device_capabilities
    if Capability.VIDEO_CAPTURE not in has:
        several = Capability.VIDEO_CAPTURE_MPLANE in has
        raise HostError(
            "gives images in several planes, which are not known here"
            if several
            else f"captures no images ({device.info.card})",
            source=str(path),
            hint="A camera often has several devices; try the others of /dev/video*",
        )
    return Capability.STREAMING in has


def _choose_format(device: Device, path: Path) -> None:
    """Leave the format that is set where it is known; else set one that is."""
    from linuxpy.video.device import BufferType

    kind = BufferType.VIDEO_CAPTURE
    now = _raw_format(device)
    if _format_name(now.fmt.pix.pixelformat) in FORMATS:
        return
    offered = [_format_name(each.pixel_format) for each in device.info.buffer_formats(kind)]
    chosen = [*(each for each in _PREFERRED if each in offered), *(set(offered) & set(FORMATS))]
    if not chosen:
        raise HostError(
            f"offers no format that is known here: {', '.join(offered) or 'none'}",
            source=str(path),
            hint=f"Known are {', '.join(FORMATS)}",
        )
    from linuxpy.video.device import PixelFormat

    device.set_format(kind, now.fmt.pix.width, now.fmt.pix.height, PixelFormat[chosen[0]])


def _raw_format(device: Device) -> Any:
    from linuxpy.video.device import BufferType, get_raw_format

    return get_raw_format(device, BufferType.VIDEO_CAPTURE)


def _format_name(code: int) -> str:
    """Return the name of a pixel format: linuxpy's, or the four letters of its code."""
    from linuxpy.video.device import PixelFormat

    with suppress(ValueError):
        return str(PixelFormat(code).name)
    return int(code).to_bytes(4, "little").decode("ascii", "replace").strip()


def _layout(device: Device) -> Layout:
    from linuxpy.video import raw

    pix = _raw_format(device).fmt.pix
    # Defaults of the kernel: BT.601 in the studio range, but JPEG's colours, which are in the full.
    colours, encoding, range_ = int(pix.colorspace), int(pix.ycbcr_enc), int(pix.quantization)
    jpeg = colours == raw.Colorspace.JPEG
    return Layout(
        form=_format_name(pix.pixelformat),
        width=int(pix.width),
        height=int(pix.height),
        bytes_per_line=int(pix.bytesperline),
        full_range=range_ == raw.Quantization.FULL_RANGE if range_ else jpeg,
        bt709=encoding in _BT709 if encoding else colours == raw.Colorspace.REC709,
    )


def _whole(frame: Frame) -> bool:
    from linuxpy.video.device import BufferFlag

    buffer = frame.buff
    return buffer is None or not int(buffer.flags) & int(BufferFlag.ERROR)
