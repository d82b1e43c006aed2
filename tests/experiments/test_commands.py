"""``semifine experiment``, ``reproduce`` and ``list experiments`` with very few steps."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch

from semifine.cli import experiment, reproduce
from semifine.cli.main import main
from semifine.config import loading, read_settings_file
from semifine.data import parallel
from semifine.data.sources import load_catalog, synthetic
from semifine.data.sources.folder import write_folder
from semifine.experiments import scheduler
from semifine.experiments.stages import ROUNDS
from semifine.experiments.tables import find_experiment, published_experiments
from semifine.files import read_json
from semifine.runs.folder import RunFolder
from tests.conftest import FEW_IMAGES
from tests.data.sources.test_cifar import python_version, write_archive

TINY = ["--budget", "1", "--device", "cpu"]


class RunHere:
    """Executes a run in this process, because importing torch for each run is slow."""

    def __init__(self, command: list[str], **_: Any) -> None:
        assert command[1:3] == ["-m", "semifine"]
        self._code = main(command[3:])

    def poll(self) -> int:
        return self._code


@pytest.fixture
def _runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process on a few images of the synthetic data set."""
    real, few = loading.source_defaults, {"synthetic": FEW_IMAGES}
    monkeypatch.setattr(loading, "source_defaults", lambda source: {**real(source), **few.get(source, {})})
    monkeypatch.setattr(scheduler, "subprocess", SimpleNamespace(Popen=RunHere, STDOUT=subprocess.STDOUT))
    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.0)


def read_table(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((out / "table.csv").read_text(encoding="utf-8"))))


@pytest.mark.slow
@pytest.mark.usefixtures("_runs_here")
def test_table1_is_complete_and_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "table1", "--seeds", "1", "--out", str(tmp_path), *TINY]
    assert main(command) == 0
    printed = capsys.readouterr().out
    rows = read_table(tmp_path)
    assert len(rows) == 13
    assert all(row["seeds"] == "1" and row["top1"] and not row["failure"] for row in rows)
    assert all(f"| {row['row']} |" in printed for row in rows)

    results = sorted(tmp_path.glob("scratch-in/seed-0/*/result.json"))
    assert len(results) == 13 + len(["supervised", "moco"]) + ROUNDS - 1, "shared stages are run once"
    times = [path.stat().st_mtime_ns for path in results]
    assert main(command) == 0
    assert main([*command, "--show"]) == 0
    assert [path.stat().st_mtime_ns for path in results] == times
    assert read_table(tmp_path) == rows

    capsys.readouterr()
    assert main([*command, "--budget", "2", "--show"]) == 2
    assert "contains a run with iterations = 1, but this command needs 2" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("_runs_here")
def test_rows_of_votes_share_their_voters_and_may_move(tmp_path: Path) -> None:
    options = ["--methods", "vote", "dst", "--seeds", "1", *TINY]
    assert main(["reproduce", "beyond", "--out", str(tmp_path / "first"), *options]) == 0
    assert [row["row"] for row in read_table(tmp_path / "first")] == ["DST", "Vote", "Vote with candidate sets"]
    results = sorted(path.parent.name for path in (tmp_path / "first").glob("scratch-in/seed-0/*/result.json"))
    voters = ["supervised", "supervised-voter-2", "supervised-voter-3"]
    assert results == ["dst", *voters, "vote", "vote,candidates=True"]
    (tmp_path / "first").rename(tmp_path / "second")
    before = read_table(tmp_path / "second")
    assert main(["reproduce", "beyond", "--out", str(tmp_path / "second"), *options]) == 0
    assert read_table(tmp_path / "second") == before


@pytest.mark.slow
@pytest.mark.usefixtures("_runs_here")
def test_curriculum_passes_labels_on_and_writes_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "curriculum", "--out", str(tmp_path), *TINY]) == 0
    summary = read_json(tmp_path / "summary-curriculum.json")
    rounds = [f"curriculum-{number}" for number in range(1, ROUNDS + 1)]
    assert list(summary["stages"]) == ["supervised", *rounds]
    assert summary["result"] == summary["stages"][rounds[-1]] == RunFolder(tmp_path / rounds[-1]).read_result()
    for number, name in enumerate(rounds, start=1):
        with (tmp_path / f"{name}-labels.csv").open(encoding="utf-8") as file:
            given = list(csv.DictReader(file))
        assert len(given) == round(6 * 9 * number / ROUNDS)
        labeled = summary["stages"][name]["images"]["labeled"]
        assert labeled == summary["stages"]["supervised"]["images"]["labeled"] + len(given)
    assert f"Summary: {tmp_path}/summary-curriculum.json" in capsys.readouterr().out


