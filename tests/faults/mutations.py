"""Structure-aware mutations: valid YAML, JSON, SQLite, safetensors and image files with a few fields changed."""

from __future__ import annotations

import copy
import io
import json
import random
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, features

from semifine.data.label_log import LABEL, UNDO, Event, LabelLog

DEEP = 3000
NUMBERS = [0, 1, -1, 2, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400]
TEXTS = ["", " ", "a", "nan", "../..", "x" * 5000, "\ud800", "\0", "\x1b[2J", "日本", "=1+1", "\u202e", "1e999", "a\nb"]
SCALARS: list[Any] = [None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), *NUMBERS, *TEXTS]


def mutate_tree(rng: random.Random, value: Any) -> Any:
    """Returns a copy of a JSON value with one to three changes."""
    root = {"": copy.deepcopy(value)}
    for _ in range(rng.choice([1, 1, 2, 3])):
        holder, key = rng.choice(list(_places(root)))
        change = rng.choice(["scalar"] * 4 + ["remove"] * 3 + ["kind", "deep", "add", "swap", "long"])
        if change == "remove" and holder is not root:
            del holder[key]
        elif change == "add" and isinstance(holder[key], dict):
            holder[key][rng.choice(TEXTS)] = rng.choice(SCALARS)
        elif change == "add" and isinstance(holder[key], list):
            holder[key].insert(0, rng.choice(SCALARS))
        elif change == "swap":
            other, other_key = rng.choice(list(_places(root)))
            holder[key] = copy.deepcopy(other[other_key])
        elif change == "long" and isinstance(holder[key], list):
            holder[key] = holder[key] * 1000
        else:
            kinds = [[], {}, [holder[key]], {"a": holder[key]}, [[]], [None], [{}]]
            holder[key] = rng.choice(SCALARS if change == "scalar" else [Deep()] if change == "deep" else kinds)
    return root[""]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container with every key or index."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


class Deep:
    """Stands for deeply nested lists, which the encoders cannot write themselves."""

    text = "[" * DEEP + "]" * DEEP


MARK = "«deep»"


def as_json(value: Any) -> bytes:
    text = json.dumps(value, default=lambda _: MARK, skipkeys=True)
    return text.replace(json.dumps(MARK), Deep.text).encode()


