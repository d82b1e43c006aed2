"""Random damaged files: images and files of a run folder."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import zlib
from functools import cache
from pathlib import Path

from PIL import Image

from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import SHARED_FOLDER, tiny_settings

BOMB_SIDE = 50_000


def write_image(rng: random.Random, path: Path) -> None:
    """Writes an intact image or, less often, a damaged one, so that most folders pass the first checks."""
    kinds = ["empty", "noise", "truncated", "flipped", "bomb", "1 x 1", "flat"]
    kind = rng.choice(["good"] * 20 + kinds)
    size = {"1 x 1": (1, 1), "flat": (300, 1)}.get(kind, (20, 16))
    content = bytearray(encode_image(size, (rng.randrange(256), 0, 0), "PNG" if path.suffix == ".png" else "JPEG"))
    if kind == "empty":
        content = bytearray()
    elif kind == "noise":
        content = bytearray(rng.randbytes(100))
    elif kind == "truncated":
        content = content[: rng.randrange(len(content))]
    elif kind == "flipped":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "bomb":
        content = bytearray(decompression_bomb())
    path.write_bytes(content)


def encode_image(size: tuple[int, int], color: tuple[int, int, int], form: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, form)
    return buffer.getvalue()


@cache
def decompression_bomb(side: int = BOMB_SIDE) -> bytes:
    """Returns a small PNG whose header claims 2.5 billion pixels, followed by the first rows."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@cache
def finished_run() -> Path:
    """Returns a tiny finished run, trained once per process."""
    out = SHARED_FOLDER / "finished"
    fit(tiny_settings(iterations=2), out, display=Display(quiet=True))
    return out


@cache
def weights_of_another_network() -> Path:
    out = SHARED_FOLDER / "another"
    fit(tiny_settings("supervised", iterations=1, backbone="test_vit2"), out, display=Display(quiet=True))
    return out / "checkpoints" / "last" / "model.safetensors"


def write_damaged_run(rng: random.Random, out: Path) -> None:
    """Writes a copy of the finished run with one damaged file."""
    shutil.copytree(finished_run(), out, symlinks=True)
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != ".lock")
    file = rng.choice(files)
    content = bytearray(file.read_bytes())
    how = rng.choice(["missing", "empty", "truncated", "flipped", "noise", "other JSON", "folder", "of another run"])
    if how in ("missing", "folder"):
        file.unlink()
        if how == "folder":
            file.mkdir()
        return
    if how == "empty":
        content = bytearray()
    elif how == "truncated":
        content = content[: rng.randrange(len(content) + 1)]
    elif how == "flipped" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "noise":
        content = bytearray(rng.randbytes(60))
    elif how == "other JSON":
        content = bytearray(json.dumps(rng.choice([None, [], {}, 3, "x", {"names": 4}, {"step": "x"}, [1]])).encode())
    elif how == "of another run" and file.name == "model.safetensors":
        content = bytearray(weights_of_another_network().read_bytes())
    file.write_bytes(content)