@pytest.mark.usefixtures("_runs_here")
def test_run_a_table_row_by_name(tmp_path: Path) -> None:
    name = "table2/synthetic/scratch/soc,map=fixed,k=25"
    assert main(["experiment", name, "--out", str(tmp_path), *TINY]) == 0
    written = read_settings_file(tmp_path / "soc,map=fixed,k=25" / "settings.yaml")
    assert (written["method.map"], written["method.k"]) == ("fixed", 5), "an eighth of the 40 classes"
    assert read_json(tmp_path / "summary-soc,map=fixed,k=25.json")["result"]["method"] == "soc"


@pytest.mark.usefixtures("_runs_here")
def test_table_contains_the_reason_of_a_failed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(command: list[str], stdout: Any, **_: Any) -> RunHere | SimpleNamespace:
        if "seed-1" not in " ".join(command):
            return RunHere(command)
        Path(stdout.name).write_text("semifine: The loss of step 3 is not finite.\n")
        return SimpleNamespace(poll=lambda: 2)

    monkeypatch.setattr(scheduler, "subprocess", SimpleNamespace(Popen=popen, STDOUT=subprocess.STDOUT))
    assert main(["reproduce", "table1", "--methods", "soc", "--seeds", "2", "--out", str(tmp_path), *TINY]) == 1
    printed = capsys.readouterr().out
    assert "(1 of 2 seeds, 1 failed)" in printed
    note = "SoC, from scratch: seed 1 failed at soc: The loss of step 3 is not finite."
    assert f"- {note}" in printed
    assert note in (tmp_path / "table.tex").read_text()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photos without true classes of the unlabeled ones."""
    folder = tmp_path_factory.mktemp("own") / "my birds"
    few = {key.removeprefix("data."): int(str(value)) for key, value in FEW_IMAGES.items()}
    write_folder(load_catalog("synthetic", synthetic.Settings(**few)), folder)  # type: ignore[arg-type]
    return folder


OWN = ["--profile", "small", "--seeds", "1", "--methods", "oracle", "soc"]


@pytest.mark.usefixtures("_runs_here")
def test_unavailable_row_is_no_failure(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "table1", "--dataset", str(photos), "--out", str(tmp_path), *TINY]
    assert main([*command, *OWN]) == 0
    printed = capsys.readouterr().out
    reason = "my birds: the true classes of the unlabeled images are not known: choose a method other than oracle."
    assert "| — | Supervised oracle | - | - | - |" in printed
    assert printed.count(reason) == 1
    assert f"- Supervised oracle: {reason}" in printed
    assert "- data my birds, profile small, budget 1, seed 0\n" in printed
    oracle, soc = read_table(tmp_path)
    assert (oracle["seeds"], oracle["failure"]) == ("0", reason)
    assert soc["seeds"] == "1"
    assert not list(tmp_path.glob("**/oracle"))

    assert main([*command, "--profile", "small", "--methods", "oracle"]) == 2
    assert f"No row can be run with this data set: {reason}" in capsys.readouterr().err


def never_start(*_: Any, **__: Any) -> None:
    raise AssertionError("no run may start")


@pytest.mark.parametrize("command", ["reproduce table1 --methods soc", "experiment soc"])
def test_unusable_data_stop_before_the_first_run(
    photos: Path,
    tmp_path: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged, out = Path(shutil.copytree(photos, tmp_path / "photos")), tmp_path / "out"
    for file in sorted((damaged / "unlabeled").iterdir())[1:]:
        file.write_bytes(b"torn")
    monkeypatch.setattr(scheduler, "subprocess", SimpleNamespace(Popen=never_start, STDOUT=subprocess.STDOUT))
    options = ["--dataset", str(damaged), "--profile", "small", "--out", str(out), *TINY]
    assert main([*command.split(), *options]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "53 of 54 unlabeled images of photos cannot be read (unlabeled/" in error
    assert not list(out.rglob("*"))


@pytest.mark.usefixtures("_runs_here")
def test_images_are_decoded_and_noted_once(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, out = Path(shutil.copytree(photos, tmp_path / "photos")), tmp_path / "out"
    test_photo = min((copied / "test").rglob("*.png"))
    shutil.copy(test_photo, copied / "unlabeled" / "copy.png")
    monkeypatch.setenv("SEMIFINE_CACHE", str(tmp_path / "cache"))
    command = ["reproduce", "table1", "--dataset", str(copied), "--out", str(out), *TINY, "--profile", "small"]
    command += ["--methods", "fixmatch", "soc", "--seeds", "2"]
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("left out: 1 unlabeled image (also in test)") == 1
    logs = [folder.read_text() for folder in out.rglob("log.jsonl")]
    assert len(logs) == 4
    assert all("decoded images taken from" in log for log in logs)
    for image in copied.rglob("*.png"):
        image.write_bytes(b"torn")
    assert main(command) == 0, "finished runs need no images"


@pytest.mark.parametrize("command", ["reproduce table1", "experiment soc --out out"])
def test_keep_conflicting_is_an_option_of_the_data(command: str) -> None:
    name, *arguments = command.split()
    parser = {"reproduce": reproduce, "experiment": experiment}[name]._create_parser()
    options = experiment.parse_options(parser, [*arguments, "--keep-conflicting"])
    assert options.data_settings == (("keep_conflicting", "true"),)


@pytest.mark.usefixtures("_runs_here")
def test_data_settings_apply_to_all_runs_and_are_noted(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unused labels are known true classes, so the oracle is available."""
    command = ["reproduce", "table1", "--dataset", str(photos), "--out", str(tmp_path), *TINY, *OWN]
    assert main([*command, "--labels-per-class", "2", "--data.val-share=0.5"]) == 0
    message = capsys.readouterr().out
    assert "- data my birds, data.labels_per_class 2, data.val_share 0.5, profile small" in message
    for name in ("oracle", "soc"):
        written = read_settings_file(tmp_path / "scratch-in" / "seed-0" / name / "settings.yaml")
        assert (written["data.labels_per_class"], written["data.val_share"]) == (2, 0.5)
    assert main(command) == 2
    assert "contains a run with data.labels_per_class = 2, but this command needs None" in capsys.readouterr().err


