"""Scores compared with stock lm-eval and a plain computation; kills; batch sizes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.forker import Forker
from helpers.refusal import assert_refused, run
from helpers.tiny import Load
from helpers.untrusted import edit_json, put
from statetrim import portable
from statetrim.artifacts.steps import read_seen_texts
from statetrim.evaluation import harness
from statetrim.progress import Progress
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load, load_live, load_tokenizer
from statetrim.runtime.logits import LogitReader, compare_logits

MODEL = Path(__file__).parents[2] / "models" / "tiny-delta_net"
pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, about one another's habits


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference model with half of its key channels."""
    model, out = st.open(MODEL), tmp_path_factory.mktemp("cut") / "small"
    st.prune(model, st.select(model, "l1", "50%x100%"), out)
    return out


ROLLING = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
"""
CHOICES = """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: [w1, w2, w3]
doc_to_target: 1
"""
ANSWERS = """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "w5"
generation_kwargs: {until: ["w9"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match}]
"""
DEFINITIONS = {"pages": ROLLING, "choices": CHOICES, "answers": ANSWERS}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks of the user on one file."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"text": " ".join(f"w{1 + (i + 3 * j) % 63}" for j in range(12))} for i in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f'dataset_path: json\ndataset_kwargs: {{data_files: {{test: "{folder}/rows.jsonl"}}}}'
    for name, definition in DEFINITIONS.items():
        text = f"task: {name}\n{source}\ntest_split: test\n{definition}"
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_equals_stock_lm_eval(checkpoint: Load, data: Path) -> None:
    """With its own model class, on the same model, rows and definitions."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    model = checkpoint("delta_net")
    scores = st.evaluate([], baseline=model, tasks=[*DEFINITIONS], data=data, batch_size=3)
    portable.register()  # fla's own classes need a GPU; all else is stock
    manager = TaskManager(include_path=str(data), include_defaults=False)
    stock: Any = lm_eval.simple_evaluate(
        model="hf", model_args=f"pretrained={model}", tasks=[*DEFINITIONS], task_manager=manager,
        device="cpu", batch_size=4, bootstrap_iters=0,
    )  # fmt: skip
    assert len(scores.scores) == 5
    for score in scores.scores:
        expected = stock["results"][score.task][f"{score.metric},none"]
        assert score.value == pytest.approx(expected, rel=1e-6), score


FAMILIES = ("delta_net", "gated_deltanet", "kda", "qwen3_next", "qwen3_5_text", "mamba2", "bamba")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_neither_padding_nor_neighbours_change_an_answer(model_type: str, checkpoint: Load) -> None:
    from lm_eval.api.instance import Instance

    harness.silence_libraries()
    model = st.open(checkpoint(model_type))
    live, tokenizer = load(model), load_tokenizer(model)
    texts = [" ".join(f"w{1 + (7 * i + j * j) % 63}" for j in range(3 + 5 * i)) for i in range(8)]
    until = {"until": ["<stop>"], "max_gen_toks": 6, "do_sample": False}
    likelihoods, answers = [], []
    for size in (1, 8):
        lm = harness.wrap_hf_model(live, tokenizer, size)
        choices, open_ended = (
            [Instance(kind, {}, (text, more), i) for i, text in enumerate(texts)]
            for kind, more in (("loglikelihood", " w5 w9"), ("generate_until", until))
        )
        likelihoods.append([value for value, _ in lm.loglikelihood(choices)])
        answers.append(lm.generate_until(open_ended))
    assert len(set(answers[0])) > 4, "the answers depend on the texts"
    assert likelihoods[1] == pytest.approx(likelihoods[0], abs=1e-5) and answers[1] == answers[0]


def test_a_killed_run_resumes_and_ends_in_the_same_scores(
    cut: st.Checkpoint, checkpoint: Load, data: Path, tmp_path: Path, warm_forker: Forker
) -> None:
    tasks, model = "choices,answers,mqar", checkpoint("delta_net")
    command = ["evaluate", str(cut.path), "--baseline", str(model), "--tasks", tasks]
    command += ["--data", str(data), "--limit", "4"]
    out = tmp_path / "killed.json"
    first = out.with_name("killed.json.partial") / "0.choices.0.json"
    killed = warm_forker.run([*command, "-o", str(out)], kill_when=first)
    assert killed["code"] == -9, "it ended before its first task"
    assert not out.exists()
    options: dict[str, Any] = {"tasks": tasks.split(","), "data": data, "limit": 4}
    with pytest.raises(st.StatetrimError, match=r"another job .its 'limit' differs"):
        st.evaluate([cut], baseline=model, out=out, **options | {"limit": 3})
    with pytest.raises(st.StatetrimError, match=r"another job .its 'baseline' differs"):
        st.evaluate([model], baseline=cut, out=out, **options)
    modified = first.stat().st_mtime_ns
    updates: list[tuple[str, int]] = []

    def progress(progress: Progress) -> None:
        updates.append((progress.label, progress.done))
        assert not first.exists() or first.stat().st_mtime_ns == modified

    resumed = st.evaluate([cut], baseline=model, out=out, progress=progress, **options)
    assert ("delta_net: choices", 0) not in updates, "what was done is not done again"
    assert ("cut: choices", 0) in updates
    whole = st.evaluate([cut], baseline=model, **options)
    assert resumed.scores == whole.scores == st.Scores.load(out).scores
    with pytest.raises(st.StatetrimError, match="exists already"):
        st.evaluate([cut], baseline=model, out=out, **options)


