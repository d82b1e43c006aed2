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
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from semifine.data.boxes import Box, Photo, crop_around, photo_file
from semifine.data.catalog import ImageReader, PathColumn, SubsetReader
from semifine.data.rgb import to_rgb

ResultT = TypeVar("ResultT")
Pixels = NDArray[np.uint8]
"""An RGB image: `(height, width, 3)` uint8."""

MISSING = "missing"
"""Fingerprint of a file that does not exist."""
DIGEST_BYTES = 16
MAX_ASPECT = 4
"""Longer images are cropped to their middle, because a strip of 100:1 would be as large as 100 photos."""
REDUCING_GAP = 3.0
"""Images are first reduced by an integer factor if they shrink by more than twice this factor, which is faster."""

# Pillow refuses images of more than 180 million pixels and warns from 90 million, which panoramas exceed.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # damaged metadata

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
"""The formats of ``IMAGE_SUFFIXES`` in Pillow, which reads others, too, and starts Ghostscript for some of them."""
MAX_FILE_BYTES = (512 << 20) + (1 << 20)
"""Size of the largest image that Pillow accepts, 179 million pixels, without compression, and of its metadata."""
MAX_REASON = 200
"""Length of the reason why an image is unreadable."""
_CHUNK_BYTES = 1 << 20

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
class DecodedImage:
    """The pixels of an image with its original size.

    Args:
        pixels: `(height, width, 3)` RGB after shrinking.
        original_height: Height before shrinking; of a crop, its height in the photo.
        original_width: Width before shrinking; of a crop, its width in the photo.
        digest: Hash of the content and the box, equal for exact copies.
    """

    pixels: Pixels
    original_height: int
    original_width: int
    digest: bytes


class FileReader:
    """Reads image files: row ``i`` is ``paths[i]`` in ``folders[folder_of[i]]``.

    Args:
        paths: Paths relative to the folder.
        folders: The folders of the images.
        folder_of: `(rows,)` index of the folder of each image; by default the first folder.
        boxes: `(rows, 4)` x, y, width and height of the box to crop each image to, as fractions of the upright image;
            NaN for whole images. By default all images are whole.

    Example:
        >>> Image.new("RGB", (4, 3)).save("bird.png")
        >>> FileReader(["bird.png"]).read(0).shape
        (3, 4, 3)
    """

    in_memory = False

    def __init__(
        self,
        paths: Sequence[str],
        folders: Sequence[str | Path] = ("",),
        folder_of: NDArray[np.uint8] | None = None,
        boxes: NDArray[np.float64] | None = None,
    ) -> None:
        self.paths = PathColumn(paths)
        self.folders = tuple(os.fspath(folder) for folder in folders)
        self.folder_of = np.zeros(len(self.paths), np.uint8) if folder_of is None else folder_of
        self.boxes = boxes

    def file(self, row: int) -> str:
        """The image file of a row."""
        return os.path.join(self.folders[self.folder_of[row]], self.paths[row])

    def box(self, row: int) -> Box | None:
        """The box to crop the image of a row to; None for a whole image."""
        if self.boxes is None or np.isnan(self.boxes[row, 0]):
            return None
        return Box(*self.boxes[row].tolist())

    def read(self, row: int) -> Pixels:
        """Reads the image, or its crop, in full size."""
        return self.decode(row, None).pixels

    def decode(self, row: int, shorter_side: int | None) -> DecodedImage:
        """Decodes the image and shrinks it to a shorter side of at most ``shorter_side``.

        Raises:
            OSError: If the file is unreadable; the message names the file.
        """
        _check_regular_file(self.file(row))
        return decode_file(self.file(row), shorter_side, self.box(row))

    def fingerprint(self) -> list[str]:
        """Size and modification time of each file, or ``MISSING``."""
        return [_file_fingerprint(self.file(row)) for row in range(len(self.paths))]


def _file_fingerprint(file: str) -> str:
    try:
        status = os.stat(file)
    except OSError:
        return MISSING
    return f"{status.st_size}:{status.st_mtime_ns}"


def _check_regular_file(file: str) -> None:
    """Raises OSError for a named pipe, because reading it would block forever."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError(f"{file} is not a regular file")


def error_reason(error: OSError | ValueError) -> str:
    """The message of an error, without the error number of the operating system.

    Example:
        >>> error_reason(FileNotFoundError(2, "No such file or directory", "a.jpg"))
        'a.jpg cannot be read (No such file or directory)'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)} cannot be read ({error.strerror})"
    return str(error) or type(error).__name__


def try_decode_row(reader: ImageReader, row: int, shorter_side: int) -> DecodedImage | str:
    """Decodes the image of a row of any reader, or returns the reason why it is unreadable."""
    if isinstance(reader, SubsetReader):
        return try_decode_row(reader.base, int(reader.rows[row]), shorter_side)
    try:
        if isinstance(reader, FileReader):
            return reader.decode(row, shorter_side)
        return decode_array(reader.read(row), shorter_side)
    except (OSError, ValueError) as error:
        return error_reason(error)


