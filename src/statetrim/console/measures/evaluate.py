"""What a person sees of `evaluate`."""

from rich.table import Table

from ...artifacts.scores import Scores
from ...artifacts.verdicts import recall_change, verdicts
from ...maths.formatting import score_text
from .. import terminal


def show_scores(scores: Scores, where: str, *, as_json: bool) -> None:
    found = verdicts(scores)
    if as_json:
        judged = [
            {
                "model": v.model,
                "task": v.task,
                "metric": v.metric,
                "loss": [v.loss.estimate, v.loss.low, v.loss.high],
                "unit": {"perplexity": "%", "share": "points", "nats": "nats"}[v.unit],
                "mcnemar_p": v.p,
                "verdict": v.sentence,
            }
            for v in found
        ]
        terminal.show_json(scores.as_json(samples=False) | {"verdicts": judged, "output": where})
        return
    table = Table(title="Scores", title_justify="left")
    table.add_column("task")
    table.add_column("metric")
    table.add_column("samples", justify="right")
    for model in scores.models:
        table.add_column(model, justify="right", overflow="fold")
    for task in scores.tasks:
        for metric in scores.metrics(task):
            cells = [scores.find(model, task, metric) for model in scores.models]
            name = task if metric == scores.metrics(task)[0] else ""
            count = str(len(cells[0].samples))
            table.add_row(
                name, metric, count, *[score_text(cell.value, cell.unit) for cell in cells]
            )
    terminal.out.print(table)
    for verdict in found:
        p = "" if verdict.p is None else f" (McNemar p = {verdict.p:.3g})"
        line = f"{verdict.task}, {verdict.metric}, {verdict.model}: {verdict.sentence}{p}"
        terminal.say(line)
    for model in scores.models[1:]:
        moved = recall_change(scores, model)
        if moved is not None:
            text = f"{moved.estimate:+.2f} points, between {moved.low:+.2f} and {moved.high:+.2f}"
            terminal.say(f"mean recall, {model}: {text}")
    terminal.say(f"intervals of 95%, paired by sample; written to {where}")
