"""One file for each finished task of a model in `OUT.partial`, so that a killed run resumes."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..artifacts.scores import MAX_BYTES, Score, parse_score
from ..storage.json_file import read_json, write_json


class FinishedTasks:
    """The scores of `models` that are known, in `directory`; in memory only without one."""

    def __init__(self, directory: Path | None, models: Sequence[str]) -> None:
        self.directory, self.models = directory, models

    def load(self, model: str, task: str) -> list[Score] | None:
        if self.directory is None or not (self.directory / self.file_name(model, task)).exists():
            return None
        stored = read_json(self.directory / self.file_name(model, task), MAX_BYTES)
        return [parse_score(score) for score in stored["scores"]]

    def save(self, model: str, task: str, scores: list[Score]) -> None:
        if self.directory is not None:
            content = {"scores": [asdict(score) for score in scores]}
            write_json(self.directory / self.file_name(model, task), content, indent=None)

    def file_name(self, model: str, task: str) -> str:
        safe_names = [re.sub(r"[^A-Za-z0-9_-]+", "-", name) for name in self.models]
        index = self.models.index(model)
        duplicates = safe_names[:index].count(safe_names[index])
        return f"{safe_names[index]}{f'.{duplicates + 1}' if duplicates else ''}.{task}.json"