def mutate_json(rng: random.Random, content: bytes) -> bytes:
    """Changes a few values of a JSON file, or of a line of a file with JSON lines."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    number = rng.randrange(len(lines))
    lines[number] = as_json(mutate_tree(rng, json.loads(lines[number])))
    if rng.random() < 0.05:
        lines[number] = lines[number].replace(b'": ', b'": ' + b" " * rng.choice([1, 10**6]), 1)
    return b"\n".join([*lines, b""])


YAML_VALUES = [
    *("2020-01-01", "2020-99-99", "9" * 5000, "0x" + "f" * 3000, "1" + ":1" * 3000, "!!int x", "!!bool x", "!!float x"),
    *(
        "!!timestamp x",
        "!!binary aGk=",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!python/name:os.system",
        "!x y",
        "*a",
        "*none",
    ),
    *("&a [*a]", "<<: *a", "{<<: 1}", "? [a]", ".nan", ".inf", "1_000", "0o17", "~", "|", ">", "%", "@a", "`", "- -"),
    *(
        "[" * 2000,
        "{a: " * 500,
        "'",
        '"',
        '"\\ud800"',
        "!!str 1",
        "\t",
        "# c",
        "!!null x",
        "! 1",
        "2001-12-14t21:59:43.1Z",
    ),
]


def mutate_yaml(rng: random.Random, content: bytes) -> bytes:
    """Changes values, tags, anchors and nesting of a settings file."""
    if rng.random() < 0.3:
        tree = mutate_tree(rng, yaml.safe_load(content))
        return yaml.safe_dump(_without_deep(tree), allow_unicode=True).encode("utf-8", "surrogatepass")
    lines = content.decode().splitlines()
    for _ in range(rng.choice([1, 1, 2, 4])):
        number = rng.randrange(len(lines))
        key, colon, _ = lines[number].partition(":")
        change = rng.choice(["value", "value", "value", "bomb", "repeat", "indent", "key"])
        if change == "value" and colon:
            lines[number] = f"{key}: {rng.choice(YAML_VALUES)}"
        elif change == "bomb":
            names = "abcdefghij"
            lines += [f"{names[0]}: &{names[0]} [x, x, x, x, x, x, x, x, x]"]
            for before, name in pairwise(names):
                lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
            lines.append(f"{key.strip() or 'seed'}: *{names[-1]}")
        elif change == "repeat":
            lines.insert(number, lines[rng.randrange(len(lines))])
        elif change == "indent":
            lines[number] = rng.choice([" ", "  ", "\t"]) + lines[number]
        else:
            lines[number] = f"{rng.choice(['1', 'k' * 5000, '? k', '*a', '2020-01-01', 'null'])}: 1"
    return "\n".join([*lines, ""]).encode()


def _without_deep(value: Any) -> Any:
    if isinstance(value, Deep):
        return [[[[[]]]]]
    if isinstance(value, dict):
        return {key: _without_deep(item) for key, item in value.items()}
    return [_without_deep(item) for item in value] if isinstance(value, list) else value


SQL = [
    "ALTER TABLE events RENAME TO old; CREATE VIEW events AS SELECT * FROM old",
    "ALTER TABLE events RENAME TO old; CREATE VIEW events AS SELECT n AS number, '' AS time, '' AS person, n AS path, "
    "'skip' AS kind, NULL AS class, 0 AS seen, NULL AS undoes, '{}' AS shown FROM (WITH RECURSIVE r (n) AS "
    "(SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r)",
    "ALTER TABLE events RENAME TO old; "
    "CREATE TABLE events (number, time, person, path, kind, class, seen, undoes, shown)",
    "ALTER TABLE events ADD COLUMN more TEXT",
    "ALTER TABLE events RENAME COLUMN person TO people",
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN INSERT INTO events SELECT * FROM events; END",
    "CREATE INDEX i ON events (abs(number))",
    "CREATE VIEW v AS SELECT * FROM nothing",
    "DROP TABLE events",
    "DELETE FROM events",
    "UPDATE sqlite_master SET sql = 'CREATE TABLE events (' WHERE name = 'events'",
    "UPDATE sqlite_master SET rootpage = 1 WHERE name = 'events'",
    "UPDATE sqlite_master SET rootpage = 99 WHERE name = 'events_by_path'",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 99",
    "PRAGMA application_id = 0",
    "PRAGMA journal_mode = DELETE",
]
CELLS: list[Any] = [
    None,
    "",
    "a",
    "[",
    "{}",
    "[" * DEEP,
    b"\xff",
    b"",
    1.5,
    *[n for n in NUMBERS if abs(n) < 2**63],
    "\0",
]


def write_label_log(rng: random.Random, file: Path, paths: list[str], names: list[str]) -> None:
    """Writes a label log and changes its schema, its rows or its pages."""
    log = LabelLog(file)
    events = [Event("Ada", path, LABEL, rng.choice(names)) for path in paths]
    log.append([*events, Event("Bo", paths[0], UNDO, undoes=1)])
    log.close()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.text_factory = bytes
    for statement in ("writable_schema = ON", "ignore_check_constraints = ON", "journal_mode = DELETE"):
        connection.execute(f"PRAGMA {statement}")
    for trigger in ("no_update", "no_delete") if rng.random() < 0.9 else ():
        connection.execute(f"DROP TRIGGER {trigger}")
    for _ in range(rng.choice([0, 1, 1, 2])):
        column = rng.choice(["time", "person", "path", "kind", "class", "seen", "undoes", "shown", "number"])
        try:
            if rng.random() < 0.6:
                connection.execute(f"UPDATE events SET {column} = ? WHERE number = 1", (rng.choice(CELLS),))
            else:
                connection.executescript(rng.choice(SQL))
        except sqlite3.Error:  # an earlier change forbids it
            break
    connection.close()
    if rng.random() < 0.4:
        content = bytearray(file.read_bytes())
        for _ in range(rng.choice([1, 1, 4])):
            # The header of the file and of a page
            start = rng.choice([0, 100, *range(4096, len(content), 4096)])
            _write_number(rng, content, start + rng.randrange(60), rng.choice([1, 2, 4]), "big")
        file.write_bytes(content)


def mutate_safetensors(rng: random.Random, content: bytes) -> bytes:
    """Changes the header of a safetensors file: names, types, shapes, offsets and lengths."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    change = rng.choice(["tree", "tree", "tensor", "tensor", "length", "cut", "names"])
    if change == "tree":
        header = mutate_tree(rng, header)
    elif change == "tensor":
        tensor = header[rng.choice([name for name in header if name != "__metadata__"])]
        key = rng.choice(["dtype", "shape", "data_offsets"])
        types = ["F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "X", ""]
        shapes = [[], [0], [2**61], [2**40, 2**40], [-1], [1.5], [1] * 100, list(reversed(tensor["shape"]))]
        offsets = [[0, 0], [0, 2**60], [8, 0], [-8, 8], [0], [1, len(data)], [len(data), len(data) + 8]]
        tensor[key] = rng.choice({"dtype": types, "shape": shapes, "data_offsets": offsets}[key])
    elif change == "names":
        name = rng.choice(list(header))
        header[rng.choice([*TEXTS, "head.weight", "heads.x.weight"])] = header.pop(name)
    elif change == "cut":
        data = data[: rng.randrange(len(data) + 1)]
    text = as_json(header)
    size = rng.choice([0, len(text) - 1, len(text) + 1, 2**31, 2**63, 2**64 - 1]) if change == "length" else len(text)
    return (size % 2**64).to_bytes(8, "little") + text + data


IMAGE_KINDS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp", "PPM": "ppm"} | (
    {"JPEG2000": "jp2"} if features.check("jpg_2000") else {}
)
MODES = {"PNG": ["RGB", "RGBA", "P", "I;16", "LA", "1"], "TIFF": ["RGB", "I;16", "F", "CMYK", "LAB", "RGBA", "1", "P"]}


