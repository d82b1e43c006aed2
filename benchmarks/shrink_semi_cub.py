"""Writes a small copy of Semi-CUB for another machine: WebP photos in tar files, and the lists of all measurements.

    python benchmarks/shrink_semi_cub.py SEMI_CUB device-data --side 160

SEMI_CUB contains `images/` and `splits/`, and optionally `splits_longtail/`. The output is in folders that git ignores,
because the photos must not be distributed:

    semi_cub-in.tar, semi_cub-out.tar     photos of known and of other classes; unpack both in device-data
    semi_cub/splits/                      the published lists, with the names of the WebP files
    longtail/, longtail_reversed/         lists with a long tail; their images are in semi_cub/images

The long-tailed lists have no validation images. `l_train.txt` is `l_train_val.txt` without the images of the published
`val.txt`, which is the validation list. A class whose labels are all in it keeps one, which leaves `val.txt`.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from PIL import Image

Lines = list[tuple[str, str]]
"""Path and label of each line."""


def read(file: Path) -> Lines:
    pairs = (line.rpartition(" ") for line in file.read_text(encoding="utf-8").splitlines())
    return [(path, label) for path, _, label in pairs]


def write(file: Path, lines: Lines) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{Path(path).with_suffix('.webp')} {label}\n" for path, label in lines)
    file.write_text(text, encoding="utf-8")


def shrink(path: str, images: Path, side: int, quality: int) -> bytes:
    """Returns a photo as WebP, with a shorter side of at most ``side``."""
    photo = Image.open(images / path).convert("RGB")
    scale = side / min(photo.size)
    if scale < 1:
        width, height = photo.size
        photo = photo.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    photo.save(buffer, "WEBP", quality=quality)
    return buffer.getvalue()


def pack(paths: list[str], images: Path, side: int, quality: int, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool, tarfile.open(file, "w") as archive:
        photos = pool.map(partial(shrink, images=images, side=side, quality=quality), paths, chunksize=50)
        for path, photo in zip(paths, photos, strict=True):
            member = tarfile.TarInfo(f"semi_cub/images/{Path(path).with_suffix('.webp')}")
            member.size = len(photo)
            archive.addfile(member, io.BytesIO(photo))
    print(f"{file}: {len(paths)} photos, {file.stat().st_size / 2**20:.1f} MiB")


def split_off(train_val: Lines, val: Lines) -> tuple[Lines, Lines]:
    """Returns the labeled list without validation images, and the validation list."""
    held_out = {path for path, _ in val}
    kept = [line for line in train_val if line[0] not in held_out]
    counts = Counter(label for _, label in kept)
    returned = []
    for line in train_val:
        if not counts[line[1]]:
            counts[line[1]] += 1
            returned.append(line)
    return sorted(kept + returned), [line for line in val if line not in returned]


def write_longtail(lists: Path, published: Path, out: Path) -> None:
    for name, unlabeled in (("longtail", "u_train_in"), ("longtail_reversed", "u_train_in_reversed")):
        train_val = read(lists / "l_train_val.txt")
        train, val = split_off(train_val, read(published / "val.txt"))
        folder = out / name / "splits"
        write(folder / "l_train_val.txt", train_val)
        write(folder / "l_train.txt", train)
        write(folder / "val.txt", val)
        write(folder / "test.txt", read(published / "test.txt"))
        write(folder / "u_train_in.txt", read(lists / f"{unlabeled}.txt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SEMI_CUB")
    parser.add_argument("out", type=Path)
    parser.add_argument("--side", type=int, default=160)
    parser.add_argument("--quality", type=int, default=75)
    parser.add_argument("--known-only", action="store_true", help="without the photos of other classes")
    options = parser.parse_args()
    lists = options.source / "splits"
    for file in sorted(lists.glob("*.txt")):
        write(options.out / "semi_cub" / "splits" / file.name, read(file))
    if (options.source / "splits_longtail").is_dir():
        write_longtail(options.source / "splits_longtail", lists, options.out)
    names = {"in": ("l_train_val", "u_train_in", "test"), "out": () if options.known_only else ("u_train_out",)}
    for part, files in names.items():
        paths = sorted({path for name in files for path, _ in read(lists / f"{name}.txt")})
        if paths:
            file = options.out / f"semi_cub-{part}.tar"
            pack(paths, options.source / "images", options.side, options.quality, file)


if __name__ == "__main__":
    main()