@pytest.mark.usefixtures("_runs_here")
def test_run_a_table_row_on_own_photos(photos: Path, tmp_path: Path) -> None:
    name = "table2/folder/scratch/soc,alpha=2.0"
    command = ["experiment", name, "--dataset", str(photos), "--profile", "small", "--out", str(tmp_path), *TINY]
    assert main(command) == 0
    assert read_settings_file(tmp_path / "soc,alpha=2.0" / "settings.yaml")["method.alpha"] == 2.0


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--method.alpha 3", "does not take --method.alpha: the recipe defines the settings of its methods"),
        ("--data.source photos", "does not take --data.source: use --dataset"),
        ("--data.unlabeled inout", "does not take --data.unlabeled: the table defines it"),
        ("--data.color red", "Unknown setting 'data.color'"),
        ("--data.unlabeled-per-class few", "data.unlabeled_per_class must be a whole number"),
    ],
)
def test_fixed_settings_are_errors(
    option: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "table1", "--out", str(tmp_path / "out"), *option.split()]) == 2
    assert problem in capsys.readouterr().err


def test_listed_experiments_can_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "experiments", "--plain"]) == 0
    listed = capsys.readouterr().out.split("\n")[:-1]
    assert len(listed) == len(set(listed)) == 298
    experiments = published_experiments()
    assert [experiment.name for experiment in experiments] == listed
    assert all(find_experiment(experiment.name) == experiment for experiment in experiments)
    assert main(["list", "experiments"]) == 0
    assert (
        "table2/semi_fungi/scratch/soc,map=fixed,k=25\n    fixed k = 25, unlabeled images of the known classes\n"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("table1/semi_aves/scratch/soc", "give --dataset semi_aves:PATH"),
        ("table1/semi_aves/scratch/soc --dataset synthetic", "needs --dataset semi_aves, not synthetic"),
        ("table1/synthetic/scratch/soc --init imagenet", "needs --init scratch, not imagenet"),
        ("table1/synthetic/scratch/soc --unlabeled inout", "needs --unlabeled in, not inout"),
        ("table1/synthetic/scratch/cnn", "there is no row of table1 'cnn'. Valid ones: oracle, moco"),
        ("table1/synthetic/mars/soc", "there is no init 'mars'. Valid ones: scratch"),
        ("table1/pets/scratch/soc", "there is no data set 'pets'. Valid ones: cifar10"),
        ("table7/synthetic/scratch/soc", "Unknown table 'table7'. Valid ones: table1"),
        ("table1/soc", "does not have the form TABLE/DATASET/INIT/ROW"),
        ("cnn", "Unknown recipe 'cnn'. Valid ones: "),
    ],
)
def test_wrong_experiment_gives_one_sentence(
    arguments: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment", *arguments.split(), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert problem in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("profile", "cores", "expected"), [("small", 2, 2), ("small", 64, 4), ("lite0", 64, 1), ("paper", 2, 1)]
)
def test_small_networks_on_a_cpu_use_one_core_per_run(
    monkeypatch: pytest.MonkeyPatch, profile: str, cores: int, expected: int
) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    assert reproduce._runs_at_once(profile, "cpu") == expected


