"""Tasks of lm-eval by name: rows and definitions of the user, chance, few-shot examples, and code
that must not run. A model that answers by a rule takes the place of a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers.tiny import Load
from statetrim.artifacts.scores import Score
from statetrim.evaluation import harness
from statetrim.runtime.loading import load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of lm-eval and datasets about one another


@pytest.fixture
def tokenizer(checkpoint: Load) -> Any:
    return load_tokenizer(st.open(checkpoint("delta_net")))


def rule_model(prompts: list[str]) -> Any:
    """Says "#### 5" to every prompt, which it adds to `prompts`, and prefers the first choice."""
    from lm_eval.api.model import LM

    class Rule(LM):  # type: ignore[misc]
        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            prompts.extend(request.args[0] for request in requests)
            return ["so it is 4, no: #### 5" for _ in requests]

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            return [(-float(request.idx), False) for request in requests]

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            return [-2.0 * len(request.args[0].split()) for request in requests]

    return Rule()


def run(name: str, tasks: dict[str, Any], prompts: list[str] | None = None) -> dict[str, Score]:
    lm = rule_model([] if prompts is None else prompts)
    scores = harness.run_task(lm, "rule", name, tasks[name], None, lambda done, total: None)
    return {score.metric: score for score in scores}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


DEFINITION = """
task: NAME
dataset_path: json
dataset_kwargs: {data_files: {test: "ROWS"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{right}}"
"""


def write_definition(data: Path, name: str, more: str = "") -> None:
    rows = [
        {"question": "w1", "choices": ["w2", "w3"], "right": 0},
        {"question": "w4", "choices": ["w5", "w6", "w7", "w8"], "right": 2},
    ]
    write_rows(data / f"{name}.jsonl", rows)
    text = DEFINITION.replace("NAME", name).replace("ROWS", str(data / f"{name}.jsonl"))
    (data / f"{name}.yaml").write_text(text + more)


def test_gsm8k_on_rows_of_the_user(tmp_path: Path, tokenizer: Any) -> None:
    """lm-eval's definition: five examples, the same for every model, and two ways to find the
    number. The rule's 5 is right in one row of three."""
    examples = [{"question": f"q{n}", "answer": f"it is #### {n}"} for n in range(20)]
    questions = [{"question": f"t{n}", "answer": f"#### {n}"} for n in (3, 5, 8)]
    write_rows(tmp_path / "gsm8k" / "train.jsonl", examples)
    write_rows(tmp_path / "gsm8k" / "test.jsonl", questions)
    tasks = harness.load_tasks(["gsm8k"], tmp_path, tokenizer)["gsm8k"]
    first, second = list[str](), list[str]()
    scores = run("gsm8k", tasks, first)
    assert run("gsm8k", tasks, second) == scores and second == first
    assert all(prompt.count("Answer: it is #### ") == 5 for prompt in first)
    assert {*scores} == {"exact_match,strict-match", "exact_match,flexible-extract"}
    for score in scores.values():
        assert score.samples == [0.0, 1.0, 0.0] and score.unit == "share"
        assert score.higher_is_better and score.chance is None
    digest = harness.rows_digest(tasks["gsm8k"], None)
    write_rows(tmp_path / "gsm8k" / "test.jsonl", questions[1:])
    changed = harness.load_tasks(["gsm8k"], tmp_path, tokenizer)["gsm8k"]["gsm8k"]
    assert harness.rows_digest(changed, None) != digest


def test_a_group_is_its_tasks_and_chance_is_that_of_their_choices(
    tmp_path: Path, tokenizer: Any
) -> None:
    for name in ("one", "two"):
        write_definition(tmp_path, name)
    (tmp_path / "both.yaml").write_text("group: both\ntask: [one, two]\n")
    indexed = harness._task_manager(["one", "two"], tmp_path, {})
    tasks = indexed.load(["both"])["tasks"]
    assert [*tasks] == ["one", "two"]
    scores = run("two", tasks)
    assert scores["acc"].samples == [1.0, 0.0]
    assert {score.chance for score in scores.values()} == {(1 / 2 + 1 / 4) / 2}


def test_perplexities_have_the_weights_of_their_documents(tmp_path: Path, tokenizer: Any) -> None:
    write_rows(tmp_path / "wikitext" / "test.jsonl", [{"page": "a b c"}, {"page": "d"}])
    tasks = harness.load_tasks(["wikitext"], tmp_path, tokenizer)["wikitext"]
    scores = run("wikitext", tasks)
    assert {*scores} == {"word_perplexity", "byte_perplexity"}
    words = scores["word_perplexity"]
    assert words.samples == [-6.0, -2.0] and words.weights == [3.0, 1.0]
    assert not words.higher_is_better
    assert harness.task_group("wikitext", tasks["wikitext"]) == "perplexity"


CODE = """
from pathlib import Path
(Path(__file__).parent / "ran").touch()

def make(doc, results):
    return {"acc": 1}
"""


@pytest.mark.parametrize("requested", ["unsafe", "group", "tag", "nested"])
def test_code_that_a_model_writes_does_not_run_unasked(
    requested: str, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the Python next to the definition imported, which could load more from the hub."""
    more = "unsafe_code: true\ntag: [tag]\nprocess_results: !function code.make\n"
    write_definition(tmp_path, "unsafe", more)
    (tmp_path / "group.yaml").write_text("group: group\ntask: [{task: unsafe}]\n")
    (tmp_path / "nested.yaml").write_text("group: nested\ntask: [{group: x, task: [unsafe]}]\n")
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.setattr(harness, "_task_manager", only_below)
    with pytest.raises(st.StatetrimError, match="unsafe runs code that the model writes"):
        harness.load_tasks([requested], tmp_path, tokenizer)
    assert not (tmp_path / "ran").exists()
    assert [*harness.load_tasks([requested], tmp_path, tokenizer, unsafe_code=True)[requested]] == [
        "unsafe"
    ]
    assert (tmp_path / "ran").exists()


def only_below(names: Any, data: Path, metadata: Any) -> Any:
    """An index without lm-eval's own definitions, which take long to read."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(data), include_defaults=False, metadata=metadata)


MAKE_ROWS = """
from pathlib import Path
from datasets import Dataset

def rows(tokenizer, **metadata):
    config = (Path(tokenizer) / "tokenizer_config.json").read_text()
    files = " ".join(path.name for path in Path(tokenizer).iterdir())
    return {"test": Dataset.from_list([{"question": config, "choices": ["w1"], "right": 0,
                                        "files": files}])}
"""


def test_a_task_that_loads_the_tokenizer_finds_one_without_code(
    tmp_path: Path, tokenizer: Any
) -> None:
    """RULER opens it with trust_remote_code."""
    tokenizer.init_kwargs["auto_map"] = {"AutoTokenizer": ["someone/repo--code.Tokenizer", None]}
    write_definition(tmp_path, "filled", "custom_dataset: !function make.rows\n")
    (tmp_path / "make.py").write_text(MAKE_ROWS)
    task = harness.load_tasks(["filled"], tmp_path, tokenizer)["filled"]["filled"]
    (row,) = task.eval_docs
    assert "tokenizer.json" in row["files"] and ".py" not in row["files"]
    assert "auto_map" not in row["question"]


def test_a_definition_that_lm_eval_cannot_load_is_one_sentence(
    tmp_path: Path, tokenizer: Any
) -> None:
    write_definition(tmp_path, "broken")
    (tmp_path / "broken.jsonl").unlink()
    with pytest.raises(st.StatetrimError, match="lm-eval cannot load the task broken: "):
        harness.load_tasks(["broken"], tmp_path, tokenizer)
    write_rows(tmp_path / "rows.jsonl", [None, {"question": "w1"}])
    with pytest.raises(st.StatetrimError, match="has a row that is null"):
        harness.load_tasks(["broken"], tmp_path, tokenizer)
    with pytest.raises(st.StatetrimError, match="--data is a directory"):
        harness.load_tasks(["broken"], tmp_path / "absent", tokenizer)
