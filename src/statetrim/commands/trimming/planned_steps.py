"""What a person sees before `trim` runs: estimated steps, and shapes."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from ...geometry import Geometry
from ...maths.formatting import bytes_text, duration_text
from ...pipelines.estimate import Step, weight_bytes
from ...pipelines.job import Job
from ...pipelines.shape_choice import predicts_shapes
from ...serving.engine_names import engine_name
from ...serving.engines import Shape
from ...serving.shapes import refusing_engines
from ...storage.checkpoint import Checkpoint
from .. import terminal
from ..state import shapes_table, state_size_json, state_size_text, tensor_parallel_text


def show_steps(
    job: Job, steps: Sequence[Step], output: str, *, dry_run: bool, as_json: bool
) -> None:
    """Print the steps and shapes of a run: to standard error before it runs, to standard output if
    they are the result of a dry run."""
    show = terminal.print_table if dry_run else terminal.print_table_to_stderr
    if as_json:
        terminal.print_json(
            {
                "output": output,
                "head_k_dim": [job.model.geometry.head_k_dim, job.after.head_k_dim],
                "head_v_dim": [job.model.geometry.head_v_dim, job.after.head_v_dim],
                **state_size_json(job.model.geometry, job.after),
                "state_share": state_share(job, job.largest_state),
                "candidates": [str(candidate.shape) for candidate in job.candidates],
                "streams_weights": job.streams_weights,
                "download_bytes": _download_bytes(job.model),
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    show(steps_table(f"trim {job.model.name} -> {output}", steps))
    if job.candidates:
        show(_candidates_table(job))
        for_vllm = job.options.for_ and engine_name(job.options.for_) == "vLLM"
        if for_vllm and all("vllm-cpu" in candidate.refused for candidate in job.candidates):
            terminal.note("these are for vLLM on GPUs; on CPUs it takes others: --for vllm-cpu")
    else:
        _show_shape(job)
    if job.streams_weights:
        terminal.note("weights are streamed from disk, because memory is short")
    show_download(job.model)


def show_download(model: Checkpoint) -> None:
    """Say how much will be downloaded, after a dry run that read only headers on the hub."""
    if nbytes := _download_bytes(model):
        size = bytes_text(nbytes)
        terminal.note(f"{size} of weights are not here yet; the run downloads them first")


def _download_bytes(model: Checkpoint) -> int:
    """Bytes of all weights if the model is not downloaded yet, else 0."""
    return 0 if model.downloaded else weight_bytes(model)


def state_share(job: Job, kept: Geometry) -> dict[str, float | str | None]:
    """The requested and the kept fraction of the state's bytes, and why less is kept, for JSON."""
    share = kept.state_numel / job.model.geometry.state_numel
    return {"asked": job.requested_share, "kept": share, "why": job.shortfall}


def steps_table(title: str, steps: Sequence[Step]) -> Table:
    """Estimated time, memory and disk of each step, and in the last row of the run: the sum of
    times and disk, the peak of memory."""
    table = terminal.new_table(title, "step", "what", "time", "memory", "disk", left=2)
    for step in steps:
        table.add_row(
            step.name,
            step.does,
            f"~{duration_text(step.seconds)}",
            f"~{bytes_text(step.memory)}" if step.memory else "",
            f"~{bytes_text(step.disk)}" if step.disk else "",
        )
    table.add_section()
    peak, disk = max(step.memory for step in steps), sum(step.disk for step in steps)
    seconds = sum(step.seconds for step in steps)
    table.add_row(
        "all", "", f"~{duration_text(seconds)}", f"~{bytes_text(peak)}", f"~{bytes_text(disk)}"
    )
    return table


def _show_shape(job: Job) -> None:
    """Print the state's size and shape after the cut, and warn if engines refuse that shape."""
    before, after = job.model.geometry, job.after
    terminal.note(state_size_text(before, after))
    if job.removes_heads:
        _show_heads(before, after)
        return
    if after.widths:
        terminal.warn(
            "warning: only statetrim, and vLLM with its plugin, load layers of different widths; "
            "stock libraries and engines refuse them"
        )
        return
    shape = Shape.from_geometry(after)
    if str(shape) != str(job.options.request):
        original = Shape.from_geometry(before)
        terminal.note(f"the state is cut to {shape} (keys x values) of {original}")
    refused = refusing_engines(str(job.model.config.get("model_type")), shape)
    if refused:
        share = after.state_numel / before.state_numel
        terminal.warn(
            f"warning: {shape} is refused by {', '.join(refused)}; --to {share:.2g} compares "
            "all shapes of at most this size, and --for ENGINE allows only those that it serves"
        )


def _show_heads(before: Geometry, after: Geometry) -> None:
    """Print to standard error how many heads stay, over how many devices they can be divided, and a
    warning if key heads are removed."""
    terminal.note(
        f"the state is cut to {after.describe_against(before)} of {before.describe_against(after)}"
    )
    terminal.note(tensor_parallel_text(before, after))
    if after.num_k_heads < before.num_k_heads:
        terminal.warn(
            "warning: removing heads lost more than removing channels of the same size in every "
            "measurement; cut channels instead (--to 0.5) if the config allows it"
        )


def _candidates_table(job: Job) -> Table:
    how = "all are measured"
    if predicts_shapes(job):
        how = "all are predicted, the best three measured"
    return shapes_table(
        f"Shapes to compare: {how}, one is kept",
        job.model.geometry,
        {str(candidate.shape): target.after for candidate, target in job.candidates.items()},
        {str(candidate.shape): candidate.refused for candidate in job.candidates},
    )
