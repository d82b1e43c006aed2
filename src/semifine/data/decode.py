"""Decodes image files to RGB pixels: any mode, upright, and no larger than needed."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, UnidentifiedImageError

from semifine.data.catalog import PathColumn

ResultT = TypeVar("ResultT")
Pixels = NDArray[np.uint8]

MISSING = "missing"
DIGEST_BYTES = 16
MAX_ASPECT = 4
"""An image longer than this many times its shorter side keeps only its middle: a scan strip of 100:1 would
otherwise take the room of a hundred photos."""
REDUCING_GAP = 3.0
"""An image that is shrunk more than twice this is reduced by a whole number first, which is quicker."""

# Pillow refuses images of 180 million pixels; from half of that on it only warns, which panoramas do not deserve.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_HEIF = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypheim", b"ftypheis", b"ftypmif1", b"ftypmsf1")
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class Decoded:
    """Pixels, and what is known of the image before it was made smaller."""

    pixels: Pixels
    """(height, width, 3) RGB."""
    original_height: int
    original_width: int
    digest: bytes
    """Hash of the content: equal for exact copies."""


class FileReader:
    """Reads image files: row ``i`` is ``paths[i]`` inside ``folders[folder_of[i]]``."""

    in_memory = False

    def __init__(
        self,
        paths: Sequence[str],
        folders: Sequence[str | Path] = ("",),
        folder_of: NDArray[np.uint8] | None = None,
    ) -> None:
        self.paths = PathColumn(paths)
        self.folders = tuple(os.fspath(folder) for folder in folders)
        self.folder_of = np.zeros(len(self.paths), np.uint8) if folder_of is None else folder_of

    def file(self, row: int) -> str:
        """Where the image of a row is."""
        return os.path.join(self.folders[self.folder_of[row]], self.paths[row])

    def read(self, row: int) -> Pixels:
        """The whole image in full size."""
        return self.decode(row, None).pixels

    def decode(self, row: int, shorter_side: int | None) -> Decoded:
        """The image with a shorter side of at most ``shorter_side``; raises OSError that names the file."""
        _check_plain(self.file(row))
        return decode_file(self.file(row), shorter_side)

    def fingerprint(self) -> list[str]:
        """Size and time of last change of each file, or "missing"."""
        return [_file_fingerprint(self.file(row)) for row in range(len(self.paths))]


def _file_fingerprint(file: str) -> str:
    try:
        status = os.stat(file)
    except OSError:
        return MISSING
    return f"{status.st_size}:{status.st_mtime_ns}"


def _check_plain(file: str) -> None:
    """A pipe among the files of a data set would be waited for without end."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError(f"{file} is not a plain file")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image format that Pillow knows"  # its own text shows only a memory address
    return str(error) or type(error).__name__


def problem_in_words(error: OSError | ValueError) -> str:
    """Why there is no image: what the system refuses comes without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)} cannot be read ({error.strerror})"
    return str(error) or type(error).__name__


def decode_file(file: str, shorter_side: int | None) -> Decoded:
    """The image in a file, see ``decode_image``; raises OSError that names the file."""
    return _decode(file, lambda data: decode_image(data, shorter_side))


def decode_or_reason(file: str, shorter_side: int, left_alone: int = 0) -> Pixels | str:
    """The pixels of a file, see ``decode_pixels``, or the reason why it cannot be read."""
    try:
        return _decode(file, lambda data: decode_pixels(data, shorter_side, left_alone)[0])
    except (OSError, ValueError) as error:  # the latter of a name that no file can have
        return problem_in_words(error)


def _decode(file: str, decode: Callable[[bytes], ResultT]) -> ResultT:
    with open(file, "rb") as opened:
        data = opened.read()
    try:
        _learn_format(data)
        return decode(data)
    except Exception as error:  # a broken file can fail in Pillow's plugins in a dozen ways
        raise OSError(f"{file} cannot be read as an image ({_reason(error)})") from error


def read_exif(file: str) -> Image.Exif | None:
    """What the camera wrote into a file; None where it cannot be read."""
    return _look_into(file, _whole_exif)


def _whole_exif(image: Image.Image) -> Image.Exif:
    exif = image.getexif()
    for part in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
        exif.get_ifd(part)  # now: a TIFF's is read from the file, which is closed afterwards
    return exif


def read_size(file: str) -> tuple[int, int] | None:
    """Width and height of an image, without decoding it; None where it cannot be read."""
    return _look_into(file, lambda image: image.size)


def _look_into(file: str, look: Callable[[Image.Image], ResultT]) -> ResultT | None:
    """What is wrong with a file is said when its pixels are read."""
    try:
        _check_plain(file)
        with open(file, "rb") as opened:
            _learn_format(opened.read(12))
            opened.seek(0)
            with Image.open(opened) as image:
                return look(image)
    except Exception:  # as in decode_file
        return None


def _learn_format(beginning: bytes) -> None:
    if beginning[4:12] in _HEIF:
        _learn_heif()


@cache
def _learn_heif() -> None:
    """Teaches Pillow the format of Apple's photos, where the package for it is installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise ValueError("HEIC photos need pip install 'semifine[heic]'") from None
    register_heif_opener()


