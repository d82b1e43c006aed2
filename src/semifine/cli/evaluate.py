"""semifine evaluate"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.main import Parser, add_checkpoint, add_device, add_views

if TYPE_CHECKING:
    from semifine.inference.scores import Scores


def run(arguments: Sequence[str]) -> int:
    options = _create_parser().parse_args(arguments)

    # Slow to import: 'semifine --help' does not need them.
    from semifine.inference.evaluate_files import check_new_table, evaluate_path, evaluate_split, write_predictions
    from semifine.inference.model import load
    from semifine.training.progress import Display

    if options.out:
        check_new_table(options.out)
    model = load(options.run, checkpoint=options.checkpoint, device=options.device, views=options.views)
    display = Display()
    with display.bar("evaluating", None):
        if options.path:
            evaluation = evaluate_path(model, options.path, options.split, progress=display.advance)
        else:
            evaluation = evaluate_split(model, options.split or "test", progress=display.advance)
    split, notes = evaluation.data.get("split"), evaluation.notes()
    trained_with = model.run.result["images"].get(split) if split and model.run.folder.result.is_file() else None
    if trained_with not in (None, evaluation.scores.images):
        notes.append(f"at the time of training, the data set had {trained_with} {split} images")
    if not model.calibration.is_fitted:
        notes.append(model.calibration_note)
    elif split == "val":
        notes.append("the calibration was fitted on these images: its error and coverage are better than on new images")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if options.out:
        write_predictions(options.out, evaluation, model.metadata)
    suspects = evaluation.suspects(model.class_names)
    if options.json:
        print(json.dumps({**evaluation.as_dict(), "suspect_labels": suspects}))
    else:
        print(format_scores(evaluation.scores, split or str(options.path), model.checkpoint))
        for line in format_suspects(suspects, evaluation.scores.images):
            print(line)
    return 0


def _create_parser() -> Parser:
    parser = Parser(
        prog="semifine evaluate",
        description="Measure the accuracy of a trained classifier on the test or validation images of its data set, or "
        "on other labeled photos.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        metavar="PATH",
        help="labeled photos: a folder with one folder per class, or a CSV or TSV file with the columns path and label "
        "(default: images of the data set of the run)",
    )
    parser.add_argument(
        "--split",
        choices=("test", "val"),
        help="images of the data set of the run to evaluate (default: test); with a table as PATH, its rows of that "
        "split (default: all rows)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="also write a table of the predictions with the true classes, .csv, .jsonl or .parquet",
    )
    add_checkpoint(parser)
    add_views(parser)
    add_device(parser, "compute")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


MAX_SUSPECTS = 5
"""Suspect labels that are printed; ``--json`` lists all."""


def format_suspects(suspects: Sequence[Mapping[str, str]], images: int) -> list[str]:
    """Formats the labels that contradict predictions, the most suspicious first; no line if there are none.

    Example:
        >>> format_suspects([{"path": "a.jpg", "label": "robin", "prediction": "wren"}], images=20)[1]
        '  a.jpg: labeled robin, predicted wren'
    """
    if not suspects:
        return []
    shown = suspects[:MAX_SUSPECTS]
    some = f"; the {len(shown)} most suspicious ones:" if len(shown) < len(suspects) else ""
    verb = "contradicts a confident prediction" if len(suspects) == 1 else "contradict confident predictions"
    reason = "a wrong label, or an error of the model" if len(suspects) == 1 else "wrong labels, or errors of the model"
    lines = [f"  {item['path']}: labeled {item['label']}, predicted {item['prediction']}" for item in shown]
    return [f"labels to check: {len(suspects)} of {images} {verb} ({reason}){some}", *lines]


def format_scores(scores: Scores, data: str, checkpoint: str) -> str:
    """Formats scores in a few lines."""
    top1, top5 = scores.top1, scores.top5
    lines = [
        f"{data}: top-1 {top1.mean:.2f} % (95 % interval {top1.low:.1f} to {top1.high:.1f}), "
        f"top-5 {top5.mean:.2f} % ({top5.low:.1f} to {top5.high:.1f}) on {scores.images} images ({checkpoint} weights)",
        f"mean accuracy per class: {scores.mean_class_accuracy:.2f} %, over {scores.classes} classes",
        f"expected calibration error: {scores.calibration_error:.1f} % (perfectly calibrated confidences would show "
        f"about {scores.calibration_error_by_chance:.1f} %)",
    ]
    if scores.conformal_coverage is not None:
        lines.append(
            f"90 % conformal sets: {scores.conformal_coverage:.1f} % contain the true class, "
            f"{scores.conformal_set_size:.1f} classes on average"
        )
    return "\n".join(lines)
