"""Predicts many files and writes a table, which is complete or can be resumed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn, Protocol

from semifine.data.boxes import Photo, photo_file
from semifine.data.csv_table import write_csv
from semifine.data.parallel import usable_cores
from semifine.errors import UserError
from semifine.files import atomic_file
from semifine.inference.calibration import Logits
from semifine.inference.onnx_model import OnnxModel
from semifine.inference.pipeline import run_inference
from semifine.inference.prediction import (
    Checkpoint,
    Device,
    ModelMetadata,
    Prediction,
    PredictOptions,
    predict_from_logits,
)
from semifine.inference.preprocess import Preprocessor, batched
from semifine.inference.tables import (
    ROW_GROUP_SIZE,
    Journal,
    Record,
    as_record,
    check_output,
    create_table,
    printable,
)


class Model(Protocol):
    """A model that predicts: a run or an ONNX file."""

    @property
    def metadata(self) -> ModelMetadata:
        """Everything except the weights that predictions need."""
        ...

    @property
    def identity(self) -> str:
        """Hash of the weights."""
        ...

    @property
    def calibration_note(self) -> str:
        """Description of the calibration in one sentence."""
        ...

    @property
    def preprocessor(self) -> Preprocessor:
        """The evaluation transform."""
        ...

    @property
    def batch_size(self) -> int:
        """Default batch size."""
        ...

    def logits(self, images: Sequence[Any]) -> Logits:
        """Returns logits ``(N, K)`` of N preprocessed images, each ``(S, S, 3)`` uint8."""
        ...


def open_model(path: Path, checkpoint: Checkpoint | None, device: Device, views: int = 1) -> Model:
    """Opens the model in a run folder, or in an ONNX file, which does not need PyTorch.

    Args:
        path: Run folder or ``.onnx`` file.
        checkpoint: Checkpoint of the run, by default its result. ONNX files have none.
        device: Device of the network.
        views: Number of views of each image whose predictions are averaged.
    """
    if path.suffix.lower() == ".onnx":
        if checkpoint is not None:
            raise UserError(f"{path} contains one set of weights: omit --checkpoint, which is chosen at export.")
        return OnnxModel(path, device, views)
    if path.is_file():
        raise UserError(f"{path} cannot predict: give a run folder, or an .onnx file of 'semifine export'.")
    from semifine.inference.model import TrainedModel  # slow: imports torch, which an ONNX file does not need

    return TrainedModel(path, checkpoint or "auto", device, views)


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM."""


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Raises ``Terminated`` on SIGTERM inside the context, unless another handler is installed."""

    def stop(*_: object) -> NoReturn:
        raise Terminated

    installs = current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if installs:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if installs:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass
class PredictSummary:
    """Number of images by result, and the run time."""

    predicted: int = 0
    unreadable: int = 0
    unknown: int = 0
    """Predicted images that are flagged as out of distribution."""
    seconds: float = 0.0

    def add(self, records: Sequence[Record], unreadable: int) -> None:
        """Counts a batch of records; ``unreadable`` is the number of unreadable files so far."""
        self.predicted += sum("error" not in record for record in records)
        self.unreadable = unreadable
        self.unknown += sum(bool(record.get("is_ood")) for record in records)


def predict_files(
    model: Model,
    photos: Iterable[Photo],
    options: PredictOptions,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Iterator[tuple[str, Prediction | str]]:
    """Yields the file of each photo or crop with its prediction, or why it cannot be read, in order."""
    waiting: list[Photo] = []

    def remember() -> Iterator[Photo]:
        for photo in photos:
            waiting.append(photo)
            yield photo

    groups = model.preprocessor.decode_files(remember(), workers or usable_cores())
    num_classes = len(model.metadata.class_names)
    for batch in run_inference(model.logits, model.preprocessor, groups, num_classes, batch_size or model.batch_size):
        predictions = iter(predict_from_logits(batch.logits, model.metadata, options))
        for index, photo in enumerate(waiting[: batch.size]):
            error = batch.errors.get(index)
            yield photo_file(photo), error if error is not None else _with_box(next(predictions), photo)
        del waiting[: batch.size]


def _with_box(prediction: Prediction, photo: Photo) -> Prediction:
    return prediction if isinstance(photo, str) else replace(prediction, box=photo.box)


def predict_to_table(
    out: Path,
    model: Model,
    photos: Iterable[Photo],
    options: PredictOptions,
    *,
    crops: str | None = None,
    resume: bool = False,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
    write_also: Callable[[Iterator[Record]], object] | None = None,
) -> PredictSummary:
    """Predicts photos into a table and lists unreadable files beside it. If no file is readable, only writes the list.

    Args:
        out: The table, ``.csv``, ``.jsonl`` or ``.parquet``; must not exist.
        model: The model.
        photos: Image files, or crops of them.
        options: Options of the predictions.
        crops: Hash of the boxes of crops, without which an interrupted job is not continued.
        resume: Continues an interrupted job.
        batch_size: Number of images in a batch.
        workers: Number of threads or processes that decode.
        progress: Called with the number of processed images.
        write_also: Called with all records of the complete table, to write them in another format.
    """
    check_output(out)
    started = time.perf_counter()
    with closing(Journal(out)) as journal:
        is_resumed, list_path = journal.begin(_job_header(model, options, crops), resume), unreadable_list(out)
        _check_unreadable_list(list_path, is_resumed)
        summary, unreadable, rest = PredictSummary(), dict[str, Record](), iter(photos)
        with atomic_file(out, exclusive=True) as partial:
            with create_table(partial, out.suffix) as add_rows:

                def add(records: Sequence[Record]) -> None:
                    add_rows([record for record in records if "error" not in record])
                    unreadable.update((record["path"], record) for record in records if "error" in record)
                    summary.add(records, len(unreadable))
                    if progress is not None:
                        progress(summary.predicted + summary.unreadable)

                for records in batched(_finished_records(journal, rest), ROW_GROUP_SIZE):
                    add(records)
                results = predict_files(model, rest, options, batch_size, workers)
                for batch in batched(results, batch_size or model.batch_size):
                    records = [_record(file, result) for file, result in batch]
                    journal.append(records)
                    add(records)
            if unreadable:
                _write_unreadable(unreadable.values(), list_path)
                if not summary.predicted:
                    journal.finish()
                    raise _nothing_readable(list(unreadable.values()), list_path)
            if write_also is not None:
                write_also(record for record in journal.records() if "error" not in record)
        journal.finish()
    summary.seconds = time.perf_counter() - started
    return summary


def unreadable_list(out: Path) -> Path:
    """Returns the path of the list of unreadable files of a table.

    Example:
        >>> unreadable_list(Path("birds.csv")).name
        'birds.csv.unreadable.csv'
    """
    return out.with_name(out.name + ".unreadable.csv")


def _check_unreadable_list(path: Path, is_resumed: bool) -> None:
    if path.exists() and not is_resumed:  # a resumed job replaces its own list
        raise UserError(f"{path} exists already: move it away, or choose another --out.")


def _record(file: str, result: Prediction | str) -> Record:
    if isinstance(result, str):
        return {"path": printable(file), "error": result}
    return as_record(printable(file), result)


def _finished_records(journal: Journal, photos: Iterator[Photo]) -> Iterator[Record]:
    """Yields the records of an interrupted job and skips their files, which must come first and in the same order."""
    for record in journal.records():
        photo = next(photos, None)
        if photo is None or printable(photo_file(photo)) != record["path"]:
            current = "no file" if photo is None else printable(photo_file(photo))
            raise UserError(
                f"{journal.path} was started with other files: it has {record['path']} in the place of {current}; "
                "give the same files, or remove it."
            )
        yield record


def _job_header(model: Model, options: PredictOptions, crops: str | None) -> Record:
    """Returns everything except the images that the predictions depend on."""
    calibration, taxonomy = model.metadata.calibration, options.taxonomy
    return {
        "model": model.identity,
        "calibration": [calibration.images, round(calibration.temperature, 2)],
        **asdict(replace(options, taxonomy=None)),
        "taxonomy": taxonomy and taxonomy.identity,
        "crops": crops,
    }


def _write_unreadable(records: Iterable[Record], path: Path) -> None:
    with atomic_file(path, exclusive=True) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        reasons = ((record["path"], printable(record["error"])) for record in records)
        write_csv(file, chain([("path", "reason")], reasons), line_end="\r\n")


def _nothing_readable(records: Sequence[Record], list_path: Path) -> UserError:
    path, reason = records[0]["path"], printable(records[0]["error"])
    first = reason if path in reason else f"{path}: {reason}"
    return UserError(
        f"0 of {len(records)} images could be read, the first one: {first}; {list_path} lists them with the reason: "
        "remove it before the next attempt."
    )
