"""The commands that give the same plan and the same bytes again."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..document import Block, Command, Missing, Text
from ..findings import Findings
from ..names import names, quoted
from ..records import brief, dicts, mapping

TITLE = "How to reproduce it"


def blocks(found: Findings) -> Iterator[Block]:
    plan = found.plan
    if plan is None:
        yield Missing("Without a plan, the steps cannot be shown.")
        return
    words = names(found)
    calibrated = mapping(plan.lineage.get("statistics"))
    methods = ",".join(m for m in (plan.method, plan.value_method) if m and m != "none")
    lines = _calibrations(words.model, calibrated, methods)
    choice = ""
    if plan.method != "none":
        choice += f" --keep {quoted(plan.requested)} --method {quoted(plan.method)}"
        choice += _options("--option", plan.options)
    if plan.requested_values is not None:
        choice += f" --keep-values {quoted(plan.requested_values)}"
        choice += f" --value-method {quoted(plan.value_method)}"
        choice += _options("--value-option", plan.value_options)
    statistics = " --statistics statistics.safetensors" if calibrated else ""
    lines.append(
        f"statetrim select {words.model}{choice} --seed {plan.seed}{statistics} -o plan.json"
    )
    lines.append(f"statetrim prune {words.model} plan.json -o SMALL")
    yield Text(
        f"The original checkpoint has the digest {brief(plan.lineage.get('source'))}. The same "
        f"model, text and options give the same plan, and the same plan the same bytes."
    )
    yield Command(lines)


def _calibrations(model: str, calibrated: Mapping[str, Any], methods: str) -> list[str]:
    """A command for each text, which also generates the same sequences again."""
    runs: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for data in dicts(calibrated.get("data")):
        if not _tokens(data):
            continue
        if "generated" not in data:
            runs.append((data, []))
        elif runs:
            runs[-1][1].append(data)
    lines = []
    for text, made in runs:
        total = _tokens(text) + sum(map(_tokens, made))
        # Half a token more, so that rounding the share down gives the same sequences.
        parts = {one["generated"]: f"{(_tokens(one) + 0.5) / total:.9f}" for one in made}
        shares = {"recall": "0", **parts}
        lines.append(
            f"statetrim calibrate {model} --text {quoted(text.get('text'))} --tokens {total} "
            f"--length {text['length']} --skip {quoted(text.get('skip'))} "
            + "".join(f"--{quoted(kind)} {share} " for kind, share in shares.items())
            + f"--batch-size {quoted(calibrated.get('batch_size'))} --for {quoted(methods)} "
            f"-o statistics.safetensors"
        )
    return lines


def _tokens(data: Mapping[str, Any]) -> int:
    """Tokens of a source; 0 where the lineage does not say."""
    count, length = data.get("count"), data.get("length")
    if type(count) is not int or type(length) is not int:
        return 0
    return count * length if min(count, length) > 0 and max(count, length) < 2**31 else 0


def _options(flag: str, options: Mapping[str, Any]) -> str:
    return "".join(
        f" {flag} {quoted(f'{name}={_option(value)}')}" for name, value in options.items()
    )


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