@cache
def image_file(kind: str, mode: str) -> bytes:
    """A small valid image with EXIF metadata."""
    values = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    image = Image.fromarray(values)
    image = Image.fromarray(values[..., 0].astype(np.uint16) * 200) if mode == "I;16" else image.convert(mode)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "Reconyx"
    exif.get_ifd(0x8769)[0x9003] = "2024:05:06 07:08:09"
    exif.get_ifd(0x8825).update({1: "S", 2: (33.0, 30.0, 36.0), 3: "E", 4: (18.0, 15.0, 0.0)})
    buffer = io.BytesIO()
    more = {"exif": exif} if kind in ("JPEG", "PNG", "TIFF", "WEBP") else {}
    image.save(buffer, kind, **more)
    return buffer.getvalue()


def mutate_image(rng: random.Random) -> tuple[str, bytes]:
    """Returns the suffix and the content of an image with a few changed fields of its container."""
    kind = rng.choice(list(IMAGE_KINDS))
    content = bytearray(image_file(kind, rng.choice(MODES.get(kind, ["RGB"]))))
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        fields = FIELDS[kind](bytes(content))
        start, size, order = rng.choice(fields)
        change = rng.random()
        if change < 0.8:
            _write_number(rng, content, start, size, order)
        elif change < 0.9:
            content[start : start + size] = b""
        else:
            content[start:start] = content[start : start + rng.choice([size, 40])]
    if kind == "PNG" and rng.random() < 0.8:
        content = _with_checksums(content)
    suffix = rng.choice([IMAGE_KINDS[kind]] * 4 + ["jpg", "png"])
    return suffix, bytes(content)


def _write_number(rng: random.Random, content: bytearray, start: int, size: int, order: Any) -> None:
    number = rng.choice([*NUMBERS[:9], 3, 6, 7, 16, 32, 4000, 30_000, rng.getrandbits(32)]) % 256**size
    content[start : start + size] = number.to_bytes(size, order)


Field = tuple[int, int, str]
"""Start, number of bytes, and order of the bytes."""


