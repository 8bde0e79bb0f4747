"""What to do after a verdict: at most three commands, the most promising first.

After a cut that does not ship come levers that lost less in measurements: widths by layer
(results/uneven.md), whole value heads where several share a key head, more of the state, and
recovery, with recall sequences where recall was lost (results/recall.md).
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ..artifacts.card.markdown import one_line
from ..artifacts.steps import TrimRecord
from ..errors import StatetrimError
from ..geometry import Geometry
from ..judging.verdict import Outcome, Verdict
from ..request import parse_request
from ..storage.checkpoint import Checkpoint
from .deployment import serve_commands
from .engine_names import PLUGIN_ENGINES, command_with_comment, engine_name, requested_engine
from .target import Target, resolve_target

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


def steps_after_trim(verdict: Verdict, original: Checkpoint, cut: Checkpoint) -> list[NextStep]:
    """`next_steps` with the options in the cut's untrusted record of `trim`; empty without one that
    names a text."""
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
    )
    return next_steps(verdict, original, cut, facts)


def next_steps(
    verdict: Verdict, original: Checkpoint, cut: Checkpoint, facts: RunFacts
) -> list[NextStep]:
    """At most three commands to run after a verdict on `cut`, which was cut from `original`."""
    if verdict.outcome is Outcome.SHIP:
        steps = _steps_to_serve(cut, facts)
    elif verdict.outcome is Outcome.UNKNOWN:
        steps = _steps_to_know(original, cut, facts)
    else:
        steps = _steps_to_lose_less(verdict, original, cut, facts)
    return list(islice(steps, MAX_STEPS))


def _steps_to_serve(cut: Checkpoint, facts: RunFacts) -> Iterator[NextStep]:
    engine = None if facts.engine is None else engine_name(facts.engine)
    commands = serve_commands(cut, cut.geometry, facts.cut, first_engine=engine)
    for name, command in islice(commands.items(), 1):
        yield NextStep(f"serve it in {name}", command_with_comment(name, command))
    name = shlex.quote(cut.path.resolve().name)
    yield NextStep(
        "push it, private and without records that name your files",
        f"statetrim push {shlex.quote(facts.cut)} YOUR-NAME/{name}",
    )


def _steps_to_know(original: Checkpoint, cut: Checkpoint, facts: RunFacts) -> Iterator[NextStep]:
    more = f"{facts.cut}-more.json"
    yield NextStep(
        "measure it on more samples", _evaluate(facts, facts.cut, 4 * facts.samples, more)
    )
    yield _larger_share(original.geometry, cut.geometry, facts)


def _steps_to_lose_less(
    verdict: Verdict, original: Checkpoint, cut: Checkpoint, facts: RunFacts
) -> Iterator[NextStep]:
    """Recovery first if it may be enough, else other cuts."""
    before, after = original.geometry, cut.geometry
    recovered = f"{facts.cut}-recovered"
    has_heads = before.num_v_heads != after.num_v_heads
    if verdict.outcome is Outcome.RECOVER:
        yield NextStep("train it, distilled from the original", _recover(verdict, facts, recovered))
        scores = f"{recovered}.json"
        reason = "then measure it"
        yield NextStep(reason, _evaluate(facts, recovered, facts.samples, scores))
    engine = engine_name(facts.engine or "vllm")
    is_layered = bool(after.widths) or facts.tried_by_layer or len(before.layers) < 2
    if engine in PLUGIN_ENGINES and not has_heads and not is_layered:
        reason = "widths by layer, which lost least in measurements; engines need a plugin"
        yield NextStep(reason, _trim(facts, str(_share(before, after)), "by-layer", "--by-layer"))
    if before.num_v_heads > before.num_k_heads and not has_heads:
        target = _fewer_heads(original, _share(before, after))
        if target is not None:
            reason = f"remove heads instead: {target.after.num_v_heads} of {before.num_v_heads}"
            yield NextStep(reason, _trim(facts, str(target), "heads"))
    yield _larger_share(before, after, facts)
    if verdict.outcome is Outcome.STOP:
        reason = "train it, which restores a part"
        yield NextStep(reason, _recover(verdict, facts, recovered))


def _larger_share(before: Geometry, after: Geometry, facts: RunFacts) -> NextStep:
    share = round((1 + _share(before, after)) / 2, 2)
    return NextStep(f"keep more: {share:.0%} of the state", _trim(facts, str(share), "larger"))


def _share(before: Geometry, after: Geometry) -> float:
    """The part of the state that is kept, rounded up to whole percent."""
    return min(0.99, -(-100 * after.state_numel // before.state_numel) / 100)


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
    words = ["statetrim", "evaluate", model, "--baseline", facts.model, "--tasks", "text,mqar"]
    words += ["--text", facts.text, "--skip", str(facts.skip), "--limit", str(samples)]
    return shlex.join([*words, "-o", out])
