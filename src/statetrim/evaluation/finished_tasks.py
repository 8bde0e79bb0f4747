"""One file in `OUT.partial` per model and finished task, from which a killed run resumes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..artifacts.record import as_fields, parse_record
from ..artifacts.scores import MAX_BYTES, Score
from ..storage.json_file import read_json, write_json
from ..tasks import Task


class FinishedTasks:
    """Files in `directory` with the scores of `models`; without a directory nothing is saved.

    `original_scores` are those that the first model, the original, has already, by task.
    """

    def __init__(
        self,
        directory: Path | None,
        models: Sequence[str],
        original_scores: Mapping[str, Sequence[Score]],
    ) -> None:
        self.directory, self.models = directory, models
        self.original_scores = original_scores

    def load(self, model: str, task: str) -> list[Score] | None:
        """The scores that are known or saved; None if the task is not finished."""
        if model == self.models[0] and task in self.original_scores:
            return [replace(score, model=model) for score in self.original_scores[task]]
        if self.directory is None or not (self.directory / self.file_name(model, task)).exists():
            return None
        path = self.directory / self.file_name(model, task)
        return parse_record(read_json(path, MAX_BYTES).get("scores"), list[Score], path)

    def save(self, model: str, task: str, scores: list[Score]) -> None:
        """Write the scores of a finished task; without a directory, do nothing."""
        if self.directory is not None:
            content = {"scores": [as_fields(score) for score in scores]}
            write_json(self.directory / self.file_name(model, task), content, indent=None)

    def file_names(self, tasks: Sequence[Task]) -> list[str]:
        """The files of all models and `tasks`."""
        return [self.file_name(model, task.name) for model in self.models for task in tasks]

    def file_name(self, model: str, task: str) -> str:
        """`MODEL.TASK.json`; models whose names differ only in special characters are numbered."""
        safe_names = [re.sub(r"[^A-Za-z0-9_-]+", "-", name) for name in self.models]
        index = self.models.index(model)
        duplicates = safe_names[:index].count(safe_names[index])
        return f"{safe_names[index]}{f'.{duplicates + 1}' if duplicates else ''}.{task}.json"