def _png_fields(content: bytes) -> list[Field]:
    fields, start = [], 8
    while start + 8 <= len(content):
        length = int.from_bytes(content[start : start + 4], "big")
        fields += [(start, 4, "big"), (start + 4, 4, "big")]
        starts = (8, 12, 16, 17, 18, 20) if content[start + 4 : start + 8] == b"IHDR" else (8, 12)
        fields += [(start + offset, 4 if offset in (8, 12) else 1, "big") for offset in starts]
        start += 12 + length
    return fields or [(8, 4, "big")]


def _with_checksums(content: bytearray) -> bytearray:
    """Corrects the checksums of the chunks, without which Pillow reads no changed chunk."""
    start = 8
    while start + 12 <= len(content):
        end = start + 8 + int.from_bytes(content[start : start + 4], "big")
        if end + 4 > len(content):
            break
        content[end : end + 4] = struct.pack(">I", zlib.crc32(content[start + 4 : end]))
        start = end + 4
    return content


def _jpeg_fields(content: bytes) -> list[Field]:
    fields, start = [], 2
    while start + 4 <= len(content) and content[start] == 0xFF and content[start + 1] != 0xDA:
        fields += [(start + 1, 1, "big"), (start + 2, 2, "big"), (start + 4, 1, "big")]
        fields += [(start + 5, 2, "big"), (start + 7, 2, "big"), (start + 9, 1, "big"), (start + 10, 1, "big")]
        if content[start + 4 : start + 8] == b"Exif":
            fields += [(start + 10 + at, size, order) for at, size, order in _tiff_fields(content[start + 10 :])]
        start += 2 + int.from_bytes(content[start + 2 : start + 4], "big")
    return fields or [(2, 2, "big")]


def _tiff_fields(content: bytes) -> list[Field]:
    order: Any = "little" if content[:2] == b"II" else "big"
    fields, waiting, seen = [(2, 2, order), (4, 4, order)], [int.from_bytes(content[4:8], order)], set()
    while waiting:
        start = waiting.pop()
        if start in seen or start + 2 > len(content):
            continue
        seen.add(start)
        count = min(int.from_bytes(content[start : start + 2], order), 40)
        fields.append((start, 2, order))
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            fields += [(entry, 2, order), (entry + 2, 2, order), (entry + 4, 4, order), (entry + 8, 4, order)]
            if int.from_bytes(content[entry : entry + 2], order) in (0x8769, 0x8825):
                waiting.append(int.from_bytes(content[entry + 8 : entry + 12], order))
        fields.append((start + 2 + 12 * count, 4, order))
    return [field for field in fields if field[0] < len(content)]


def _riff_fields(content: bytes) -> list[Field]:
    fields, start = [(4, 4, "little")], 12
    while start + 8 <= len(content):
        length = int.from_bytes(content[start + 4 : start + 8], "little")
        fields += [(start, 4, "little"), (start + 4, 4, "little"), (start + 8, 4, "little"), (start + 12, 3, "little")]
        start += 8 + length + length % 2
    return fields


def _box_fields(content: bytes) -> list[Field]:
    """Boxes of JPEG 2000, and the markers of its code stream."""
    fields, start = [], 0
    while start + 8 <= len(content):
        length = int.from_bytes(content[start : start + 4], "big")
        fields += [(start, 4, "big"), (start + 4, 4, "big"), (start + 8, 4, "big"), (start + 16, 4, "big")]
        if content[start + 4 : start + 8] == b"jp2c":
            fields += [(start + 8 + offset, 4, "big") for offset in range(8, 60, 4)]
        if length < 8:
            break
        start += length
    return fields


def _every(start: int, end: int, size: int, order: str) -> Callable[[bytes], list[Field]]:
    return lambda content: [(at, size, order) for at in range(start, min(end, max(start + 1, len(content))), size)]


FIELDS: dict[str, Callable[[bytes], list[Field]]] = {
    "PNG": _png_fields,
    "JPEG": _jpeg_fields,
    "TIFF": _tiff_fields,
    "WEBP": _riff_fields,
    "JPEG2000": _box_fields,
    "GIF": _every(6, 60, 2, "little"),
    "BMP": _every(2, 54, 4, "little"),
    "PPM": _every(0, 14, 1, "little"),
}
