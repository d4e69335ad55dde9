"""Runs inside a lab guest with the kernel's virtual camera: its test image in every known format.

Prints a line of JSON for each thing tried: what it was, and the colours or the error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from linuxpy.video.device import BufferType, Device, PixelFormat, VideoCapture

from excise.attest.sensor import camera, open_source, read_image
from excise.attest.sensor.frames import FORMATS
from excise.cli.main import main as excise
from excise.errors import ExciseError

CAMERA = Path(sys.argv[1])
BARS = 8


def tell(tried: str, **found: object) -> None:
    print(json.dumps({"tried": tried, **found}), flush=True)


def refused(tried: str, work: Callable[[], object]) -> None:
    try:
        work()
    except ExciseError as error:
        tell(tried, error=str(error))
    else:
        tell(tried, error=None)


def capture() -> list[list[int]]:
    """Return the colours in the middle of each of the test image's bars."""
    with open_source(str(CAMERA)) as source:
        return colours(source.capture())


def colours(image: object) -> list[list[int]]:
    pixels = image.pixels  # type: ignore[attr-defined]
    height, width = pixels.shape[:2]
    return [
        pixels[height // 2, width * (2 * bar + 1) // (2 * BARS)].tolist() for bar in range(BARS)
    ]


def main() -> None:
    capturing = BufferType.VIDEO_CAPTURE
    with Device(str(CAMERA)) as device:
        device.controls.test_pattern.value = 1  # bars at 100 %
        device.controls.osd_text_mode.value = 2  # no text
        offered = [
            PixelFormat(each.pixel_format).name for each in device.info.buffer_formats(capturing)
        ]
    tell("formats", offered=offered, known=list(FORMATS))
    for form in [each for each in FORMATS if each in offered]:
        for width, height in ((640, 360), (320, 180)):
            with Device(str(CAMERA)) as device:
                device.set_format(capturing, width, height, PixelFormat[form])
            tell(f"{form} {width}x{height}", colours=capture())
    with Device(str(CAMERA)) as device:
        unknown = next(each for each in offered if each not in FORMATS)
        device.set_format(capturing, 640, 360, PixelFormat[unknown])
    tell(f"set to {unknown}", colours=capture())
    with camera.open_camera(CAMERA, streaming=False) as source:
        tell("read(2)", colours=colours(source.capture()))
    with Device(str(CAMERA)) as device:
        device.controls.inject_v4l2_buf_flag_error.push()
        tell("a broken frame", colours=capture())
    sys.argv = [
        "excise",
        "sensor",
        "capture",
        "--source",
        str(CAMERA),
        "-o",
        "/excise/ext4/image.png",
    ]
    try:
        excise()
    except SystemExit as ended:
        png = Path("/excise/ext4/image.png").read_bytes()
        tell("the program", exit=ended.code or 0, colours=colours(read_image(png, source="png")))
    with Device(str(CAMERA)) as other, VideoCapture(other):
        refused("in use", capture)
    with Device(str(CAMERA)) as device:
        device.controls.percentage_of_dropped_buffers.value = 100
        camera.FRAME_S = 1.0  # type: ignore[misc]
        refused("no frame", capture)
        device.controls.percentage_of_dropped_buffers.value = 0
    refused("no such device", lambda: open_source("/dev/video9").__enter__())
    os.seteuid(65534)
    refused("no permission", capture)
    os.seteuid(0)
    with open_source(str(CAMERA)) as source:
        source.capture()
        with Device(str(CAMERA)) as device:
            device.controls.disconnect.push()
        refused("unplugged", lambda: [source.capture() for _ in range(8)])


main()
