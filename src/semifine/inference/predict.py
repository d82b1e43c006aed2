"""Predictions of many files, written to a table that is complete or can be completed."""

from __future__ import annotations

import csv
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Literal, NoReturn, Protocol

from semifine.data.parallel import usable_cores
from semifine.errors import UserError
from semifine.files import atomic_file
from semifine.inference.calibration import Logits
from semifine.inference.pipeline import run_inference
from semifine.inference.prediction import ModelMetadata, Prediction, PredictOptions, predict_from_logits
from semifine.inference.preprocess import Preprocessor, batched
from semifine.inference.tables import ROWS, Journal, Record, as_record, check_suffix, table_rows

Device = Literal["auto", "cpu", "cuda"]
Checkpoint = Literal["last", "best_val"]


class Model(Protocol):
    """What predictions need."""

    @property
    def metadata(self) -> ModelMetadata:
        """What is known beside the network."""
        ...

    @property
    def identity(self) -> str:
        """Changes with the weights."""
        ...

    @property
    def calibration_note(self) -> str:
        """One sentence about how its confidences are calibrated."""
        ...

    @property
    def preprocessor(self) -> Preprocessor:
        """How it gets to see images."""
        ...

    @property
    def batch_size(self) -> int:
        """How many images at a time suit it."""
        ...

    def logits(self, views: Sequence[Any]) -> Logits:
        """N views of its sight, (S, S, 3) levels each -> (N, K)."""
        ...


def open_model(path: Path, checkpoint: Checkpoint | None, device: Device) -> Model:
    """The model in a run folder, by default its last one, or in an ONNX file, which needs no torch."""
    if path.suffix.lower() == ".onnx":
        if checkpoint is not None:
            raise UserError(f"{path} holds one set of weights: leave out --checkpoint, which is chosen at export.")
        from semifine.inference.onnx_model import OnnxModel  # onnxruntime is optional

        return OnnxModel(path, device)
    if path.is_file():
        raise UserError(f"{path} cannot predict: give the folder of a run, or an .onnx file of 'semifine export'.")
    from semifine.inference.model import TrainedModel  # slow: imports torch, which an ONNX file does not need

    return TrainedModel(path, checkpoint or "last", device)


class Terminated(KeyboardInterrupt):
    """Stopped by SIGTERM."""


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """For the time of the context SIGTERM raises Terminated, unless somebody else has plans for it."""

    def stop(*_: object) -> NoReturn:
        raise Terminated

    is_ours = current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass
class Tally:
    """What became of the images."""

    predicted: int = 0
    unreadable: int = 0
    strange: int = 0
    seconds: float = 0.0


def predict_files(
    model: Model,
    files: Iterable[str],
    questions: PredictOptions,
    batch: int | None = None,
    workers: int | None = None,
) -> Iterator[tuple[str, Prediction | str]]:
    """Each file with its prediction, or with the reason why it cannot be read, in order."""
    names: list[str] = []

    def remembered() -> Iterator[str]:
        for file in files:
            names.append(file)
            yield file

    groups = model.preprocessor.decode_files(remembered(), workers or usable_cores())
    num_classes = len(model.metadata.class_names)
    for logit_batch in run_inference(model.logits, model.preprocessor, groups, num_classes, batch or model.batch_size):
        predictions = iter(predict_from_logits(logit_batch.logits, model.metadata, questions))
        for index in range(logit_batch.size):
            error = logit_batch.errors.get(index)
            yield names[index], error if error is not None else next(predictions)
        del names[: logit_batch.size]


def predict_into(
    out: Path,
    model: Model,
    files: Iterable[str],
    questions: PredictOptions,
    *,
    resume: bool = False,
    batch: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
    also: Callable[[Iterator[Record]], object] | None = None,
) -> Tally:
    """Predicts the files into a CSV, JSON lines or Parquet file; unreadable ones go into a list beside it.

    Where all are unreadable, that list is all that stays. ``also`` gets the records of the table as well, to write them
    in another form.
    """
    check_suffix(out)
    started = time.perf_counter()
    with closing(Journal(out)) as journal:
        goes_on, listed = journal.begin(_asked(model, questions), resume), unreadable_list(out)
        if listed.exists() and not goes_on:  # else it is this job's own, which was stopped at its very end
            raise UserError(f"{listed} exists already: move it away, or choose another --out.")
        tally, problems, rest = Tally(), list[Record](), iter(files)
        with atomic_file(out, exclusive=True) as partial:
            with table_rows(partial, out.suffix) as add_rows:

                def take(records: Sequence[Record]) -> None:
                    readable = [record for record in records if "error" not in record]
                    add_rows(readable)
                    problems.extend(record for record in records if "error" in record)
                    tally.predicted += len(readable)
                    tally.unreadable = len(problems)
                    tally.strange += sum(bool(record["is_ood"]) for record in readable)
                    if progress is not None:
                        progress(tally.predicted + tally.unreadable)

                for done in batched(_done_before(journal, rest), ROWS):
                    take(done)
                predicted = predict_files(model, rest, questions, batch, workers)
                for some in batched(predicted, batch or model.batch_size):
                    records = [_record(file, result) for file, result in some]
                    journal.append(records)
                    take(records)
            if problems:
                _write_unreadable(problems, listed)
            if problems and not tally.predicted:
                journal.finish()
                raise _nothing_readable(problems, listed)
            if also is not None:
                also(record for record in journal.records() if "error" not in record)
        journal.finish()
    tally.seconds = time.perf_counter() - started
    return tally


def unreadable_list(out: Path) -> Path:
    """Where the files are named that could not be read."""
    return out.with_name(out.name + ".unreadable.csv")


def as_text(path: str) -> str:
    """A file name that any file format can hold: bytes that are no UTF-8 are written as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _record(file: str, result: Prediction | str) -> Record:
    if isinstance(result, str):
        return {"path": as_text(file), "error": result}
    return as_record(as_text(file), result)


def _done_before(journal: Journal, files: Iterator[str]) -> Iterator[Record]:
    """The records of an earlier, stopped job, whose files must be the first ones now."""
    for record in journal.records():
        now = next(files, None)
        if now is None or as_text(now) != record["path"]:
            comes = "nothing" if now is None else as_text(now)
            raise UserError(
                f"{journal.path} was begun with other files: where {record['path']} came, now comes {comes}; "
                "give the same ones, or remove it."
            )
        yield record


def _asked(model: Model, questions: PredictOptions) -> Record:
    """All that the predictions depend on beside the images."""
    calibration, taxonomy = model.metadata.calibration, questions.taxonomy
    return {
        "model": model.identity,
        "calibration": [calibration.images, round(calibration.temperature, 2)],
        **asdict(replace(questions, taxonomy=None)),
        "taxonomy": taxonomy and taxonomy.identity,
    }


def _write_unreadable(problems: Iterable[Record], path: Path) -> None:
    with atomic_file(path, exclusive=True) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "reason"])
        writer.writerows([problem["path"], as_text(problem["error"])] for problem in problems)


def _nothing_readable(problems: Sequence[Record], listed: Path) -> UserError:
    path, reason = problems[0]["path"], as_text(problems[0]["error"])
    named = reason if path in reason else f"{path}: {reason}"
    return UserError(
        f"0 of {len(problems)} images could be read, the first one: {named}; {listed} lists them with the reason: "
        "remove it before the next try."
    )
