"""The plugins for engines give each layer its own widths. MLX-LM is a fake here and vLLM is left
out; `just check-parts` runs vLLM's layers on any CPU."""

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from helpers.modules import load_module
from statetrim.cut.geometry import Geometry
from statetrim.serving.engines import find_engine
from statetrim.serving.engines.engine import PLUGIN_TYPES
from statetrim.serving.matrix import compatibility_of_geometry

PLUGINS = Path(__file__).parents[2] / "plugins"
WIDTHS = {"0": [128, 128], "1": [64, 64]}


def test_other_model_types_have_no_plugin() -> None:
    source = (PLUGINS / "vllm" / "statetrim_vllm" / "models.py").read_text()
    names = re.findall(r"^class (Qwen\w+?)For", source, re.MULTILINE)
    types = {re.sub(r"(?<=[0-9])(?=[A-Z])", "_", name).lower() for name in names}
    assert {name.removesuffix("_text") for name in PLUGIN_TYPES} == types
    assert "qwen3_5_moe" in find_engine("vllm").plugin_types
    assert not find_engine("sglang").plugin_types
    uneven = Geometry((0, 1), 8, 8, 128, 128, widths=((128, 128), (64, 64)))
    for model_type in ("mamba2", "nemotron_h", "olmo_hybrid"):
        lines = compatibility_of_geometry(model_type, uneven)
        assert lines and all(line.verdict == "refused" for line in lines)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The arithmetic of the vLLM plugin, which needs no vLLM."""
    monkeypatch.syspath_prepend(PLUGINS / "vllm")
    return importlib.import_module("statetrim_vllm.pages")


def page_size(heads: Any) -> int:
    """Bytes of vLLM's Gated DeltaNet state: three inputs in bfloat16, the recurrence in float32."""
    channels = 2 * heads.num_k_heads * heads.head_k_dim + heads.num_v_heads * heads.head_v_dim
    return 6 * channels + 4 * heads.num_v_heads * heads.head_k_dim * heads.head_v_dim


@pytest.mark.parametrize(
    ("heads", "narrow", "parts", "part"),
    [
        ((16, 32), (64, 64), 4, (4, 8)),  # Qwen3-Next
        ((16, 48), (64, 64), 4, (4, 12)),  # Qwen3.5-27B
        ((8, 24), (64, 64), 4, (2, 6)),  # one of two ranks
        ((16, 32), (64, 128), 2, (8, 16)),
        ((2, 4), (64, 64), 4, (1, 1)),  # two parts share a key head
        ((2, 6), (64, 64), 6, (1, 1)),  # four parts would need half a value head
        ((2, 4), (32, 32), 4, (1, 1)),  # sixteen would be needed
        ((16, 32), (128, 128), 1, (16, 32)),
    ],
)
def test_a_wide_layer_is_divided_into_parts_of_one_narrow_page(
    pages: Any, heads: tuple[int, int], narrow: tuple[int, int], parts: int, part: tuple[int, int]
) -> None:
    whole, thin = pages.Heads(*heads, 128, 128), pages.Heads(*heads, *narrow)
    assert pages.number_of_parts(whole, [whole, thin], page_size) == parts
    assert whole.part(parts) == pages.Heads(*part, 128, 128)
    assert pages.number_of_parts(thin, [whole, thin], page_size) == 1


def test_heads_are_divided_only_where_value_heads_stay_with_their_key_head(pages: Any) -> None:
    heads = pages.Heads(2, 6, 64, 64)
    assert [count for count in range(1, 8) if heads.part(count)] == [1, 2, 6]


def test_widths_are_found_where_a_config_has_them(pages: Any) -> None:
    plain, listed = SimpleNamespace(), SimpleNamespace(statetrim_widths=WIDTHS)
    for outer, text in ((listed, listed), (plain, listed), (listed, plain)):
        widths = pages.layer_widths(SimpleNamespace(hf_config=outer, hf_text_config=text))
        assert widths == {"0": (128, 128), "1": (64, 64)}
    assert pages.layer_widths(SimpleNamespace(hf_config=plain, hf_text_config=plain)) is None


def test_mlx_layers_have_their_own_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Args:
        linear_key_head_dim: int = 128
        linear_value_head_dim: int = 128

        @classmethod
        def from_dict(cls, config: dict[str, Any]) -> "Args":
            return cls()

    class Layer:
        def __init__(self, args: Args, layer_idx: int) -> None:
            self.widths = args.linear_key_head_dim, args.linear_value_head_dim

    stock: Any = ModuleType("qwen3_next")
    stock.ModelArgs, stock.Qwen3NextDecoderLayer = Args, Layer
    stock.Model = lambda args: [stock.Qwen3NextDecoderLayer(args, i) for i in range(3)]
    models: Any = ModuleType("mlx_lm.models")
    models.qwen3_next, models.qwen3_5 = stock, ModuleType("qwen3_5")
    monkeypatch.setitem(sys.modules, "mlx_lm", ModuleType("mlx_lm"))
    monkeypatch.setitem(sys.modules, "mlx_lm.models", models)
    module = load_module(PLUGINS / "mlx" / "statetrim_mlx.py")
    args = module.ModelArgs.from_dict({"model_type": "qwen3_next", "statetrim_widths": WIDTHS})
    assert [layer.widths for layer in module.Model(args)] == [(128, 128), (64, 64), (128, 128)]
    assert stock.Qwen3NextDecoderLayer is Layer, "the stock class is back"
