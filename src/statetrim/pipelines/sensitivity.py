"""Sensitivity by layer: calibrate, choose channels at a few widths, prune each layer alone."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from ..analysis import sensitivity as analysis
from ..analysis.options import SensitivityOptions
from ..artifacts.plan import Plan
from ..artifacts.sensitivity import Sensitivity
from ..artifacts.statistics import Statistics
from ..calibration.calibrate import calibrate
from ..calibration.options import CalibrateOptions
from ..common_options import parse_names
from ..cut.request import parse_request, side_text
from ..cut.shape import CHANNEL_AXES
from ..errors import StatetrimError
from ..maths.units import parse_token_count
from ..methods import find_method, methods_by_axis
from ..options import derive, takes_options
from ..progress import ignore_progress
from ..runtime.corpus import as_corpus
from ..selection.options import SelectOptions
from ..selection.select import select_for_target
from ..serving.target import resolve_target
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import check_absent, partial_path
from ..storage.space import check_writable


@takes_options(SensitivityOptions)
def sensitivity(model: ModelLike, options: SensitivityOptions) -> Sensitivity:
    """Cut the keys of each layer alone to each of `widths`, then its values where the config can
    hold them, and measure text and recall.

    Channels are chosen on `calibration_tokens` of `text` after `skip`; the `windows` that are
    measured follow them. The cost is one such evaluation for each layer, width and axis, and a few
    more. With `out` the run can be interrupted and resumed.
    """
    if options.out is not None:  # before calibration starts
        check_writable(options.out)
        if not partial_path(Path(options.out)).exists():  # no interrupted run to resume
            check_absent(Path(options.out))
    checkpoint, skip = require_prunable(as_checkpoint(model)), parse_token_count(options.skip)
    corpus = as_corpus(options.text, checkpoint)
    by_axis = methods_by_axis(parse_names(options.method))
    methods = [by_axis[axis] for axis in CHANNEL_AXES]
    calibrated_methods = [name for name in methods if find_method(name).needs]
    statistics = None
    if calibrated_methods:
        calibration = derive(
            CalibrateOptions,
            options,
            text=corpus,
            tokens=options.calibration_tokens,
            methods=calibrated_methods,
            out=None,
            progress=False,
        )
        statistics = calibrate.run(checkpoint, calibration)
    plans = list(layer_plans(checkpoint, options, statistics))
    skip += options.calibration_tokens
    return analysis.sensitivity(checkpoint, plans, replace(options, text=corpus, skip=skip))


def layer_plans(
    model: Checkpoint, options: SensitivityOptions, statistics: Statistics | None
) -> Iterator[Plan]:
    """A plan for each width and axis; values that cannot be pruned are skipped."""
    for width, axis in product(options.widths, CHANNEL_AXES):
        side = side_text(width)
        request = parse_request(f"{side}x100%" if axis == "key" else f"100%x{side}")
        selection = derive(SelectOptions, options, statistics=statistics)
        try:
            target = resolve_target(model, request)
            yield select_for_target(model, target, selection, ignore_progress)
        except StatetrimError:
            if axis == "key":
                raise
