"""Images come from files, folders and cameras; embeddings from faces and from nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.attest.sensor import DlibEmbedder, Embedding, open_source, read_image
from excise.attest.sensor.frames import FORMATS, Layout, frame_pixels
from excise.errors import FormatError, HostError, Refused, UsageError
from skips import skip

pytest.importorskip("PIL", reason="Pillow is not installed (extra face)")


def _face() -> Path:
    """A photograph of an astronaut by NASA, in the public domain, which scikit-image ships."""
    try:
        import skimage
    except ImportError:
        skip("scikit-image, whose package has a photograph of a face, is not installed")
    return Path(skimage.__file__).parent / "data" / "astronaut.png"


def _png(path: Path, value: int) -> Path:
    from PIL import Image

    Image.new("RGB", (8, 6), (value, 0, 255)).save(path)
    return path


def test_a_folder_gives_its_images_in_turn(tmp_path: Path) -> None:
    _png(tmp_path / "a.png", 1)
    _png(tmp_path / "b.png", 2)
    (tmp_path / "notes.txt").write_text("no image")
    with open_source(str(tmp_path)) as source:
        values = [int(source.capture().pixels[0, 0, 0]) for _ in range(4)]
    assert values == [1, 2, 1, 2]


def test_an_image_survives_its_png_and_its_digest_tells_its_shape(tmp_path: Path) -> None:
    with open_source(str(_png(tmp_path / "a.png", 7))) as source:
        image = source.capture()
    again = read_image(image.to_png(), source="png")
    assert again.sha256 == image.sha256
    turned = type(image)(pixels=image.pixels.reshape(8, 6, 3), source="turned")
    assert turned.sha256 != image.sha256


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("nowhere", UsageError, "no such device, file or folder"),
        ("empty", UsageError, "holds no image"),
        ("broken.png", FormatError, "is no image"),
    ],
)
def test_what_gives_no_image_is_named(
    tmp_path: Path, name: str, kind: type[Exception], reason: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nrest")
    with pytest.raises(kind, match=reason), open_source(str(tmp_path / name)) as source:
        source.capture()


def test_a_device_that_is_no_camera_is_named() -> None:
    pytest.importorskip("linuxpy", reason="linuxpy is not installed (extra face)")
    with (
        pytest.raises(HostError, match=r"is no camera .*V4L2"),
        open_source("/dev/null") as source,
    ):
        source.capture()


# BT.601 in the studio range: red is (81, 90, 240) in Y, U and V, white (235, 128, 128).
@pytest.mark.parametrize(
    ("form", "frame", "expected"),
    [
        ("RGB24", [255, 0, 0] * 4, [255, 0, 0]),
        ("BGR24", [0, 0, 255] * 4, [255, 0, 0]),
        ("XBGR32", [0, 0, 255, 9] * 4, [255, 0, 0]),
        ("XRGB32", [9, 255, 0, 0] * 4, [255, 0, 0]),
        ("RGBX32", [255, 0, 0, 9] * 4, [255, 0, 0]),
        ("GREY", [5] * 4, [5, 5, 5]),
        ("YUYV", [81, 90, 81, 240] * 2, [255, 0, 0]),
        ("YVYU", [81, 240, 81, 90] * 2, [255, 0, 0]),
        ("UYVY", [90, 81, 240, 81] * 2, [255, 0, 0]),
        ("VYUY", [240, 81, 90, 81] * 2, [255, 0, 0]),
        ("YUYV", [235, 128, 235, 128] * 2, [255, 255, 255]),
        ("YUYV", [16, 128, 16, 128] * 2, [0, 0, 0]),
        ("NV12", [81] * 4 + [90, 240], [255, 0, 0]),
        ("NV21", [81] * 4 + [240, 90], [255, 0, 0]),
        ("YUV420", [81] * 4 + [90] + [240], [255, 0, 0]),
        ("YVU420", [81] * 4 + [240] + [90], [255, 0, 0]),
    ],
)
@pytest.mark.parametrize("padding", [0, 2, 6])
def test_frames_of_cameras_become_rgb(
    form: str, frame: list[int], expected: list[int], padding: int
) -> None:
    """Also where lines are padded."""
    planar = form in ("NV12", "NV21", "YUV420", "YVU420")
    width = 2 if planar else len(frame) // 2
    lines = [frame[:width], frame[width : 2 * width]]
    data = b"".join(bytes(line + [99] * padding) for line in lines)
    chroma = frame[2 * width :]
    if form in ("NV12", "NV21"):
        data += bytes(chroma + [99] * padding)
    elif planar:
        data += b"".join(bytes([each] + [99] * (padding // 2)) for each in chroma)
    layout = Layout(form=form, width=2, height=2, bytes_per_line=width + padding)
    pixels = frame_pixels(data, layout, source="camera")
    assert pixels.shape == (2, 2, 3)
    assert np.abs(pixels.astype(int) - expected).max() <= 1


def test_a_camera_says_by_which_colours_its_frames_are_to_be_read() -> None:
    frame = bytes([76, 85, 76, 255])  # red of BT.601 in the full range, as JPEG has it
    red = Layout(form="YUYV", width=2, height=1, full_range=True)
    assert np.abs(frame_pixels(frame, red, source="c")[0, 0] - np.array([255, 0, 0])).max() <= 1
    frame = bytes([63, 102, 63, 240])  # red of BT.709 in the studio range
    red = Layout(form="YUYV", width=2, height=1, bt709=True)
    assert np.abs(frame_pixels(frame, red, source="c")[0, 0] - np.array([255, 0, 0])).max() <= 1


@pytest.mark.parametrize("form", [each for each in FORMATS if "JPEG" not in each])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 1), (3, 5), (4, 2)])
def test_a_frame_of_any_size_is_read_and_a_shorter_one_refused(
    form: str, width: int, height: int
) -> None:
    layout = Layout(form=form, width=width, height=height)
    size = next(size for size in range(400) if _fits(bytes(size), layout))
    assert frame_pixels(bytes(size), layout, source="c").shape == (height, width, 3)
    with pytest.raises(HostError, match=f"a frame has {size - 1} bytes, not {size}"):
        frame_pixels(bytes(size - 1), layout, source="camera")


def _fits(data: bytes, layout: Layout) -> bool:
    try:
        frame_pixels(data, layout, source="c")
    except HostError:
        return False
    return True


def test_a_frame_of_another_format_is_refused() -> None:
    with pytest.raises(HostError, match="H264 is not known"):
        frame_pixels(b"", Layout(form="H264", width=2, height=1), source="camera")
    with pytest.raises(FormatError, match="is no image"):
        frame_pixels(b"\xff\xd8", Layout(form="MJPEG", width=2, height=1), source="camera")


def test_the_same_face_has_the_same_embedding_and_a_wall_has_none(tmp_path: Path) -> None:
    pytest.importorskip("dlib", reason="dlib is not installed (extra face)")
    from PIL import Image

    embedder = DlibEmbedder()
    whole = read_image(_face().read_bytes(), source="face")
    with Image.open(_face()) as opened:
        opened.convert("RGB").crop((100, 0, 400, 300)).save(tmp_path / "closer.png")
    closer = read_image((tmp_path / "closer.png").read_bytes(), source="closer")
    one, other = embedder.embed(whole), embedder.embed(closer)
    distance = np.linalg.norm(np.subtract(one.values, other.values))
    # dlib's own threshold for one person is 0.6.
    assert len(one.values) == 128
    assert distance < 0.3
    assert one.image_sha256 != other.image_sha256
    wall = read_image(_png(tmp_path / "wall.png", 90).read_bytes(), source="wall")
    with pytest.raises(Refused, match="no face"):
        embedder.embed(wall)


@given(
    st.builds(
        Embedding,
        model=st.text("abc_1", max_size=40),
        values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1).map(
            tuple
        ),
        image_sha256=st.binary(min_size=32, max_size=32),
    )
)
def test_an_embedding_survives_its_file(embedding: Embedding) -> None:
    assert Embedding.from_bytes(embedding.to_bytes()) == embedding


@given(st.binary(max_size=120))
def test_other_bytes_are_no_embedding(data: bytes) -> None:
    for given_bytes in (data, b"excise embedding 1\n" + data):
        try:
            found = Embedding.from_bytes(given_bytes)
        except FormatError:
            continue
        assert found.to_bytes() == given_bytes
