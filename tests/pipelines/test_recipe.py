"""Recipes: which entries are allowed, and that the recipe of a result reproduces it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import statetrim as st
from helpers.cases import load_cases
from helpers.refusal import assert_refused, check_refusal, fingerprint, run
from helpers.tiny import Load
from statetrim.pipelines.job import recipe_record
from statetrim.pipelines.recipe import KEYS

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


def comparable_files(path: Path) -> dict[str, Any]:
    """The bytes of every file that contains no times or paths."""
    excluded = ("report", "README.md", "trim.json", "prune.json", "refit.json")
    return {
        name: content
        for name, (_, _, content, _) in fingerprint(path).items()
        if not any(excluded_name in name for excluded_name in excluded)
    }


def test_the_recipe_of_a_result_makes_the_same_bytes_again(
    checkpoint: Load, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"to": "6x50%", "tokens": "1k", "length": 64, "limit": 2}
    first = st.trim(
        checkpoint("qwen3_5_text"), text=text, out=tmp_path / "first", tasks=["text"],
        control=False, batch_size=2, seed=3, **options,
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, err, printed = run(["recipe", "first"])
    assert not code and not err
    Path("recipe.yaml").write_text(printed)
    recipe_options = yaml.safe_load(printed)
    assert list(recipe_options) == [name for name in KEYS if name != "output"]
    assert recipe_options["text"] == str(text)
    assert (recipe_options["seed"], recipe_options["control"]) == (3, False)
    code, err, _ = run(["trim", "--recipe", "recipe.yaml", "-o", "again"])
    assert not code, err
    assert comparable_files(tmp_path / "again") == comparable_files(first.path)
    assert st.open("again").digest == first.digest
    code, err, _ = run(["trim", "--recipe", "recipe.yaml", "-o", "again", "--seed", "4"])
    assert code == 2 and "exists already" in err, "another seed is another job"


def test_a_result_keeps_whole_paths(
    checkpoint: Load, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result may be read from another working directory."""
    monkeypatch.chdir(text.parent)
    model = st.open(checkpoint("qwen3_5_text"))
    stored = recipe_record(model, st.TrimOptions(to="6x100%", text=text.name))
    assert stored["recipe"]["text"] == str(text) and Path(stored["model"]).is_absolute()
    of_hub = recipe_record(model, st.TrimOptions(to="6x100%", text="a/hub-name"))
    assert of_hub["recipe"]["text"] == "a/hub-name"


def test_options_given_with_a_recipe_count(checkpoint: Load, text: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    file = tmp_path / "here" / "recipe.yaml"
    (tmp_path / "here" / "words.jsonl").write_bytes(text.read_bytes())
    file.write_text(
        f"model: {checkpoint('qwen3_next')}\ntext: words.jsonl\noutput: small\nto: 6x100%\n"
        "tokens: 2k\nlimit: 2\nrecall: 0\ntasks: [text]\nbenchmark: true\ndata: null\n"
    )
    code, err, printed = run(["trim", "--recipe", str(file), "--dry-run", "--json"])
    assert not code, err
    plan = json.loads(printed)
    assert plan["output"] == str(tmp_path / "here" / "small") and plan["head_k_dim"] == [12, 6]
    steps = {step["name"]: step["does"] for step in plan["steps"]}
    assert steps["calibrate"] == str(tmp_path / "here" / "words.jsonl")
    assert steps["evaluate"].startswith("text on") and "benchmark" in steps
    more = ["--to", "3x100%", "--tokens", "1k", "--text", str(text), "-o", "other"]
    code, err, printed = run(["trim", "--recipe", str(file), "--dry-run", "--json", *more])
    plan = json.loads(printed)
    assert plan["output"] == "other" and plan["head_k_dim"] == [12, 3]
    assert (plan["steps"][0]["does"], plan["steps"][0]["tokens"]) == (str(text), 1024)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *load_cases("recipes"),
        ("[" * 16_000, "is not valid YAML"),
        ("# " + "long " * 20_000, "is larger than 16 KiB"),
        (f"tokens: {'9' * 5000}", "is not valid YAML|not a number of tokens"),
    ],
)
def test_what_is_no_recipe_is_refused_in_a_sentence(
    content: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(content)
    command = ["trim", "M", "--recipe", str(file), "-o", str(tmp_path / "o")]
    assert_refused(command, message, tmp_path)


def test_a_value_of_the_wrong_kind_names_its_option(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("limit: many")
    code, err, _ = run(["trim", "M", "--recipe", str(file), "-o", str(tmp_path / "o")])
    assert code == 2 and "--limit" in err
    check_refusal(*run(["trim", "--recipe", str(tmp_path / "none"), "-o", "o"]), "cannot be read")
    check_refusal(*run(["recipe", str(tmp_path)]), "is not a result of trim")
