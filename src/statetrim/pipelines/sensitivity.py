"""Sensitivity by layer: calibrate, choose channels at a few widths, prune each layer alone."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..analysis import sensitivity as analysis
from ..artifacts.plan import Plan
from ..artifacts.sensitivity import Sensitivity
from ..artifacts.statistics import Statistics
from ..calibration.calibrate import calibrate
from ..defaults import KEY_METHOD, VALUE_METHOD
from ..errors import StatetrimError
from ..geometry import Axis
from ..methods import find_method
from ..progress import ShowProgress, progress_reporter
from ..runtime.placement import Dtype, MaxMemory, Placement
from ..selection.select import select
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import check_absent, partial_path
from ..storage.space import check_writable

WIDTHS = (0.5, 0.25)


def sensitivity(
    model: ModelLike,
    text: str | Path,
    *,
    widths: Sequence[int | float | str] = WIDTHS,
    axes: Sequence[Axis] | None = None,
    method: str = KEY_METHOD,
    value_method: str = VALUE_METHOD,
    calibration_tokens: int = 2**15,
    windows: int = 64,
    rows: int = 32,
    skip: int = 0,
    batch_size: int = 8,
    dtype: Dtype | None = None,
    device: str | None = None,
    device_map: str | None = None,
    max_memory: MaxMemory | None = None,
    layerwise: bool = False,
    out: str | Path | None = None,
    figures: str | Path | None = None,
    progress: ShowProgress = True,
) -> Sensitivity:
    """Cut each layer alone at each of `widths` on each of `axes`, and measure text and recall.

    `axes` None means keys, and values at the widths that the model's config can hold. Channels are
    chosen on `calibration_tokens` of `text` after `skip`; the `windows` of 256 tokens that are
    measured follow them, with `rows` recall sequences of each load. The cost is one such evaluation
    for each layer, width and axis, and a few more. With `out` the run can be interrupted and
    resumed, and its figure is drawn into the directory `figures`.
    """
    placement = Placement(device, device_map, max_memory, dtype, layerwise)
    figure_paths, draw = _figure_outputs(out, figures)
    if out is not None:
        _check_outputs(Path(out), *figure_paths.values())
    checkpoint = require_prunable(as_checkpoint(model))
    calibrated_methods = [name for name in (method, value_method) if find_method(name).needs]
    statistics = None
    if calibrated_methods:
        statistics = calibrate(
            checkpoint,
            text,
            tokens=calibration_tokens,
            methods=calibrated_methods,
            batch_size=batch_size,
            skip=skip,
            dtype=dtype,
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            layerwise=layerwise,
            progress=False,
        )
    plans = list(_plans(checkpoint, widths, axes, method, value_method, statistics))
    with progress_reporter(progress, "cutting each layer alone") as on_progress:
        return analysis.sensitivity(
            checkpoint,
            plans,
            text,
            windows=windows,
            rows=rows,
            skip=skip + calibration_tokens,
            batch_size=batch_size,
            placement=placement,
            out=out,
            pictures=figure_paths,
            draw=draw,
            progress=on_progress,
        )


def _check_outputs(out: Path, *figure_paths: Path) -> None:
    """Raise StatetrimError, before calibration starts, if an output cannot be written, or if one
    exists and no interrupted run is there to resume."""
    for path in (out, *figure_paths):
        check_writable(path)
    if not partial_path(out).exists():
        check_absent(out, *figure_paths)


def _figure_outputs(
    out: str | Path | None, figures: str | Path | None
) -> tuple[dict[str, Path], Callable[[Sensitivity, Path], Any] | None]:
    """Final path of each figure by its path relative to the working directory, and the function
    that draws the figures there; empty and None if no figures are requested.

    Raises StatetrimError without `out` or without matplotlib.
    """
    if figures is None:
        return {}, None
    if out is None:
        raise StatetrimError("figures need a result; give out as well")
    from ..reporting.figure_files import SUFFIXES, save  # matplotlib may be absent
    from ..reporting.sensitivity_pictures import sheet

    names = [f"sensitivity.{suffix}" for suffix in SUFFIXES]
    figure_paths = {f"figures/{name}": Path(figures) / name for name in names}

    def draw(result: Sensitivity, directory: Path) -> None:
        save(sheet(result), directory / "figures" / "sensitivity")

    return figure_paths, draw


def _plans(
    model: Checkpoint,
    widths: Sequence[int | float | str],
    axes: Sequence[Axis] | None,
    method: str,
    value_method: str,
    statistics: Statistics | None,
) -> Iterator[Plan]:
    """A plan for each width and axis; without `axes`, values that cannot be pruned are skipped."""
    for width in widths:
        if axes is None or "key" in axes:
            yield select(model, method, width, statistics=statistics, progress=False)
        if axes is None or "value" in axes:
            try:
                yield select(
                    model,
                    keep_values=width,
                    value_method=value_method,
                    statistics=statistics,
                    progress=False,
                )
            except StatetrimError:
                if axes is not None:
                    raise
