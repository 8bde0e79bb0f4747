"""PCA instead of channels: folded before the convolution, or applied after SiLU.

Tables `table:adv_vs_non_adv` and `tab:shared-non-shared-comp-full`. "Proper" keeps the directions
of the largest variance, "adversarial" those of the smallest.

    python studies/paper/pca.py MODEL --text train.jsonl --test wiki.valid.raw [--samples 3]

`before` rotates the projections of queries and keys and mixes the filters by (T*T) W, which gives a
checkpoint, as in the paper. `after` multiplies the output of SiLU by T, before the L2 norm: no
checkpoint can hold that, so the kernel's arguments are projected while the model runs. Both bases
are uncentred: of the convolution's inputs (`before`), of queries and keys (`after`). MODEL is a
DeltaNet or Gated DeltaNet of fla; train the shared-convolution ones with
`studies/train_tiny.py delta_net OUT --set shared_filters='"head"'`.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

import statetrim as st
from samples import ModelScorer, Row, Rows, parsed, parser, statistics
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live

PLACES = ("before", "after")
WHICH = ("proper", "adversarial")
SELECTED = ("grad", "drrqr", "product")
KEEP = (0.5, 0.25)

Bases = dict[int, Tensor]  # layer -> T [heads, kept, channels], rows orthonormal


def cases(options: argparse.Namespace) -> list[Row]:
    original = {"model": options.name, "keep": 1.0, "sample": 0}
    rows: list[Row] = [{**original, "method": "none"}, {**original, "method": "bend"}]
    names = [f"pca {which} {place}" for place in PLACES for which in WHICH]
    for sample in range(options.samples):
        for keep in options.keep:
            for method in (*names, *SELECTED):
                row = {"model": options.name, "method": method, "keep": keep, "sample": sample}
                rows.append(row)
    return rows


def directions(grams: dict[int, Tensor], keep: float, which: str) -> Bases:
    """The eigenvectors of each head's Gram [heads, channels, channels] with the largest, or the
    smallest, eigenvalues."""
    bases = {}
    for layer, gram in grams.items():
        vectors = torch.linalg.eigh(gram).eigenvectors.mT  # rows, smallest eigenvalue first
        count = round(keep * gram.shape[-1])
        bases[layer] = vectors[:, -count:] if which == "proper" else vectors[:, :count]
    return bases


@torch.inference_mode()
def projection_grams(
    model: st.Checkpoint, options: argparse.Namespace, sample: int
) -> dict[int, Tensor]:
    """Gram matrices of the convolutions' inputs, queries plus keys, by layer."""
    live, heads = load_live(model), model.geometry.num_k_heads
    sums: dict[int, Tensor] = {}

    def add(layer: int, _module: Any, _args: Any, output: Tensor) -> None:
        x = output.double().view(-1, heads, output.shape[-1] // heads).transpose(0, 1)
        sums[layer] = sums.get(layer, 0) + x.mT @ x

    for layer, mixer in live.mixers.items():
        for name in ("q_proj", "k_proj"):
            mixer.get_submodule(name).register_forward_hook(functools.partial(add, layer))
    length = options.calibration_length
    text = Corpus(options.text, model).read(
        tokens=options.tokens,
        length=length,
        skip=sample * options.tokens,
    )
    for ids in torch.split(text.ids.long(), 8):
        live.hidden_states(ids)
    return {layer: gram.cpu() for layer, gram in sums.items()}


def folded(model: st.Checkpoint, bases: Bases, out: Path) -> st.Checkpoint:
    """A checkpoint whose queries and keys are rotated before a convolution with mixed filters.

    Config and shapes come from a cut, whose query and key tensors are then replaced.
    """
    kept = next(iter(bases.values())).shape[1]
    small = st.prune(model, st.select(model, "l1", f"{kept}x100%", progress=False), out)
    for shard in out.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in tensors:
            parts = name.split(".")
            if ".attn." not in name or not parts[-2].startswith(("q_", "k_")):
                continue
            basis = bases[int(parts[parts.index("layers") + 1])].to(tensors[name].dtype)
            weight = model.tensor(name)
            weight = weight.view(len(basis), -1, *weight.shape[1:])
            mixing = basis if parts[-2].endswith("proj") else basis.square()
            new = torch.einsum("hkc,hc...->hk...", mixing, weight).flatten(0, 1)
            assert new.shape == tensors[name].shape, name
            tensors[name] = new.contiguous()
        save_file(tensors, shard, metadata={"format": "pt"})
    return st.open(small.path)


@contextmanager
def projected(live: LiveModel, bases: Bases) -> Iterator[None]:
    """A context in which every kernel call gets T q and T k instead of q and k."""
    current = [-1]
    handles = [
        mixer.register_forward_pre_hook(lambda *_, layer=layer: current.__setitem__(0, layer))
        for layer, mixer in live.mixers.items()
    ]
    modules = {sys.modules[type(mixer).__module__] for mixer in live.mixers.values()}
    names = live.checkpoint.family.kernels
    kernels = [(module, name) for module in modules for name in names if hasattr(module, name)]
    stock = [getattr(module, name) for module, name in kernels]

    def project_inputs(kernel: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(kernel)

        @functools.wraps(kernel)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            for name in ("q", "k"):
                x = bound.arguments[name]  # [batch, time, heads, channels]
                basis = bases[current[0]].to(x)
                bound.arguments[name] = torch.einsum("bthc,hkc->bthk", x, basis)
            return kernel(*bound.args, **bound.kwargs)

        return call

    for (module, name), kernel in zip(kernels, stock, strict=True):
        setattr(module, name, project_inputs(kernel))
    try:
        yield
    finally:
        for (module, name), kernel in zip(kernels, stock, strict=True):
            setattr(module, name, kernel)
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def bends(model: st.Checkpoint, ids: Tensor) -> list[float]:
    """Relative residual of SiLU's best linear fit, for queries and keys of every layer. If it is
    near 0, the layer commutes with T up to the norm."""
    live, fractions = load_live(model), list[float]()

    def record_bend(module: Any, args: Any, _output: Any) -> None:
        width = module.kernel_size[0]
        inputs = functional.pad(args[0].mT, (width - 1, 0))
        x = functional.conv1d(inputs, module.weight, module.bias, groups=inputs.shape[1])
        y = functional.silu(x)
        residual = y - x * ((x * y).sum() / x.square().sum())
        fractions.append(round(float(residual.norm() / y.norm()), 4))

    for mixer in live.mixers.values():
        for name in ("q_conv1d", "k_conv1d"):
            mixer.get_submodule(name).register_forward_hook(record_bend)
    live.hidden_states(ids)
    return fractions


class Study:
    """Measures the rows of one model; the sums of each calibration sample are cached."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.model = options, st.open(options.model)
        self.scorer = ModelScorer(self.model, options)

    @functools.cache  # noqa: B019  (one study a process)
    def sums(self, sample: int) -> st.Statistics:
        return statistics(self.model, self.options, sample, list(SELECTED))

    @functools.cache  # noqa: B019
    def grams(self, sample: int, place: str) -> dict[int, Tensor]:
        if place == "before":
            return projection_grams(self.model, self.options, sample)
        summed = {}
        for layer, sums in self.sums(sample).layers.items():
            summed[layer] = sums["query_gram"] + sums["key_gram"]
        return summed

    def measure(self, row: Row) -> Row:
        if row["method"] == "none":
            return self.scorer.score_checkpoint(self.model)
        if row["method"] == "bend":
            return {"bend": bends(self.model, self.scorer.windows[:8])}
        kind, *words = row["method"].split()
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "small"
            if kind == "pca":
                which, place = words
                bases = directions(self.grams(row["sample"], place), row["keep"], which)
                if place == "before":
                    return self.scorer.score_checkpoint(folded(self.model, bases, out))
                live = load_live(self.model)
                with projected(live, bases):
                    return self.scorer.score(live)
            sums = self.sums(row["sample"])
            plan = st.select(
                self.model, kind, f"{row['keep']:.1%}x100%", statistics=sums, progress=False
            )
            return self.scorer.score_checkpoint(st.prune(self.model, plan, out))


def main() -> None:
    arguments = parser(__doc__, "pca.jsonl", "of the calibration text")
    arguments.add_argument("--keep", nargs="+", type=float, default=list(KEEP))
    options = parsed(arguments)
    Rows(options.results).measure_missing(cases(options), Study(options).measure)


if __name__ == "__main__":
    main()