def test_folder_name_contains_the_data_set() -> None:
    from semifine.cli.reproduce import _folder_name

    assert _folder_name("semi_cub:/data/cub") == "semi_cub"
    assert _folder_name("synthetic") == "synthetic"
    assert _folder_name("folder:/a/birds") == "folder-birds"
    assert _folder_name("table:/a/moths.csv") == "table-moths.csv"


@pytest.mark.slow
@pytest.mark.usefixtures("_runs_here")
def test_transitions_are_drawn_beside_confusions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_archive(tmp_path, *python_version())
    command = ["experiment", "cifar10-transitions", "--dataset", f"cifar10:{root}", "--labels-per-class", "3"]
    command += ["--profile", "small"]  # the profile of CIFAR takes a minute per step on a CPU
    assert main([*command, "--out", str(tmp_path / "out"), *TINY]) == 0
    assert "Class transitions beside confusions: " in capsys.readouterr().out
    settings = read_settings_file(tmp_path / "out" / "cifar10-transitions" / "settings.yaml")
    assert settings["method.name"] == "soc"
    assert settings["data.labels_per_class"] == 3
    assert (tmp_path / "out" / "figures" / "fig6-matrices.png").is_file()


def test_transitions_need_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "cifar10-transitions", "--out", str(tmp_path / "out"), *TINY]) == 2
    assert "give --dataset cifar10:PATH" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["experiment", "moco+soc", "--init", "imagenet"], ["reproduce", "table1"]])
@pytest.mark.parametrize("option", ["--moco-weights", "--supervised-weights"])
def test_missing_weights_file_is_an_error(
    option: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "net.pth")
    assert main([*command, option, missing, "--out", str(tmp_path / "out"), *TINY]) == 2
    assert f"{missing} does not exist; check {option}" in capsys.readouterr().err


def test_released_networks_belong_to_one_kind_of_starting_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.pth").touch()
    options = ["--moco-weights", str(tmp_path / "net.pth"), "--out", str(tmp_path / "out"), *TINY]
    assert main(["reproduce", "table1", "--inits", "scratch", "imagenet", *options]) == 2
    assert "give one of scratch, imagenet with --inits" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("_runs_here")
def test_experiment_starts_from_released_networks(tmp_path: Path) -> None:
    network = timm.create_model("test_resnet", num_classes=0)
    moco = {"model": {f"module.encoder.{name}": value for name, value in network.state_dict().items()}}
    torch.save(moco, tmp_path / "moco.pth")
    options = ["--moco-weights", str(tmp_path / "moco.pth"), "--out", str(tmp_path / "out"), *TINY]
    assert main(["experiment", "moco+soc", *options]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["moco+soc"]
    report = read_json(tmp_path / "out" / "moco+soc" / "weights.json")
    assert report["source"] == str(tmp_path / "moco.pth")
    assert report["counts"]["missing"] == 0
