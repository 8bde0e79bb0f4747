"""The plugins for engines give each layer its own widths; the engines are fakes here
(`just check-uneven` runs the real ones)."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
WIDTHS = {"0": [128, 128], "1": [64, 64]}


def load_plugin(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, PLUGINS / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake vLLM with the parts that the plugin uses."""

    class PluggableLayer:
        registered: dict[str, type] = {}  # noqa: RUF012

        @classmethod
        def register_oot(cls, layer: type, name: str) -> None:
            cls.registered[name] = layer

    class QwenGatedDeltaNetAttention:
        def __init__(self, config: Any, vllm_config: Any, prefix: str = "") -> None:
            self.widths = config.linear_key_head_dim, config.linear_value_head_dim

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            return Spec(4096)

    modules = {
        "custom_op": {
            "PluggableLayer": PluggableLayer,
            "op_registry_oot": PluggableLayer.registered,
        },
        "models.utils": {"extract_layer_index": lambda prefix: int(prefix.split(".")[2])},
        "layers.mamba.gdn.qwen_gdn_linear_attn": {
            "QwenGatedDeltaNetAttention": QwenGatedDeltaNetAttention
        },
    }
    for name, content in modules.items():
        full_name = f"vllm.model_executor.{name}"
        for end in range(1, full_name.count(".") + 2):
            package = ".".join(full_name.split(".")[:end])
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
        vars(sys.modules[full_name]).update(content)
    vars(sys.modules["vllm"])["envs"] = SimpleNamespace(VLLM_KV_CACHE_LAYOUT=None)
    return PluggableLayer


@dataclass(frozen=True)
class Spec:
    page_size_padded: int | None


def fake_vllm_config(widths: dict[str, list[int]] | None) -> Any:
    config = SimpleNamespace(statetrim_widths=widths)
    return SimpleNamespace(model_config=SimpleNamespace(hf_config=config))


def test_vllm_layers_have_their_own_widths(vllm: Any) -> None:
    module = load_plugin("vllm/statetrim_vllm.py")
    module.register()
    module.register()  # a second time changes nothing
    layer = vllm.registered["QwenGatedDeltaNetAttention"]
    config = SimpleNamespace(linear_key_head_dim=128, linear_value_head_dim=128)
    layers = [
        layer(config, fake_vllm_config(WIDTHS), f"model.layers.{i}.linear_attn") for i in (0, 1)
    ]
    assert [built.widths for built in layers] == [(128, 128), (64, 64)]
    assert layer(config, fake_vllm_config(None), "model.layers.1.linear_attn").widths == (128, 128)
    assert config.linear_key_head_dim == 128, "the model's own config stays"
    with pytest.raises(ValueError, match="does not list layer 2"):
        layer(config, fake_vllm_config(WIDTHS), "model.layers.2.linear_attn")


@pytest.mark.parametrize(("layout", "padded"), [("BLHNC", None), ("LBHNC", 4096), (None, 4096)])
def test_vllm_pads_only_where_pages_cannot_be_packed(
    vllm: Any, layout: str | None, padded: int | None
) -> None:
    sys.modules["vllm"].envs.VLLM_KV_CACHE_LAYOUT = layout
    load_plugin("vllm/statetrim_vllm.py").register()
    layer = vllm.registered["QwenGatedDeltaNetAttention"]
    config = SimpleNamespace(linear_key_head_dim=128, linear_value_head_dim=128)
    by_layer, uniform = fake_vllm_config(WIDTHS), fake_vllm_config(None)
    narrow = layer(config, by_layer, "model.layers.1.linear_attn")
    assert narrow.get_kv_cache_spec(by_layer) == Spec(padded)
    whole = layer(config, by_layer, "model.layers.0.linear_attn")
    assert whole.get_kv_cache_spec(by_layer) == Spec(4096)
    assert layer(config, uniform, "model.layers.1.linear_attn").get_kv_cache_spec(uniform) == Spec(
        4096
    )


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
    module = load_plugin("mlx/statetrim_mlx.py")
    args = module.ModelArgs.from_dict({"model_type": "qwen3_next", "statetrim_widths": WIDTHS})
    assert [layer.widths for layer in module.Model(args)] == [(128, 128), (64, 64), (128, 128)]
    assert stock.Qwen3NextDecoderLayer is Layer, "the stock class is back"
