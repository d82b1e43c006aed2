from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from semifine.data.sources import folder, get_source, load_catalog, resolve, source_names
from semifine.errors import UserError

from ..conftest import SaveImage

PUBLISHED = ["semi_aves", "semi_cub", "semi_fungi", "semi_inat"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_names() -> None:
    assert source_names() == sorted([*PUBLISHED, "cifar10", "cifar100", "folder", "synthetic", "table"])


@pytest.mark.parametrize("name", [*PUBLISHED, "cifar10", "cifar100", "folder", "table"])
def test_every_source_has_frozen_settings_with_help(name: str) -> None:
    settings = get_source(name).settings_class()
    for field in dataclasses.fields(settings):
        assert field.metadata["help"]
        assert field.default is not dataclasses.MISSING
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, None)
    assert get_source(name).summary


@pytest.mark.parametrize("spec", ["photos", "./photos", "photos/", "../{here}/photos", "~/photos"])
def test_a_folder(here: Path, spec: str) -> None:
    (here / "photos").mkdir()
    assert resolve(spec.format(here=here.name)) == ("folder", here / "photos")


@pytest.mark.parametrize("name", ["list.csv", "list.TSV", "with space.csv"])
def test_a_table(here: Path, name: str) -> None:
    (here / name).write_text("")
    assert resolve(name) == ("table", here / name)
    assert resolve(f"table:{name}") == ("table", here / name)


def test_a_named_source(here: Path) -> None:
    (here / "a:b").mkdir()
    assert resolve("synthetic") == ("synthetic", None)
    assert resolve("semi_cub:.") == ("semi_cub", here)
    assert resolve("semi_aves:~/a:b") == ("semi_aves", here / "a:b")
    assert resolve("folder:a:b") == ("folder", here / "a:b")


def test_existing_paths_take_precedence(here: Path) -> None:
    for name in ("semi_cub:old", "synthetic"):
        (here / name).mkdir()
        assert resolve(name) == ("folder", here / name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no/such/folder", "'no/such/folder' is neither.*semi_aves:PATH.*synthetic"),
        ("semi_cup:.", "'semi_cup:.' is neither"),
        ("", "'' is neither"),
        ("semi_cub", "semi_cub:PATH"),
        ("semi_cub:", "semi_cub:PATH"),
        ("semi_cub:nowhere", "nowhere.*not an existing folder"),
        ("table:nowhere.csv", r"nowhere\.csv.*not an existing file"),
        ("synthetic:here", "takes no path"),
        ("notes.txt", "not a table"),
    ],
)
def test_mistakes_are_named(here: Path, spec: str, message: str) -> None:
    (here / "notes.txt").write_text("")
    with pytest.raises(UserError, match=message):
        resolve(spec)


def test_unknown_name() -> None:
    with pytest.raises(UserError, match=r"Unknown data source 'cub'\. Valid ones: cifar10, cifar100, folder, "):
        get_source("cub")


def test_load_with_and_without_settings(save_image: SaveImage) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        save_image(f"labeled/{name}")
    assert (load_catalog(".").split == 2).sum() == 0
    assert (load_catalog(".", folder.Settings(val_share=0.5)).split == 2).sum() == 2
    with pytest.raises(TypeError, match="Settings"):
        load_catalog(".", object())


def test_reading_lists_needs_no_torch() -> None:
    modules = ", ".join(f"semifine.data.sources.{name}" for name in [*PUBLISHED, "folder", "table"])
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
