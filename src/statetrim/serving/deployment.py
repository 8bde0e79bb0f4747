"""Which engines serve a cut, with which command, how many sequences fit, and what to do next."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice

from ..artifacts.card.markdown import one_line
from ..artifacts.scores import Scores
from ..artifacts.steps import TrimRecord
from ..cut.geometry import Geometry, Target
from ..cut.request import parse_request
from ..errors import StatetrimError
from ..judging.verdict import Outcome, Verdict, cut_models, judge_cut
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from .capacity.compare import Capacity, Gain, capacities, flag_gains
from .engines import engine_in_matrix, find_engine
from .engines.engine import Engine
from .matrix import Compatibility, ServedBy, compatibility_of_geometry
from .options import DEFAULT_CONTEXT, CacheOptions, ServingOptions
from .target import resolve_target

MODEL_PLACEHOLDER = "MODEL"  # in commands: the path of the original
CUT_PLACEHOLDER = "SMALL"  # in commands: the path that prune will write


@dataclass(frozen=True)
class Deployment:
    """Engines, commands and capacity for one shape of the state."""

    shape: str
    engines: list[Compatibility]
    commands: dict[str, str]  # engine -> command line, for engines that serve the shape
    served_by: ServedBy
    engine: str  # whose arithmetic `capacity` and `try_first` follow
    memory_gib: float | None  # of cache
    context: int | None  # tokens
    capacity: list[Capacity]  # original, then cut; each in the engine's dtypes of the state
    try_first: list[Gain]  # flags of the engine, without and with the cut


def deployment(model: Checkpoint, after: Geometry | None, serving: ServingOptions) -> Deployment:
    """How to serve the state `after` pruning, or the model's own state if it is None.

    Capacities are computed only with `serving.memory_gib`, for 4096 tokens unless it says
    otherwise. Raises StatetrimError if the size of the KV cache is not known.
    """
    model_type, shape = model.model_type, after or model.geometry
    counted = [] if serving.memory_gib is None else capacities(model, after, serving)
    return Deployment(
        shape=shape.shape.replace(" x ", "x"),
        engines=compatibility_of_geometry(model_type, shape),
        commands=serve_commands(model, shape, CUT_PLACEHOLDER if after else MODEL_PLACEHOLDER),
        served_by=ServedBy.of(model_type, shape),
        engine=serving.engine,
        memory_gib=serving.memory_gib,
        context=None if serving.memory_gib is None else serving.context or DEFAULT_CONTEXT,
        capacity=counted,
        try_first=flag_gains(model, after, serving) if counted else [],
    )


def ship_verdict(
    scores: Scores | None,
    name: str | None,
    model: Checkpoint,
    doubts: Sequence[str] = (),
    faults: Sequence[str] = (),
    earlier: Scores | None = None,
) -> Verdict:
    """The verdict on the checkpoint `model`, which the scores call `name`, as `judge_cut` gives it
    with the engines that serve the shape of `model` on some hardware, widths by
    layer with a plugin; None if nothing is known of the shape.

    `doubts` are reasons not to trust the scores; any of `faults`, which `verify` found, means do
    not ship; `earlier` are the scores by which its shape was chosen.
    """
    answers = ServedBy.of(model.model_type, model.geometry)
    served = [*answers.served, *answers.by_plugin]
    known = served if served or answers.refused else None
    return judge_cut(scores, name, served=known, doubts=doubts, faults=faults, earlier=earlier)


def ship_verdicts(scores: Scores, models: Sequence[ModelLike]) -> list[Verdict]:
    """A verdict per cut; `models` are those of the scores after the original, in their order."""
    by_name = dict(zip(scores.models[1:], models, strict=True))
    return [ship_verdict(scores, name, as_checkpoint(by_name[name])) for name in cut_models(scores)]


def engine_rows(lines: Sequence[Compatibility]) -> list[tuple[str, ...]]:
    """Rows of engine and versions, hardware, verdict, evidence and remark."""
    hardware_by_cells: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        remark = line.error or line.note
        if line.flag and not line.error:  # the command has it, because a cell may wrap it
            add_text = f"add {line.flag}"
            remark = "needs the flag in its command below" if line.serves else add_text
        cells = (f"{line.engine} {line.versions}", line.verdict, line.evidence, remark)
        hardware_by_cells.setdefault(cells, []).append(line.hardware)
    return [(name, ", ".join(on), *cells) for (name, *cells), on in hardware_by_cells.items()]


def serve_commands(
    model: Checkpoint,
    shape: Geometry,
    path: str,
    *,
    first: Engine | None = None,
    state_dtype: str | None = None,
) -> dict[str, str]:
    """Engine -> command line that serves the model at `path` with a state of this shape; that of
    `first` first."""
    flags_of: dict[str, str] = {}
    for line in compatibility_of_geometry(model.model_type, shape):
        if line.serves:  # a flag is harmless on other hardware
            flags_of[line.engine] = flags_of.get(line.engine) or line.flag
    no_mtp = lacks_mtp(model)
    commands = {}
    for name in sorted(flags_of, key=lambda name: first is None or name != first.name):
        engine = engine_in_matrix(name)
        flags = [flags_of[name]] if flags_of[name] else []
        if state_dtype and engine.state_dtype_flag:
            flags.append(f"{engine.state_dtype_flag} {state_dtype}")
        commands[name] = engine.serve_command(path, " ".join(flags), without_mtp=no_mtp)
    return commands


def command_comment(name: str) -> str:
    """A comment on a command: the engine and its hint."""
    hint = engine_in_matrix(name).hint
    return f"# {name}; {hint}" if hint else f"# {name}"


def requested_engine(record: TrimRecord | None) -> Engine | None:
    """The engine of `trim --for` in the untrusted record of a run; None if there is none."""
    option = (record.recipe or {}).get("for_") if record else None
    try:
        return find_engine(option) if isinstance(option, str) else None
    except StatetrimError:
        return None


def recorded_serving(record: TrimRecord | None) -> ServingOptions:
    """How `trim` counted sequences, by the untrusted record of a run: in the engine of `--for`, or
    else the default; in its default cache if the record has no valid one."""
    recipe, engine = (record.recipe or {}) if record else {}, requested_engine(record)
    names = [item.name for item in fields(CacheOptions)]
    try:
        cache = CacheOptions(**{name: recipe[name] for name in names if name in recipe})
        return cache.in_engine(engine)
    except (StatetrimError, TypeError):
        return CacheOptions().in_engine(engine)


def lacks_mtp(model: Checkpoint) -> bool:
    """Whether a Qwen model has no multi-token-prediction head, so that llama.cpp's converter needs
    --no-mtp, which it refuses for other types. False for those, and if no tensors were read."""
    if not model.model_type.startswith("qwen") or not model.tensors:
        return False
    return not any(name.startswith("mtp.") for name in model.tensors)


MAX_STEPS = 3
RECALL_SHARE = 0.25  # of recall sequences, in a recovery of lost recall


@dataclass(frozen=True)
class NextStep:
    """A command line, and in a few words why."""

    reason: str
    command: str


@dataclass(frozen=True)
class RunFacts:
    """What the commands are filled in with: of the run that made the cut, or of its evaluation."""

    model: str  # path of the original
    cut: str  # path
    text: str
    tokens: str  # of calibration
    skip: int = 0  # tokens of the text that the cut has seen
    samples: int = 128  # at most, that were measured
    engine: str | None = None
    tried_by_layer: bool = False
    flag_dtype: str | None = None  # of the state, by a flag of the engine


def steps_after_trim(verdict: Verdict, original: Checkpoint, cut: Checkpoint) -> list[NextStep]:
    """`next_steps` by the cut's untrusted record of `trim`; empty if it names no text."""
    trim = TrimRecord.of_model(cut)
    if trim.text is None:
        return []
    recipe = trim.recipe or {}
    limit = recipe.get("limit")
    facts = RunFacts(
        model=one_line(str(original.path)),
        cut=one_line(str(cut.path)),
        text=one_line(trim.text),
        tokens=one_line(str(recipe.get("tokens", trim.tokens))),
        skip=trim.measured_from,
        samples=limit if type(limit) is int else 128,
        engine=str(recipe["for_"]) if requested_engine(trim) else None,
        tried_by_layer=recipe.get("by_layer") is True,
        flag_dtype=trim.flag_dtype,
    )
    return next_steps(verdict, original, cut, facts)


