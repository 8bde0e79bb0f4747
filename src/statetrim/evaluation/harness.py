"""The only module that imports lm-evaluation-harness: task -> scores per sample."""

import hashlib
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.scores import Score
from ..errors import StatetrimError, errors_of, is_out_of_memory
from ..storage.text import import_datasets_without_counter
from ..tasks import TASKS, check_names, group_of
from ..tasks.unit import PERPLEXITY, SHARE

ProgressCallback = Callable[[int, int], None]
"""Called with the number of requests answered so far, and of all requests."""


def stock_tasks_directory() -> Path:
    """The task definitions of the installed lm-eval. Raises StatetrimError without lm-eval."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise StatetrimError(
            "these tasks need lm-eval, which `--tasks text,mqar --text FILE` does not; install it "
            'with: pip install "statetrim[evaluate]"'
        )
    return Path(spec.submodule_search_locations[0]) / "tasks"


def wrap_hf_model(live: Any, tokenizer: Any, batch_size: int) -> Any:
    """lm-eval's HFLM around the loaded transformers model `live`.

    Prompts of generation are padded on the left, with an attention mask that not every recurrent
    model applies (transformers' Mamba-2 does not: the bias of its convolution enters the state). If
    a probe finds such a model, only prompts of the same length share a batch.
    """
    silence_libraries()
    from lm_eval.models.huggingface import HFLM

    padding_is_safe = batch_size == 1 or is_left_padding_safe(live)
    config_ids = getattr(live.generation_config, "eos_token_id", None)
    eos_token_ids = {*(config_ids if isinstance(config_ids, list) else [config_ids])}
    stop_token_ids = sorted((eos_token_ids | {tokenizer.eos_token_id}) - {None}) or None

    class QuietHFLM(HFLM):  # type: ignore[misc]
        """Without tqdm's progress bars: the caller shows one."""

        def _loglikelihood_tokens(
            self, requests: Any, disable_tqdm: bool = False, **kw: Any
        ) -> Any:
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **kw)

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            likelihoods = []
            for start in range(0, len(requests), batch_size):  # progress after every chunk
                chunk = requests[start : start + batch_size]
                likelihoods += super().loglikelihood_rolling(chunk, disable_tqdm=True)
            return likelihoods

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
            if padding_is_safe:
                return super().generate_until(requests, disable_tqdm=True)
            lengths = [len(self.tok_encode(request.args[0])) for request in requests]
            answers = [""] * len(requests)
            for length in sorted(set(lengths)):
                indices = [index for index, other in enumerate(lengths) if other == length]
                same_length = [requests[index] for index in indices]
                texts = super().generate_until(same_length, disable_tqdm=True)
                for index, text in zip(indices, texts, strict=True):
                    answers[index] = text
            return answers

        def _model_generate(self, context: Any, max_length: int, stop: Any, **kw: Any) -> Any:
            # Without an end-of-text id a row would continue after its end of text for as long as
            # the other rows of its batch do, and its answer would depend on them.
            kw.setdefault("eos_token_id", stop_token_ids)
            return super()._model_generate(context, max_length, stop, **kw)

    return QuietHFLM(pretrained=live, tokenizer=tokenizer, batch_size=batch_size)


def is_left_padding_safe(live: Any) -> bool:
    """Whether a probe padded on the left gives the same logits, in prefill and in decode."""
    vocabulary = int(live.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(1, 12, device=live.device) * 7919 % vocabulary).unsqueeze(0)
    padded = torch.cat([torch.zeros_like(ids[:, :5]), ids], 1)
    mask = torch.ones_like(padded)
    mask[:, :5] = 0
    unpadded_logits = _next_two_logits(live, ids, torch.ones_like(ids))
    tolerance = 1e-3 if unpadded_logits[0].dtype == torch.float32 else 0.05
    for expected, actual in zip(unpadded_logits, _next_two_logits(live, padded, mask), strict=True):
        difference = float((expected.float() - actual.float()).abs().max())
        if not difference <= tolerance * float(expected.float().std()):
            return False
    return True