def read_row_size(reader: ImageReader, row: int) -> tuple[int, int] | None:
    """Reads the width and height of an image, or of its crop, without decoding it; None if it is no readable file."""
    if isinstance(reader, SubsetReader):
        return read_row_size(reader.base, int(reader.rows[row]))
    size = read_size(reader.file(row)) if isinstance(reader, FileReader) else None
    box = reader.box(row) if isinstance(reader, FileReader) else None
    if size is None or box is None:
        return size
    left, upper, right, lower = crop_around(box, size)
    return right - left, lower - upper


def decode_file(file: str, shorter_side: int | None, box: Box | None = None) -> DecodedImage:
    """Decodes an image file with :func:`decode_image`; raises OSError naming the file if it is unreadable."""
    return _decode(file, lambda data: decode_image(data, shorter_side, box))


def try_decode_file(photo: Photo, shorter_side: int, full_size_pixels: int = 0) -> Pixels | str:
    """Decodes an image file, or a crop of it, with :func:`decode_pixels`, or returns why it is unreadable."""
    box = None if isinstance(photo, str) else photo.box
    try:
        return _decode(photo_file(photo), lambda data: decode_pixels(data, shorter_side, full_size_pixels, box)[0])
    except (OSError, ValueError) as error:  # ValueError: an invalid file name, such as one with a null character
        return error_reason(error)


def open_image(source: BinaryIO) -> Image.Image:
    """Opens an image of one of ``FORMATS``; files of other formats are not images, whatever their name.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (4, 3)).save(file, "PNG")
        >>> open_image(file).size
        (4, 3)
    """
    Image.init()  # registers the formats, once
    return Image.open(source, formats=[name for name in FORMATS if name in Image.OPEN])


def _decode(file: str, decode: Callable[[bytes], ResultT]) -> ResultT:
    data = _read_bytes(file)
    try:
        _register_format(data)
        return decode(data)
    except Exception as error:  # Pillow's plugins raise many kinds of errors for damaged files
        raise OSError(f"{file} cannot be read as an image ({_pillow_reason(error)})") from error


def _read_bytes(file: str) -> bytes:
    """Reads a file, or a pipe to its end; raises OSError if it is larger than any image."""
    with open(file, "rb") as opened:
        status = os.fstat(opened.fileno())
        _check_size(file, status.st_size)
        if stat.S_ISREG(status.st_mode):
            return opened.read(status.st_size)
        chunks, length = [], 0
        while chunk := opened.read(_CHUNK_BYTES):
            chunks.append(chunk)
            length += len(chunk)
            _check_size(file, length)
        return b"".join(chunks)