def decode_image(data: bytes, shorter_side: int | None) -> Decoded:
    """Decodes the bytes of an image file, see ``decode_pixels``."""
    pixels, height, width = decode_pixels(data, shorter_side)
    return Decoded(pixels, height, width, digest_of(data))


def decode_pixels(data: bytes, shorter_side: int | None, left_alone: int = 0) -> tuple[Pixels, int, int]:
    """Upright, RGB, shrunk to the shorter side where that is given; and the height and width before. To read only.

    An image of no more than ``left_alone`` pixels stays as it is where the caller, too, can shrink it: by a bicubic
    resize of the whole, and no more than six times. Pillow itself refuses decompression bombs (DecompressionBombError).
    """
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        if shorter_side is not None:
            image.draft(None, draft_size(image.size, shorter_side))
        upright = to_rgb(image)
        orientation = orientation_of(image)  # not before: Pillow turns a TIFF while it loads, and then says so
    if not _may_stay(upright.size, shorter_side, left_alone):
        upright = shrink(upright, shorter_side)
    if orientation >= 5:
        width, height = height, width
    return np.asarray(turned(upright, orientation)), height, width


def _may_stay(size: tuple[int, int], shorter_side: int | None, left_alone: int) -> bool:
    shorter, longer = sorted(size)
    if shorter_side is None or shorter * longer > left_alone:
        return False
    return longer <= MAX_ASPECT * shorter and shorter < 2 * REDUCING_GAP * shorter_side


def draft_size(size: tuple[int, int], shorter_side: int) -> tuple[int, int]:
    """Twice the wanted size, which JPEG's decoding at 1/2, 1/4 or 1/8 leaves for the antialiased resize."""
    scale = 2 * shorter_side / min(size)
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))


def decode_array(pixels: Pixels, shorter_side: int | None) -> Decoded:
    """The same as ``decode_image`` for an image that is already decoded; its hash is that of the pixels."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"an image must be (height, width, 3) uint8, not {pixels.shape} {pixels.dtype}")
    height, width, _ = pixels.shape
    small = shrink(Image.fromarray(np.ascontiguousarray(pixels)), shorter_side)
    return Decoded(np.asarray(small), height, width, digest_of(np.ascontiguousarray(pixels).data))


def digest_of(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def orientation_of(image: Image.Image) -> int:
    """How the camera was held, 1..8; 1 is upright, or turned already."""
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
        return value if isinstance(value, int) and 1 <= value <= 8 else 1
    except Exception:  # broken metadata does not make the pixels unusable
        return 1


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Upright, if that is how the camera was held."""
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def shrink(image: Image.Image, shorter_side: int | None) -> Image.Image:
    """Antialiased, true to the aspect ratio (up to MAX_ASPECT, then the middle), never enlarged."""
    if shorter_side is None:
        return image
    width, height = image.size
    short = min(width, height)
    keep_width, keep_height = min(width, MAX_ASPECT * short), min(height, MAX_ASPECT * short)
    left, top = (width - keep_width) // 2, (height - keep_height) // 2
    box = (left, top, left + keep_width, top + keep_height)
    size = shrunk_size((keep_width, keep_height), shorter_side)
    if size == image.size:
        return image
    if short <= shorter_side:
        return image.crop(box)
    return image.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=REDUCING_GAP)


def shrunk_size(size: tuple[int, int], shorter_side: int) -> tuple[int, int]:
    """Both sides, scaled so that the shorter one is at most ``shorter_side``."""
    scale = min(1.0, shorter_side / min(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB; what is transparent shows white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _deep_gray_to_rgb(image)
    if image.mode == "LAB":
        return _lab_to_rgb(image)
    if image.has_transparency_data:
        colored = image.convert("RGBA")
        white = Image.new("RGBA", colored.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, colored).convert("RGB")
    return image.convert("RGB")


def _deep_gray_to_rgb(image: Image.Image) -> Image.Image:
    """16-bit, 32-bit and float gray by the range of the format, not of the image: equal scenes stay equal."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    brightest = values.max()
    if image.mode == "F" and brightest <= 1:
        values = values * 255
    elif image.mode.startswith("I;16") or brightest > 255:
        values = values / 257
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8)).convert("RGB")


def _lab_to_rgb(image: Image.Image) -> Image.Image:
    transform = ImageCms.buildTransform(ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB")
    converted = ImageCms.applyTransform(image, transform)
    if converted is None:
        raise ValueError("LAB colors cannot be converted")
    return converted