def _next_two_logits(live: Any, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
    """Logits of two greedily generated tokens, each [batch, vocabulary]."""
    logits: tuple[Tensor, ...] = live.generate(
        input_ids=input_ids,
        attention_mask=attention_mask,
        max_new_tokens=2,
        min_new_tokens=2,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    ).logits
    return logits


def load_vllm_model(path: Path, batch_size: int | str, options: Mapping[str, Any]) -> Any:
    """lm-eval's vLLM model; refuses options for what is set here."""
    if importlib.util.find_spec("vllm") is None:
        raise StatetrimError(
            "--engine vllm needs vLLM in this environment, and it is not installed; "
            "install it, or leave out --engine to run in transformers"
        )
    stock_tasks_directory()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # send nothing over the network
    from lm_eval.models.vllm_causallms import VLLM

    fixed_options = {"pretrained": str(path), "batch_size": batch_size, "trust_remote_code": False}
    for name in options:
        if name in fixed_options:
            raise StatetrimError(f"{name!r} is not an option for vLLM here: evaluate sets it")
    return VLLM(**fixed_options, **options)


def load_tasks(
    names: Sequence[str], data: str | Path | None, tokenizer: Any, *, unsafe_code: bool = False
) -> dict[str, dict[str, Any]]:
    """Name of a task, group or tag, except our own -> lm-eval's tasks by name. Definitions below
    `data` come before lm-eval's own; a directory there with the name of a task of lm-eval holds its
    rows.

    Raises StatetrimError if lm-eval has no such task, cannot load it, or if it runs code that the
    model writes, unless `unsafe_code` allows that.
    """
    names, result = [name for name in names if name not in TASKS], dict[str, dict[str, Any]]()
    if not names:
        return result
    silence_libraries()
    from transformers import PreTrainedTokenizerFast

    if data is not None:
        data = Path(data)
        check_data_directory(data)
    with tempfile.TemporaryDirectory(prefix="statetrim-") as scratch:
        metadata = {}
        if tokenizer.is_fast:
            # Tasks that fill a length, such as RULER, load it with remote code, so it has none.
            plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
            plain.save_pretrained(scratch)
            metadata["tokenizer"] = scratch
        manager = _task_manager(names, data, metadata)
        for name in names:
            if not unsafe_code:
                _refuse_running_model_output(manager, name)
            hint = f"; its rows may be in {data / name}/test.jsonl" if data else ""
            with errors_of(f"lm-eval cannot load the task {name}", hint):
                result[name] = manager.load([_with_local_rows(manager, name, data)])["tasks"]
            check_names(result[name])
    return result


def _with_local_rows(manager: Any, name: str, data: Path | None) -> Any:
    """What to load for `name`: with the rows in the directory of that name, if there is one."""
    rows, entry = (data or Path()) / name, manager.task_index[name]
    if data is None or not rows.is_dir() or data in (entry.yaml_path or Path()).parents:
        return name
    if entry.kind.name == "PY_TASK":
        raise StatetrimError(f"lm-eval reads {name} from the hub only; leave {rows} out")
    kind, source = "parquet" if any(rows.rglob("*.parquet")) else "json", {"data_dir": str(rows)}
    task = {"task": name, "dataset_path": kind, "dataset_name": None, "dataset_kwargs": source}
    splits = import_datasets_without_counter().get_dataset_split_names(kind, **source)
    for key in ("training_split", "validation_split"):  # lm-eval reads them for no examples too
        if entry.cfg.get(key) not in splits:
            task[key] = None
    return {"group": "local", "task": [task]}


def check_data_directory(data: Path) -> None:
    """Refuse what is not a directory of files, since reading a pipe would never end, and rows that
    are null, on which pyarrow crashes if they come first."""
    if not data.is_dir():
        raise StatetrimError(f"--data is a directory, and {data} is none")
    for path in data.rglob("*"):
        if not (path.is_file() or path.is_dir()):
            raise StatetrimError(f"{path} is not a file; leave it out of --data")
        if path.suffix in (".json", ".jsonl") and path.is_file():
            with path.open("rb") as file:
                if any(line.lstrip().startswith(b"null") for line in file):
                    raise StatetrimError(f"{path} has a row that is null; remove the row")


def _task_manager(names: Sequence[str], data: Path | None, metadata: dict[str, Any]) -> Any:
    """lm-eval's index of definitions that has all `names`. To read all of them takes ten seconds,
    so folders of lm-eval with a NAME.yaml are tried first."""
    from lm_eval.tasks import TaskManager

    stock, own = stock_tasks_directory(), [data] if data else []
    folders = [path.parent for name in names for path in stock.rglob(f"{name}.yaml")]
    manager = TaskManager(include_path=[*folders, *own], include_defaults=False, metadata=metadata)
    if not {*names} <= {*manager.all_subtasks}:
        manager = TaskManager(include_path=own, metadata=metadata)
    for name in names:
        if name not in manager.task_index:
            raise StatetrimError(
                f"no task has the name {name!r}; there are text, mqar, agreement, and those that "
                f"`lm-eval ls tasks` lists"
            )
    return manager


def _refuse_running_model_output(manager: Any, spec: Any) -> None:
    """Refuse a name, or a member of a group, that runs what the model writes. Loading such a task
    runs code of the hub already, so this reads its definition."""
    entry = manager.task_index.get(spec) if isinstance(spec, str) else None
    config = spec if isinstance(spec, dict) else {}
    if entry is not None:
        config = entry.cfg or {"task": sorted(entry.tags)}
    if config.get("unsafe_code"):
        raise StatetrimError(
            f"{config['task']} runs code that the model writes; confirm that with "
            f"--confirm-run-unsafe-code, in a place where that is safe"
        )
    members = config.get("task")
    if not isinstance(members, list):
        members = [members, config.get("group")] if config is spec else []
    for member in members:
        _refuse_running_model_output(manager, member)


def rows_digest(task: Any, limit: int | None) -> str:
    """A digest of the rows that are evaluated, and of the definition."""
    definition = {**task.dump_config(), "metadata": None}
    content = [definition, *islice(task.eval_docs, limit)]
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()


def task_group(name: str, task: Any) -> str:
    """The group that a task's metrics, or some of them, belong to."""
    if any("perplexity" in metric for metric in task.higher_is_better()):
        return "perplexity"
    return group_of(name, SHARE)


def run_task(
    lm: Any,
    model: str,
    name: str,
    task: Any,
    limit: int | None,
    report: ProgressCallback,
    *,
    unsafe_code: bool = False,
) -> list[Score]:
    """Run one task through `lm_eval.evaluate`; a score per metric that samples have in pairs:
    perplexities, and shares from 0 to 1. OSError and out-of-memory errors pass unchanged."""
    import lm_eval

    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=0)  # every model gets equal examples
    # Not simple_evaluate, which also calls git and seeds generators that nothing here uses.
    try:
        lm.cache_hook = _RequestCounter(task, limit, report)
        results: Any = lm_eval.evaluate(
            lm=lm,
            task_dict={"tasks": {name: task}, "groups": {}, "group_map": {}},
            limit=limit,
            log_samples=True,
            bootstrap_iters=0,  # intervals come from paired samples later
            confirm_run_unsafe_code=unsafe_code,
        )
    except (OSError, StatetrimError):
        raise
    except Exception as error:  # rows and tokenizers of users can make lm-eval fail anywhere
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise StatetrimError(
            f"lm-eval stopped in {name}: {reason or type(error).__name__}; a row may lack a "
            f"field, or the tokenizer of {model} have tokens without an embedding"
        ) from error
    higher_is_better, values = results["higher_is_better"][name], dict[str, list[Any]]()
    for sample in sorted(results["samples"][name], key=lambda sample: int(sample["doc_id"])):
        for metric in sample["metrics"]:
            suffix = "" if sample["filter"] == "none" else f",{sample['filter']}"
            values.setdefault(metric + suffix, []).append(sample[metric])
    scores, chance = list[Score](), None  # where answers are generated
    if task.OUTPUT_TYPE == "multiple_choice":
        shares = [1 / len(task.doc_to_choice(row)) for row in islice(task.eval_docs, limit)]
        chance = sum(shares) / len(shares)
    for metric, samples in values.items():
        better = higher_is_better.get(metric.partition(",")[0], True)
        if "perplexity" in metric:
            scores.append(_perplexity_score(model, name, metric, samples))
        elif all(isinstance(x, int | float) and 0 <= x <= 1 for x in samples):
            shares = [float(x) for x in samples]
            scores.append(Score(model, name, metric, SHARE.name, better, shares, chance=chance))
    if not scores:
        raise StatetrimError(f"{name} has no metric that is a share or perplexity of each sample")
    return scores


