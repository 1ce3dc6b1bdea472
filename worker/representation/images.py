"""Images: decodes PNG and JPEG files safely, and turns pixels into the graph's input."""

import io
import warnings
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from lethe.certificate.representation import ImageInput
from worker.representation.errors import RepresentationError
from worker.representation.limits import Limits

FORMATS: Final = ("PNG", "JPEG")
_SIGNATURES: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_RESAMPLING: Final = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class ImageProblem(Exception):
    """An image cannot be used. The message says why, without anything of its content."""


class ImageReader:
    """Turns the bytes of one image into an array of the graph's input shape (channels, height, width).

    - Files are PNG or JPEG, whatever their name was. Of an animation, the first frame counts.
    - A rotation recorded in EXIF metadata is not applied. Colour profiles and gamma are ignored.
    - Transparency is ignored, so a pixel keeps the colour it has under its alpha.
    - Grey of 16 bits keeps its upper 8 bits. Palettes, CMYK and 1-bit images become RGB or grey as Pillow
      converts them. RGB becomes grey by ITU-R 601-2 luma.
    - Resizing works on 8-bit pixels and ignores the aspect ratio.
    - A pixel becomes (pixel·scale - mean) / std, computed in float64 and rounded to float32 once.
    """

    def __init__(self, declared: ImageInput, limits: Limits) -> None:
        self._declared = declared
        self._limits = limits
        self._table = _pixel_table(declared)

    def read(self, data: memoryview) -> npt.NDArray[np.float32]:
        """Return the image as the graph takes it, or raise `ImageProblem`."""
        if len(data) == 0:
            raise ImageProblem("the image is empty")
        if self._declared.encoding == "uint8":
            return self.scale(self._plain(data))
        return self.scale(self._decoded(data))

    def scale(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return pixels (height, width, channels) as (channels, height, width) with the constants applied."""
        return np.stack([self._table[channel][pixels[:, :, channel]] for channel in range(pixels.shape[2])])

    def _plain(self, data: memoryview) -> npt.NDArray[np.uint8]:
        channels, height, width = self._declared.shape
        expected = channels * height * width
        if len(data) != expected:
            raise ImageProblem(
                f"the image has {len(data):,} bytes, but its shape needs exactly {expected:,} "
                f"({height} rows of {width} pixels with {channels} bytes each)"
            )
        return np.frombuffer(data, np.uint8).reshape(height, width, channels)

    def _decoded(self, data: memoryview) -> npt.NDArray[np.uint8]:
        if len(data) > self._limits.image_bytes:
            raise ImageProblem(f"the image file is larger than {self._limits.image_bytes:,} bytes")
        if not bytes(data[:8]).startswith(_SIGNATURES):
            raise ImageProblem("the image is neither a PNG nor a JPEG file")
        with warnings.catch_warnings():
            # Pillow warns of odd metadata, which is not used here, and of too many pixels, which is refused.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                return self._open(data)
            except (ImageProblem, MemoryError):
                raise
            except Exception as problem:  # a damaged file can make the decoder raise almost anything
                raise ImageProblem(self._describe(problem)) from None

    def _open(self, data: memoryview) -> npt.NDArray[np.uint8]:
        channels, height, width = self._declared.shape
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if (
                image.width * image.height > self._limits.image_pixels
            ):  # known from the header, before decoding
                raise ImageProblem(self._too_many_pixels())
            if image.size != (width, height) and self._declared.resize == "none":
                raise ImageProblem(
                    f"the image is not {width} pixels wide and {height} high, and the declaration says "
                    "not to resize it"
                )
            image.load()
            converted = _convert(image, "L" if channels == 1 else "RGB")
        if converted.size != (width, height):
            converted = converted.resize((width, height), _RESAMPLING[self._declared.resize])
        return np.asarray(converted, np.uint8).reshape(height, width, channels)

    def _describe(self, problem: Exception) -> str:
        if isinstance(problem, Image.DecompressionBombError | Image.DecompressionBombWarning):
            return self._too_many_pixels()
        if isinstance(problem, UnidentifiedImageError):
            return "the image file is damaged: its header cannot be read"
        if "truncated" in str(problem).lower():
            return "the image is truncated"
        if "too large" in str(problem).lower():
            return "the image file holds more compressed metadata than is allowed"
        return "the image file is damaged"

    def _too_many_pixels(self) -> str:
        return f"the image has more than {self._limits.image_pixels:,} pixels"


def _convert(image: Image.Image, mode: str) -> Image.Image:
    """Return the image as 8-bit grey or RGB."""
    if image.mode.startswith("I"):  # 16-bit grey
        values = np.asarray(image).astype(np.int64).clip(0, 65_535) >> 8
        image = Image.fromarray(values.astype(np.uint8))
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # Pillow warns if a palette with transparency skips this step
    image.info.pop("transparency", None)
    return image if image.mode == mode else image.convert(mode)


def _pixel_table(declared: ImageInput) -> npt.NDArray[np.float32]:
    """Return what each of the 256 pixel values becomes in each channel: (channels, 256)."""
    channels = declared.shape[0]
    mean = np.array(declared.mean or (0.0,) * channels)[:, None]
    std = np.array(declared.std or (1.0,) * channels)[:, None]
    with np.errstate(over="ignore"):
        table: npt.NDArray[np.float32] = ((np.arange(256.0) * declared.scale - mean) / std).astype(np.float32)
    if not np.isfinite(table).all():
        raise RepresentationError(
            ["the constants scale, mean and std turn some pixels into numbers that float32 cannot hold"]
        )
    return table
