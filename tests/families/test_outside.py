"""A family and a method from outside the package: the two files that docs/ shows, used as told."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import statetrim as st
from statetrim.cli import app

DOCS = Path(__file__).parents[2] / "docs"


def code_of(page: str) -> str:
    """The first Python block of a documentation page."""
    found = re.search(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture
def strange_model(tmp_path: Path) -> Path:
    """The model type of docs/add-a-family.md: keys and queries interleaved channel by channel."""
    directory = tmp_path / "strange"
    directory.mkdir()
    (directory / "config.json").write_text(
        '{"model_type": "strange", "num_hidden_layers": 2, "num_heads": 3, "key_size": 8, '
        '"value_size": 4, "hidden_size": 10}'
    )
    tensors = {
        f"decoder.{layer}.mix.{name}": torch.randn(*shape)
        for layer in range(2)
        for name, shape in (
            ("qk.weight", (3 * 2 * 8, 10)),
            ("v.weight", (12, 10)),
            ("out.weight", (10, 12)),
        )
    }
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_the_documented_family_and_method_work_from_outside(
    strange_model: Path, tmp_path: Path
) -> None:
    family, method = tmp_path / "strange_family.py", tmp_path / "largest_query.py"
    family.write_text(code_of("add-a-family.md"))
    method.write_text(code_of("add-a-method.md"))
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    for arguments in (
        ["select", strange_model, "--family", family, "--method", method, "--keep", 5, "-o", plan],
        ["prune", strange_model, plan, "--family", family, "-o", out],
    ):
        result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output

    made = st.Plan.load(plan)
    assert made.method == "largest_query" and made.keep == 5
    from safetensors.torch import load_file

    before = load_file(strange_model / "model.safetensors")
    after = load_file(out / "model.safetensors")
    for layer in range(2):
        name = f"decoder.{layer}.mix.qk.weight"
        # rows are [head][channel][q, k]
        blocks = before[name].reshape(3, 8, 2, 10)
        expected = torch.stack([blocks[head][made.kept[layer][head]] for head in range(3)])
        assert torch.equal(after[name], expected.reshape(3 * 5 * 2, 10))
        largest = blocks[:, :, 0].square().sum(-1).topk(5).indices.sort(dim=1).values
        assert torch.equal(made.kept[layer], largest)


def test_without_the_family_the_model_type_is_unknown(strange_model: Path) -> None:
    with pytest.raises(st.StatetrimError, match="'strange' is not supported; these are: bamba"):
        st.open(strange_model)


def test_a_file_without_a_family_or_method_is_refused(strange_model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("")
    from statetrim.families import family_from_file
    from statetrim.methods import find_method

    with pytest.raises(st.StatetrimError, match="no FAMILY"):
        family_from_file(empty)
    with pytest.raises(st.StatetrimError, match="no function select"):
        find_method(str(empty))