class _RequestCounter:
    """Takes the place of lm-eval's cache hook, which is called once per answered request."""

    def __init__(self, task: Any, limit: int | None, report: ProgressCallback) -> None:
        samples = len(task.eval_docs)
        self.done, self.total, self.report = 0, min(samples, limit or samples), report
        if task.OUTPUT_TYPE == "multiple_choice":
            self.total *= len(task.doc_to_choice(task.eval_docs[0]))
        report(0, self.total)

    def add_partial(self, *_: Any) -> None:
        """Count one request; the total grows if samples have more choices than the first."""
        self.done += 1
        self.report(min(self.done, self.total), max(self.total, self.done))


def _perplexity_score(model: str, task: str, metric: str, samples: list[Any]) -> Score:
    """A score from log-likelihoods, or from pairs of log-likelihood and weight."""
    is_weighted = isinstance(samples[0], tuple | list)
    pairs = samples if is_weighted else [(value, 1) for value in samples]
    values, weights = [float(value) for value, _ in pairs], [float(weight) for _, weight in pairs]
    if not all(map(isfinite, values)):
        raise StatetrimError(f"{model} gives likelihoods that are not numbers on {task}")
    kept_weights = weights if is_weighted else None
    return Score(model, task, metric, PERPLEXITY.name, False, values, kept_weights)


def silence_libraries() -> None:
    """Switch off progress bars and warnings of lm-eval, datasets and transformers."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stock_tasks_directory()
    from transformers.utils import logging as transformers_logging

    import_datasets_without_counter().disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