def next_steps(
    verdict: Verdict, original: Checkpoint, cut: Checkpoint, facts: RunFacts
) -> list[NextStep]:
    """At most three commands to run after a verdict on `cut`, which was cut from `original`, the
    most promising first.

    After a cut that does not ship, or is no better than random ones, come levers that lost less in
    measurements: widths by layer (results/uneven.md), whole value heads where several share a key
    head, more of the state, and recovery, with recall sequences where recall was lost
    (results/recall.md).
    """
    kept = _numbers_kept(original.geometry, cut.geometry)
    if verdict.outcome is Outcome.SHIP:
        steps = _steps_to_serve(cut, facts)
    elif verdict.as_random and not verdict.worst:
        reason = f"cut further, until random cuts lose: {kept / 2:.0%} of the state"
        further = _trim(facts, _share_text(kept / 2, facts), "further")
        steps = iter([NextStep(reason, further)])
    elif verdict.outcome is Outcome.UNKNOWN and not verdict.as_random:
        more = _evaluate(facts, facts.cut, 4 * facts.samples, f"{facts.cut}-more.json")
        steps = iter([NextStep("measure it on more samples", more), _larger_share(kept, facts)])
    else:
        steps = _steps_to_lose_less(verdict, original, cut, facts)
    return list(islice(steps, MAX_STEPS))