def test_a_verdict_that_is_not_ship_is_exit_code_1_and_a_sentence(
    small: Path, tmp_path: Path
) -> None:
    command = ["evaluate", str(small), "--baseline", str(MODEL), "--tasks", "mqar", "--limit", "4"]
    gate = ["--fail-if", "not ship", "--json", "-o", str(tmp_path / "a.json")]
    code, err, out = run([*command, *gate])
    assert code == 1
    assert err.splitlines()[-1].startswith("statetrim: small: ")
    (verdict,) = json.loads(out)["verdicts"]
    assert verdict["loss"][1] > 2 and verdict["unit"] == "points"


def test_a_verdict_in_a_terminal_ends_with_commands(
    small: Path, text: Path, tmp_path: Path
) -> None:
    command = ["evaluate", str(small), "--baseline", str(MODEL), "--limit", "2"]
    command += ["--tasks", "text,mqar", "--no-control"]
    _, _, out = run([*command, "--text", str(text), "-o", str(tmp_path / "scores.json")])
    steps = out.partition("next:")[2]
    assert f"statetrim trim {MODEL}" in " ".join(steps.split())


@pytest.mark.parametrize(("options", "expected_text"), load_cases("evaluate"))
def test_mistakes_are_one_sentence(
    options: list[str], expected_text: str, checkpoint: Load, data: Path, tmp_path: Path
) -> None:
    options = [str(data) if option == "DATA" else option for option in options]
    models = [str(checkpoint("delta_net")), "--baseline", str(checkpoint("qwen3_5_text"))]
    command = ["evaluate", *models, *options, "-o", str(tmp_path / "scores.json")]
    assert_refused(command, expected_text, tmp_path)


