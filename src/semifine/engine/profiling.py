"""--profile: where the time of a step goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

SKIPPED, WARM_UP, ACTIVE = 10, 5, 10
ROWS = 15


@contextmanager
def profiling(folder: Path, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Watches ten steps after the first fifteen; gives what is to be called after each step.

    Leaves ``trace.json.gz`` in the folder, for chrome://tracing or ui.perfetto.dev, and says the largest costs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"

    finished = False

    def finish(profiler: profile) -> None:
        nonlocal finished
        finished = True
        trace = folder / "trace.json.gz"
        profiler.export_chrome_trace(str(trace))
        say(profiler.key_averages().table(sort_by=order, row_limit=ROWS, max_name_column_width=60))
        say(f"The {ACTIVE} steps of this table are in {trace}.")

    steps = schedule(skip_first=SKIPPED, wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1)
    with profile(activities=activities, schedule=steps, on_trace_ready=finish) as profiler:
        yield profiler.step
    if not finished:
        say(f"The run was too short to be profiled: that takes {SKIPPED + WARM_UP + ACTIVE} steps.")