def _steps_to_serve(cut: Checkpoint, facts: RunFacts) -> Iterator[NextStep]:
    engine = None if facts.engine is None else find_engine(facts.engine)
    commands = serve_commands(
        cut, cut.geometry, facts.cut, first=engine, state_dtype=facts.flag_dtype
    )
    for name, command in islice(commands.items(), 1):
        yield NextStep(f"serve it in {name}", f"{command}   {command_comment(name)}")
    name = shlex.quote(cut.path.resolve().name)
    yield NextStep(
        "push it, private and without records that name your files",
        f"hf upload YOUR-NAME/{name} {shlex.quote(facts.cut)} . --private --exclude 'statetrim/*'",
    )


def _steps_to_lose_less(
    verdict: Verdict, original: Checkpoint, cut: Checkpoint, facts: RunFacts
) -> Iterator[NextStep]:
    """Recovery first if it may be enough, else other cuts."""
    before, after = original.geometry, cut.geometry
    kept, recovered = _numbers_kept(before, after), f"{facts.cut}-recovered"
    has_heads = before.num_v_heads != after.num_v_heads
    if verdict.outcome is Outcome.RECOVER:
        yield NextStep("train it, distilled from the original", _recover(verdict, facts, recovered))
        scores = f"{recovered}.json"
        reason = "then measure it"
        yield NextStep(reason, _evaluate(facts, recovered, facts.samples, scores))
    is_layered = bool(after.widths) or facts.tried_by_layer or len(before.layers) < 2
    model_type = original.model_type
    has_plugin = model_type in find_engine(facts.engine).plugin_types
    if has_plugin and not is_layered:
        reason = "widths by layer, which lost least in measurements; engines need a plugin"
        yield NextStep(reason, _trim(facts, _share_text(kept, facts), "by-layer", "--by-layer"))
    # In Mamba-2, whose norm runs over heads, they were not measured.
    if before.group > 1 and not has_heads and not original.family.norm_over_heads:
        target = _fewer_heads(original, kept)
        if target is not None:
            reason = f"remove heads instead: {target.after.num_v_heads} of {before.num_v_heads}"
            yield NextStep(reason, _trim(facts, str(target), "heads"))
    yield _larger_share(kept, facts)
    if verdict.outcome is Outcome.STOP:
        reason = "train it, which restores a part"
        yield NextStep(reason, _recover(verdict, facts, recovered))


def _larger_share(kept: float, facts: RunFacts) -> NextStep:
    """Halfway from what is kept of the state's numbers to all of them."""
    more = round((1 + kept) / 2, 2)
    return NextStep(
        f"keep more: {more:.0%} of the state", _trim(facts, _share_text(more, facts), "larger")
    )


def _numbers_kept(before: Geometry, after: Geometry) -> float:
    """The part of the state's numbers that is kept, rounded up to whole percent."""
    return min(0.99, -(-100 * after.state_numel // before.state_numel) / 100)


def _share_text(kept: float, facts: RunFacts) -> str:
    """`--to` for a part of the state's numbers: a share of its bytes in the engine's default dtype,
    of which a flag for 16 bits leaves half."""
    return f"{kept / 2 if facts.flag_dtype else kept:.3g}"


def _fewer_heads(original: Checkpoint, share: float) -> Target | None:
    """The target with the most value heads within a share of them; None if none is possible."""
    for count in range(int(share * original.geometry.num_v_heads), 0, -1):
        try:
            return resolve_target(original, parse_request(f"{count}heads"))
        except StatetrimError:  # not a whole number of heads for every key head
            continue
    return None


def _trim(facts: RunFacts, to: str, suffix: str, *flags: str) -> str:
    words = ["statetrim", "trim", facts.model, "--to", to, *flags, "--text", facts.text]
    words += ["--tokens", facts.tokens, "--limit", str(facts.samples)]
    words += ["--for", facts.engine] if facts.engine and "heads" not in to else []
    return shlex.join([*words, "-o", f"{facts.cut}-{suffix}"])


def _recover(verdict: Verdict, facts: RunFacts, out: str) -> str:
    words = ["statetrim", "recover", facts.cut, "--teacher", facts.model, "--text", facts.text]
    words += ["--tokens", facts.tokens, "--length", "256", "--batch-size", "8"]
    if verdict.worst == "recall":
        words += ["--recall", str(RECALL_SHARE), "--whole", "--learning-rate", "1e-3"]
    return shlex.join([*words, "-o", out])


def _evaluate(facts: RunFacts, model: str, samples: int, out: str) -> str:
    command = evaluate_command(model, facts.model, facts.text, facts.skip, out)
    return f"{command} --limit {samples}"


def evaluate_command(model: str, baseline: str, text: str, skip: int, out: str) -> str:
    """The command that measures what a verdict requires, after `skip` tokens of the text."""
    words = ["statetrim", "evaluate", model, "--baseline", baseline, "--tasks", "text,mqar"]
    return shlex.join([*words, "--text", text, "--skip", str(skip), "-o", out])
