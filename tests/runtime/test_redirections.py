"""A model runs exactly the files that were opened: no file of a checkpoint can redirect to other
files, code or hosts. Each redirection is refused with a one-line message, or has no effect: loaded
tensors equal the checked files, and the tokenizer is the checkpoint's own.

Python's audit hook sees files and sockets; safetensors and tokenizers open files without it, so
what they read is checked by what they return.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.quantized import FORMATS, quantize_checkpoint
from statetrim.runtime.loading import load_live, load_tokenizer
from statetrim.runtime.placement import Placement

QUANTISED = "quantised qwen3_5_text"
TYPES = ("delta_net", "qwen3_next", "qwen3_5", "mamba2", QUANTISED)
INDEX = "model.safetensors.index.json"

Redirect = Callable[[Path, Path], Any]
"""Changes a checkpoint; the second path is a directory outside with another one of its type."""

REDIRECTIONS: dict[str, Redirect] = {}


@dataclass
class Watched:
    """Files opened by Python code, and network events."""

    files: set[Path] = field(default_factory=set)
    network: list[str] = field(default_factory=list)


_NETWORK = ("socket.__new__", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname")
_active: list[Watched] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _active:
        return
    if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        _active[-1].files.add(Path(os.fsdecode(args[0])))
    elif event in _NETWORK:
        _active[-1].network.append(f"{event} {args!r}"[:200])


sys.addaudithook(_hook)  # cannot be removed, so it does nothing outside of `watched`


@contextmanager
def watched() -> Iterator[Watched]:
    record = Watched()
    _active.append(record)
    try:
        yield record
    finally:
        _active.pop()


def redirection(spoil: Redirect) -> Redirect:
    REDIRECTIONS[spoil.__name__.strip("_")] = spoil
    return spoil


def fields(changes: dict[str, dict[str, Any]]) -> Redirect:
    """Fields of JSON files; OUTSIDE stands for the directory outside."""

    def spoil(model: Path, outside: Path) -> None:
        for file, new in json.loads(json.dumps(changes).replace("OUTSIDE", str(outside))).items():
            if "text_config" in new:
                stored = json.loads((model / file).read_text()).get("text_config") or {}
                new["text_config"] = stored | new["text_config"]
            tiny.edit_json(model / file, **new)

    return spoil


def link_out(name: str) -> Redirect:
    def spoil(model: Path, outside: Path) -> None:
        target = outside / name
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            target.write_text("{}")
        (model / name).unlink(missing_ok=True)
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).symlink_to(target)

    return spoil


def evil_code(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"open({str(path.parent / 'executed')!r}, 'w')\nclass Evil: pass\n")


REDIRECTIONS |= {name: fields(changes) for name, changes in load_cases("redirections").items()}
for name in (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "chat_template.jinja", "additional_chat_templates/a.jinja",
    "config.json", INDEX, "vocab.json",
):  # fmt: skip
    REDIRECTIONS[f"link {name}"] = link_out(name)


def move_tensors(model: Path, file: str, count: int | None = None) -> None:
    """The index names `file` for the first `count` tensors, or for all."""
    index = json.loads((model / INDEX).read_text())
    names = list(index["weight_map"])[:count]
    tiny.edit_json(model / INDEX, weight_map=index["weight_map"] | dict.fromkeys(names, file))


OTHER = "other.safetensors"
REDIRECTIONS |= {
    "index above": lambda model, _: move_tensors(model, f"../outside/{OTHER}", 1),
    "index absolute": lambda model, outside: move_tensors(model, str(outside / OTHER)),
    "pickle": lambda model, _: torch.save({"a": torch.ones(1)}, model / "pytorch_model.bin"),
    "second weights": lambda model, out: shutil.copy(out / OTHER, model / "model.safetensors"),
}


@redirection
def _fast_tokenizer_files(model: Path, outside: Path) -> None:
    tiny.edit_json(model / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    shutil.copy(outside / "tokenizer.json", model / "tokenizer.4.0.0.json")


@redirection
def _adapter(model: Path, outside: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = tiny.stock_class("delta_net").from_pretrained(model)
    linear = next(n for n, m in base.named_modules() if isinstance(m, torch.nn.Linear))
    wrapped = get_peft_model(base, LoraConfig(target_modules=[linear], init_lora_weights=False))
    wrapped.save_pretrained(model)
    tiny.edit_json(model / "adapter_config.json", base_model_name_or_path=str(outside))


@redirection
def _adapter_link(model: Path, outside: Path) -> None:
    (outside / "a.json").write_text(json.dumps({"base_model_name_or_path": str(outside)}))
    (model / "adapter_config.json").symlink_to(outside / "a.json")


@redirection
def _auto_map(model: Path, outside: Path) -> None:
    evil_code(model / "modeling_evil.py")
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    tiny.edit_json(model / "config.json", auto_map={name: "modeling_evil.Evil" for name in names})


@redirection
def _tokenizer_code(model: Path, outside: Path) -> None:
    evil_code(model / "tokenization_evil.py")
    auto_map = {"AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"]}
    tiny.edit_json(model / "tokenizer_config.json", auto_map=auto_map, tokenizer_class="Evil")


@redirection
def _custom_generate(model: Path, outside: Path) -> None:
    evil_code(model / "custom_generate" / "generate.py")
    tiny.edit_json(model / "generation_config.json", custom_generate=str(outside))


@redirection
def _shard_link(model: Path, outside: Path) -> None:
    shard = sorted(model.glob("*.safetensors"))[0]
    shard.unlink()
    shard.symlink_to(outside / shard.name)


@redirection
def _fifos(model: Path, outside: Path) -> None:
    for name in ("generation_config.json", "special_tokens_map.json"):
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """A valid checkpoint of a type, and another one with different weights and tokens."""
    root = tmp_path_factory.mktemp("redirections")

    def get(model_type: str) -> tuple[Path, Path]:
        sound, other = root / model_type / "sound", root / model_type / "other"
        if not sound.exists():
            if model_type == QUANTISED:
                plain = tiny.build("qwen3_5_text", root / "plain")
                sound.parent.mkdir()
                quantize_checkpoint(plain, sound, FORMATS["int8 by row"])
            else:
                tiny.build(model_type, sound)
            shutil.copytree(sound, other)
            all_tensors = {}
            for path in sorted(other.glob("*.safetensors")):
                tensors = {name: value + 1 for name, value in load_file(path).items()}
                save_file(tensors, path, metadata={"format": "pt"})
                all_tensors |= tensors
            save_file(all_tensors, other / "other.safetensors", metadata={"format": "pt"})
            words = (other / "tokenizer.json").read_text()
            (other / "tokenizer.json").write_text(words.replace('"w1"', '"z1"'))
        return sound, other

    return get


@cache
def loaded(sound: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The tokenizer and the weights of a valid checkpoint."""
    return load_tokenizer(st.open(sound)), load_live(sound).module.state_dict()


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Simulate that `kernels` is installed; yields the list of kernels requested from it."""
    import transformers.modeling_utils as modeling

    requested: list[str] = []

    def load(name: str, *args: Any, **kwargs: Any) -> None:
        requested.append(name)

    monkeypatch.setattr(modeling, "is_kernels_available", lambda: True)
    monkeypatch.setattr(modeling, "lazy_import_flash_attention", load)
    yield requested


def each_with_two_types() -> Iterator[Any]:
    """Every redirection with two of the types in turn; with the others as slow tests."""
    for number, name in enumerate(REDIRECTIONS):
        for turn, model_type in enumerate(TYPES):
            in_ci = (turn - number) % len(TYPES) < 2
            yield pytest.param(name, model_type, marks=() if in_ci else pytest.mark.slow)


@pytest.mark.parametrize(("name", "model_type"), list(each_with_two_types()))
def test_no_file_of_a_checkpoint_redirects(
    name: str, model_type: str, pair: Any, tmp_path: Path, kernels: list[str]
) -> None:
    sound, other = pair(model_type)
    model, outside = tmp_path / "model", tmp_path / "outside"
    shutil.copytree(sound, model)
    shutil.copytree(other, outside)
    if name in ("weights next to it", "weights inside", "other index"):
        shutil.copy(other / "other.safetensors", model)
    REDIRECTIONS[name](model, outside)
    with watched() as seen:
        try:
            checkpoint = st.open(model)
            live = load_live(checkpoint)
            tokenizer = load_tokenizer(checkpoint)
        except st.StatetrimError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
        else:
            expected_tokenizer, expected = loaded(sound)
            assert tokenizer("w1 w2 z1")["input_ids"] == expected_tokenizer("w1 w2 z1")["input_ids"]
            assert tokenizer.get_vocab() == expected_tokenizer.get_vocab()
            actual = live.module.state_dict()
            assert actual.keys() == expected.keys()
            assert all(torch.equal(actual[key], expected[key]) for key in expected)
    assert not seen.network and not kernels
    inner = [path for path in seen.files if path.resolve().is_relative_to(outside.resolve())]
    assert not inner, inner
    assert not list(tmp_path.rglob("executed"))


def test_there_are_over_fifty_redirections_for_each_type() -> None:
    assert len(REDIRECTIONS) > 50 and len(TYPES) == 5


def test_a_streamed_head_that_the_config_ties_is_noticed(pair: Any, tmp_path: Path) -> None:
    """Its files hold a head of its own, in whose place the embeddings would be used."""
    model = shutil.copytree(pair("delta_net")[0], tmp_path / "model")
    load_live(model, Placement(layerwise=True))
    tiny.edit_json(model / "config.json", tie_word_embeddings=True)
    with pytest.raises(st.StatetrimError, match=r"other values of 'lm_head\.weight'"):
        load_live(model, Placement(layerwise=True))


def test_every_tensor_of_a_checkpoint_is_compared(checkpoint: Any) -> None:
    """Fused, renamed and prefixed ones as well; only the vision tower is not loaded."""
    from statetrim.runtime.loaded_weights import verify_weights

    for model_type in ("qwen3_next", "qwen3_5_moe", "olmo_hybrid", "nemotron_h", "delta_net"):
        live = load_live(checkpoint(model_type))
        tensors = live.checkpoint.tensors
        visual = [name for name in tensors if ".visual." in name]
        assert verify_weights(live.module, live.checkpoint) == len(tensors) - len(visual)


def test_a_live_tensor_that_is_not_the_files_is_noticed(checkpoint: Any) -> None:
    from statetrim.runtime.loaded_weights import verify_weights

    live = load_live(checkpoint("qwen3_next"))
    for name in ("model.layers.0.mlp.experts.gate_up_proj", "lm_head.weight"):
        tensor = live.module.state_dict()[name]
        kept = tensor.clone()
        tensor += 1
        with pytest.raises(st.StatetrimError, match="other values"):
            verify_weights(live.module, live.checkpoint)
        tensor.copy_(kept)
    verify_weights(live.module, live.checkpoint)