def _check_size(file: str, size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise OSError(f"{file} cannot be read as an image (it is larger than {MAX_FILE_BYTES >> 20} MB)")


def _pillow_reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not a supported image format"  # Pillow's message shows only a memory address
    if isinstance(error, MemoryError):
        return "there is not enough memory to decode it"
    return " ".join(str(error).split())[:MAX_REASON] or type(error).__name__


def read_exif(file: str) -> Image.Exif | None:
    """Reads the EXIF metadata of a file; None if the file is unreadable."""
    return _read_header(file, _load_exif)


def _load_exif(image: Image.Image) -> Image.Exif:
    exif = image.getexif()
    for part in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
        exif.get_ifd(part)  # read now, because Pillow reads a TIFF's metadata lazily and the file is closed afterwards
    return exif


def read_size(file: str) -> tuple[int, int] | None:
    """Reads the width and height of an upright image without decoding it; None if the file is unreadable.

    Example:
        >>> Image.new("RGB", (4, 3)).save("bird.png")
        >>> read_size("bird.png"), read_size("missing.png")
        ((4, 3), None)
    """
    return _read_header(file, _unloaded_upright_size)


def _unloaded_upright_size(image: Image.Image) -> tuple[int, int]:
    # Before Pillow loads a TIFF, its size is upright and its orientation tag is still set.
    return image.size if image.format == "TIFF" else _upright_size(image.size, exif_orientation(image))


def read_media_type(file: str) -> str | None:
    """Reads the media type of an image, such as ``image/jpeg``; None if the file is unreadable."""
    return _read_header(file, lambda image: Image.MIME.get(image.format or ""))


def _read_header(file: str, read: Callable[[Image.Image], ResultT]) -> ResultT | None:
    """Returns None for an unreadable file; decoding its pixels reports the reason."""
    try:
        _check_regular_file(file)
        with open(file, "rb") as opened:
            _check_size(file, os.fstat(opened.fileno()).st_size)
            _register_format(opened.read(12))
            opened.seek(0)
            with open_image(opened) as image:
                return read(image)
    except Exception:  # as in _decode
        return None


def _register_format(beginning: bytes) -> None:
    if beginning[4:12] in _HEIF:
        _register_heif()


@cache
def _register_heif() -> None:
    try:
        from pillow_heif import register_heif_opener  # optional dependency
    except ImportError:
        raise ValueError("HEIC photos need pip install 'semifine[heic]'") from None
    register_heif_opener()


def decode_image(data: bytes, shorter_side: int | None, box: Box | None = None) -> DecodedImage:
    """Decodes the bytes of an image file.

    Args:
        data: The content of the file.
        shorter_side: Larger images are shrunk to this shorter side; None keeps the full size.
        box: Crops the upright image to the square around this box before it is shrunk.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (40, 30)).save(file, "PNG")
        >>> decode_image(file.getvalue(), shorter_side=15).pixels.shape
        (15, 20, 3)
        >>> decode_image(file.getvalue(), None, Box(0.5, 0.5, 0.2, 0.2)).pixels.shape
        (11, 11, 3)
    """
    pixels, height, width = decode_pixels(data, shorter_side, box=box)
    # Crops of one file differ, so that neither checks nor caches confuse them.
    content = data if box is None else data + np.array(box[:4]).tobytes()
    return DecodedImage(pixels, height, width, compute_digest(content))


def decode_pixels(
    data: bytes, shorter_side: int | None, full_size_pixels: int = 0, box: Box | None = None
) -> tuple[Pixels, int, int]:
    """Decodes the bytes of an image file to upright RGB pixels.

    Pillow refuses decompression bombs (``DecompressionBombError``).

    Args:
        data: The content of the file.
        shorter_side: Larger images are shrunk to this shorter side; None keeps the full size.
        full_size_pixels: Images with at most this many pixels keep their full size if the caller can shrink them with
            equal results, by a bicubic resize by a factor of less than six. Crops are always shrunk.
        box: Crops the upright image to the square around this box before it is shrunk.

    Returns:
        The pixels (read-only), and the height and width before shrinking.
    """
    with open_image(io.BytesIO(data)) as image:
        if box is not None:
            return _decode_crop(image, shorter_side, box)
        width, height = image.size
        if shorter_side is not None:
            image.draft(None, _draft_size(image.size, min(image.size), shorter_side))
        rgb = to_rgb(image)
        orientation = exif_orientation(image)  # after loading, because Pillow rotates a TIFF while it loads
    if not _may_keep_full_size(rgb.size, shorter_side, full_size_pixels):
        rgb = shrink(rgb, shorter_side)
    width, height = _upright_size((width, height), orientation)
    return np.asarray(apply_orientation(rgb, orientation)), height, width


def _decode_crop(image: Image.Image, shorter_side: int | None, box: Box) -> tuple[Pixels, int, int]:
    left, upper, right, lower = crop_around(box, _unloaded_upright_size(image))
    width, height = right - left, lower - upper
    if shorter_side is not None:
        image.draft(None, _draft_size(image.size, min(width, height), shorter_side))
    rgb = to_rgb(image)
    upright = apply_orientation(rgb, exif_orientation(image))
    # The size of the upright image differs from the file's if the JPEG was decoded at a fraction of its size.
    crop = upright.crop(crop_around(box, upright.size))
    return np.asarray(shrink(crop, shorter_side)), height, width


def _upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation >= 5 else size


def _may_keep_full_size(size: tuple[int, int], shorter_side: int | None, full_size_pixels: int) -> bool:
    shorter, longer = sorted(size)
    if shorter_side is None or shorter * longer > full_size_pixels:
        return False
    return longer <= MAX_ASPECT * shorter and shorter < 2 * REDUCING_GAP * shorter_side


def _draft_size(size: tuple[int, int], used: int, shorter_side: int) -> tuple[int, int]:
    """The size to decode a JPEG at, which is possible at 1/2, 1/4 or 1/8: the part of ``used`` pixels gets twice its
    final size, and the antialiased resize shrinks the rest."""
    scale = 2 * shorter_side / used
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))


def decode_array(pixels: Pixels, shorter_side: int | None) -> DecodedImage:
    """Shrinks an image that is already decoded; the digest is the hash of its pixels.

    Example:
        >>> decode_array(np.zeros((30, 40, 3), np.uint8), shorter_side=15).pixels.shape
        (15, 20, 3)
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"an image must be (height, width, 3) uint8, not {pixels.shape} {pixels.dtype}")
    height, width, _ = pixels.shape
    shrunk = shrink(Image.fromarray(np.ascontiguousarray(pixels)), shorter_side)
    return DecodedImage(np.asarray(shrunk), height, width, compute_digest(np.ascontiguousarray(pixels).data))


def compute_digest(data: bytes | memoryview) -> bytes:
    """Computes the BLAKE2b hash of ``DIGEST_BYTES`` bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def exif_orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation, 1 to 8; 1 (upright) if there is no valid tag."""
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
        return value if isinstance(value, int) and 1 <= value <= 8 else 1
    except Exception:  # damaged metadata does not make the pixels unusable
        return 1


def apply_orientation(image: Image.Image, orientation: int) -> Image.Image:
    """Rotates and flips an image according to its EXIF orientation."""
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def shrink(image: Image.Image, shorter_side: int | None) -> Image.Image:
    """Resizes with antialiasing; keeps the aspect ratio up to ``MAX_ASPECT``, else the middle; never enlarges."""
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
    """Scales both sides so that the shorter one is at most ``shorter_side``.

    Example:
        >>> shrunk_size((400, 300), 150)
        (200, 150)
    """
    scale = min(1.0, shorter_side / min(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
