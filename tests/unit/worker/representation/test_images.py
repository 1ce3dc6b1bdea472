"""Images become the numbers that NumPy and Pillow give, whatever way the file stores its pixels."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tests.representations import IMAGES, png
from tests.unit.worker.representation.vectors import LIMITS, declare
from worker.representation.errors import RowError
from worker.representation.rows import open_reader

GENERATOR = np.random.default_rng(5)
GREY = GENERATOR.integers(0, 256, (8, 8), np.uint8)
COLOUR = GENERATOR.integers(0, 256, (8, 8, 3), np.uint8)
RGB = {"shape": [3, 8, 8]}


def read(content: bytes, **changes: Any) -> np.ndarray:
    """Return the image as the graph takes it. Unless declared otherwise, pixels keep their values."""
    declaration = declare(IMAGES, **{"scale": 1.0, **changes})
    reader = open_reader(declaration, None, LIMITS)
    return reader.read(pa.array([content], pa.binary()), 0, 1)[0]


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return an image as a file."""
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def channels_first(pixels: np.ndarray) -> np.ndarray:
    """Return (height, width, channels) as float32 (channels, height, width)."""
    return np.moveaxis(np.atleast_3d(pixels), 2, 0).astype(np.float32)


def assert_same(result: np.ndarray, expected: np.ndarray) -> None:
    """Check that two arrays are equal bit for bit."""
    assert result.dtype == expected.dtype == np.float32
    assert result.shape == expected.shape
    assert result.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_png_files_keep_every_pixel():
    assert_same(read(png(GREY)), channels_first(GREY))
    assert_same(read(png(COLOUR), **RGB), channels_first(COLOUR))


@pytest.mark.parametrize("options", [{"quality": 95}, {"quality": 20}, {"progressive": True}])
def test_jpeg_files_are_decoded_as_pillow_does(options: dict[str, Any]):
    content = saved(Image.fromarray(COLOUR), "JPEG", **options)
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(image)
    assert_same(read(content, **RGB), channels_first(expected))


def test_plain_bytes_are_pixels_row_by_row():
    assert_same(read(GREY.tobytes(), encoding="uint8"), channels_first(GREY))
    assert_same(read(COLOUR.tobytes(), encoding="uint8", **RGB), channels_first(COLOUR))


def test_a_palette_becomes_its_colours():
    image = Image.fromarray(COLOUR).quantize(16)
    expected = np.asarray(image.convert("RGB"))
    assert_same(read(saved(image), **RGB), channels_first(expected))


def test_a_palette_with_a_transparent_colour_keeps_that_colour():
    image = Image.fromarray(COLOUR).quantize(16)
    expected = np.asarray(image.convert("RGB"))
    assert_same(read(saved(image, transparency=3), **RGB), channels_first(expected))


def test_transparency_is_ignored():
    alpha = GENERATOR.integers(0, 256, (8, 8, 1), np.uint8)
    assert_same(read(png(np.concatenate([COLOUR, alpha], axis=2)), **RGB), channels_first(COLOUR))
    grey = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha[:, :, 0])])
    assert_same(read(saved(grey)), channels_first(GREY))


def test_grey_of_16_bits_keeps_its_upper_8_bits():
    deep = GENERATOR.integers(0, 65_536, (8, 8)).astype(np.uint16)
    assert_same(read(png(deep)), channels_first(deep >> 8))
    assert_same(read(png(deep), **RGB), channels_first(np.repeat((deep >> 8)[:, :, None], 3, axis=2)))


def test_one_bit_becomes_black_and_white():
    bits = GREY > 127
    assert_same(read(saved(Image.fromarray(bits))), channels_first(np.where(bits, 255, 0)))


def test_colour_becomes_grey_by_luma_and_grey_becomes_equal_channels():
    luma = (
        COLOUR.astype(np.int64) @ np.array([19_595, 38_470, 7_471], np.int64) + 0x8000
    ) >> 16  # ITU-R 601-2
    assert_same(read(png(COLOUR)), channels_first(luma))
    assert_same(read(png(GREY), **RGB), channels_first(np.repeat(GREY[:, :, None], 3, axis=2)))


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(8, 9), (31, 17), (3, 2), (1, 1)])
def test_other_sizes_are_resized_as_pillow_does(method: str, size: tuple[int, int]):
    pixels = GENERATOR.integers(0, 256, (*size, 3), np.uint8)
    resampling = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[method]
    expected = np.asarray(Image.fromarray(pixels).resize((8, 8), resampling))
    assert_same(read(png(pixels), resize=method, **RGB), channels_first(expected))


def test_an_image_of_the_right_size_is_not_touched_by_resizing():
    assert_same(read(png(GREY), resize="bicubic"), channels_first(GREY))


def test_height_and_width_are_not_exchanged():
    pixels = GENERATOR.integers(0, 256, (4, 10), np.uint8)
    assert_same(read(png(pixels), shape=[1, 4, 10]), channels_first(pixels))
    assert_same(read(pixels.tobytes(), shape=[1, 4, 10], encoding="uint8"), channels_first(pixels))


def test_scale_mean_and_std_are_applied_in_float64_and_rounded_once():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    exact = (COLOUR.astype(np.float64) * (1 / 255) - mean) / std
    assert_same(read(png(COLOUR), scale=1 / 255, mean=mean, std=std, **RGB), channels_first(exact))


def test_a_rotation_in_the_metadata_is_not_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert_same(read(saved(Image.fromarray(GREY), exif=exif)), channels_first(GREY))


def test_the_first_frame_of_an_animation_counts():
    frames = [Image.fromarray(GREY), Image.fromarray(255 - GREY)]
    content = saved(frames[0], save_all=True, append_images=frames[1:])
    assert_same(read(content), channels_first(GREY))


def test_the_first_bad_row_is_named():
    rows = pa.array([png(GREY), b"x", None], pa.binary())
    with pytest.raises(RowError) as caught:
        open_reader(declare(IMAGES), None, LIMITS).read(rows, 0, 3)
    assert caught.value.row == 1
