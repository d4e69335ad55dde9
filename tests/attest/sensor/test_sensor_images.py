"""Images come from files, folders and cameras; embeddings from faces and from nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.attest.sensor import DlibEmbedder, Embedding, open_source, read_image
from excise.attest.sensor.images import _pixels
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
    with pytest.raises(HostError, match=r"camera|linuxpy"), open_source("/dev/null") as source:
        source.capture()


@pytest.mark.parametrize(
    ("form", "frame", "expected"),
    [
        ("RGB24", bytes([9, 8, 7] * 2), [9, 8, 7]),
        ("BGR24", bytes([7, 8, 9] * 2), [9, 8, 7]),
        ("GREY", bytes([5, 5]), [5, 5, 5]),
        # BT.601: black and white at 16 and 235, no colour at 128.
        ("YUYV", bytes([235, 128, 235, 128]), [255, 255, 255]),
        ("UYVY", bytes([128, 16, 128, 16]), [0, 0, 0]),
        ("YUYV", bytes([81, 90, 81, 240]), [254, 0, 0]),
    ],
)
def test_frames_of_cameras_become_rgb(form: str, frame: bytes, expected: list[int]) -> None:
    pixels = _pixels(frame, form, 2, 1, "camera")
    assert pixels.shape == (1, 2, 3)
    assert np.abs(pixels[0, 0].astype(int) - expected).max() <= 1


def test_a_frame_of_another_format_or_size_is_refused() -> None:
    with pytest.raises(HostError, match="H264 is not known"):
        _pixels(b"", "H264", 2, 1, "camera")
    with pytest.raises(HostError, match="3 bytes, not 6"):
        _pixels(b"123", "RGB24", 2, 1, "camera")


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