def test_agreement_equals_whole_logits(checkpoint: Load) -> None:
    before, after = (load_live(checkpoint(name)) for name in ("delta_net", "qwen3_5_text"))
    ids = torch.randint(64, (3, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        old, new = (LogitReader(live).forward(ids) for live in (before, after))
    comparison = compare_logits(old, new, ids, chunk=7)
    with torch.no_grad():
        p, q = (
            live.module(input_ids=ids).logits.double().log_softmax(-1) for live in (before, after)
        )
    assert torch.allclose(comparison.kl, (p.exp() * (p - q)).sum(-1).mean(-1), rtol=1e-5)
    assert torch.equal(comparison.same_top_token, (p.argmax(-1) == q.argmax(-1)).double().mean(-1))
    predicted = q[:, :-1].gather(-1, ids[:, 1:, None]).sum((-1, -2))
    assert torch.allclose(comparison.log_likelihood, predicted, rtol=1e-5)
    itself = compare_logits(old, old, ids, chunk=16)
    assert float(itself.kl.max()) == 0.0 and float(itself.same_top_token.min()) == 1.0


def test_own_text_is_read_by_both_whole_or_streamed(pair: Any, tmp_path: Path) -> None:
    """Perplexity as transformers' own loss gives it, on the tokens after `skip`."""
    text = tmp_path / "text.jsonl"
    tiny.write_text(text, 2**13)
    model, small = pair("qwen3_5_text")
    options: dict[str, Any] = {"tasks": ["text"], "text": text, "skip": 100, "limit": 3}
    whole = st.evaluate([small], baseline=model, **options)
    streamed = st.evaluate([small], baseline=model, layerwise=True, **options)
    ids = Corpus(text, model).read(tokens=3 * 512, skip=100).ids.long()
    for name, checkpoint_ in zip(whole.models, (model, small), strict=True):
        live = load(checkpoint_)
        with torch.no_grad():
            expected = math.exp(float(live(input_ids=ids, labels=ids).loss))
        for scores in (whole, streamed):
            value = scores.find(name, "text", "perplexity").value
            assert value == pytest.approx(expected, rel=1e-5)
    assert whole.find(whole.models[1], "text", "kl").value > 1e-6
    with pytest.raises(st.StatetrimError, match="go together"):
        st.evaluate([small], baseline=model, tasks=["text"])


def test_logits_scaled_after_the_head_are_noticed(checkpoint: Load) -> None:
    live = load_live(checkpoint("granitemoehybrid"))
    stock = live.module
    stock.config.logits_scaling = stock.logits_scaling = 4.0
    reader, ids = LogitReader(live), torch.arange(40).reshape(2, 20)
    places = torch.tensor([3, 11])
    with torch.no_grad():
        whole = stock(input_ids=ids).logits[:, places]
        assert not reader.applies_head and torch.allclose(reader.forward(ids)(places), whole)


def test_a_rounded_state_is_compared_with_the_same_model_in_float32(
    checkpoint: Load, tmp_path: Path
) -> None:
    model, text = checkpoint("gated_deltanet"), tiny.write_text(tmp_path / "text.jsonl", 3000)
    options: dict[str, Any] = {"baseline": model, "tasks": ["text", "mqar"], "limit": 2}
    scores = st.evaluate(model, text=text, state_dtype="int8", progress=False, **options)
    assert scores.models == ["gated_deltanet", "gated_deltanet-int8"]
    assert scores.lineage["state"] == {"dtype": "int8", "piece": 64, "stochastic": False, "seed": 0}
    kl = {score.model: score.samples for score in scores.scores if score.metric == "kl"}
    assert max(kl["gated_deltanet"]) == 0.0 and min(kl["gated_deltanet-int8"]) > 1e-9
    opened = st.open(model)
    of_one_object = options | {"baseline": opened, "progress": False}
    same = st.evaluate(opened, text=text, state_dtype="int8", **of_one_object)
    assert same.scores == scores.scores
    with pytest.raises(st.StatetrimError, match="is given twice"):
        st.evaluate(model, text=text, state_dtype="float32", progress=False, **options)


def test_a_text_that_the_cut_has_seen_is_named_with_what_to_skip(
    checkpoint: Load,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = checkpoint("delta_net")
    text = tiny.write_text(tmp_path / "text.jsonl", 2**13)
    sizes: dict[str, Any] = {"tokens": 2048, "length": 64, "recall": 0.25, "progress": False}
    statistics = st.calibrate(path, text, methods=["drrqr"], skip=100, **sizes)
    plan = st.select(path, "drrqr", "6x100%", statistics=statistics)
    cut = st.prune(path, plan, tmp_path / "cut")
    other = st.prune(path, st.select(path, "l1", "6x100%"), tmp_path / "other")
    unseen = tiny.write_text(tmp_path / "unseen.jsonl", 2**13, seed=1)

    def warned(text: Path, skip: int = 0) -> list[str]:
        caplog.clear()
        st.evaluate(
            [cut, other], baseline=path, tasks=["text"], text=text, limit=2, skip=skip,
            progress=False,
        )  # fmt: skip
        return [message for message in caplog.messages if "warning" in message]

    end = 100 + 1536  # three quarters of the tokens are text
    assert warned(text) == [
        f"warning: cut was calibrated or trained on the start of {text}; to measure on new text, "
        f"use --skip {end}"
    ]
    assert warned(text, end - 1) and not warned(text, end)
    assert not warned(unseen)
    monkeypatch.chdir(tmp_path)
    assert warned(Path("text.jsonl")), "another name of the same file"


@pytest.fixture
def cut(checkpoint: Load, tmp_path: Path) -> st.Checkpoint:
    path = checkpoint("delta_net")
    return st.prune(path, st.select(path, "l1", "6x100%"), tmp_path / "cut")


def test_records_of_seen_text_are_not_trusted(cut: st.Checkpoint) -> None:
    def write_seen(statistics: Any) -> None:
        place = ["lineage", "statistics"]
        edit_json(cut.path / "statetrim" / "plan.json", lambda plan: put(plan, place, statistics))

    good = {"text": "t", "skip": 0, "length": 64, "count": 1, "digest": "0"}
    wrong: list[Any] = [{"skip": -1}, {"length": 2**70, "count": "many"}, {"length": 1}]
    entries = ["text", *(good | change for change in (*wrong, {"text": None}))]
    for statistics in (*entries, *({"data": [entry]} for entry in entries)):
        write_seen(statistics)
        assert not read_seen_texts(cut), statistics
    write_seen({"data": [good]})
    assert len(read_seen_texts(cut)) == 1


@pytest.mark.parametrize("layerwise", [False, True])
def test_progress_goes_from_nothing_to_everything_once(
    layerwise: bool, cut: st.Checkpoint, checkpoint: Load, tmp_path: Path
) -> None:
    text = tiny.write_text(tmp_path / "text.jsonl", 2**12)
    updates: list[Progress] = []
    scores = st.evaluate(
        [cut], baseline=checkpoint("delta_net"), tasks=["text", "mqar"], text=text, limit=8,
        batch_size=2, layerwise=layerwise, progress=updates.append,
    )  # fmt: skip
    for label in (f"{name}: {task}" for name in ("delta_net", "cut") for task in ("text", "mqar")):
        shares = [
            update.done / update.total
            for update in updates
            if update.label == label and update.unit != "tasks"
        ]
        assert shares == sorted(shares) and (shares[0], shares[-1]) == (0, 1), label
        assert len({*shares}) > 4, "it moves"
    totals = {update.total for update in updates if update.label == "cut: mqar"}
    settings = {score.metric for score in scores.scores if "pairs_" in score.metric}
    assert max(totals) == 8 * len(settings), "sequences, not batches"
