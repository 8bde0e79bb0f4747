"""Workflows, issue forms, container images and releases. Each YAML file is checked by a schema."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from helpers.modules import load_module

ROOT = Path(__file__).parents[1]
SCHEMAS = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/dependabot.yml": "vendor.dependabot",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "CITATION.cff": "vendor.citation-file-format",
}
RELEASE_TOOL = ROOT / "tools" / "check_release.py"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_yaml_follows_its_schema(pattern: str) -> None:
    files = sorted(ROOT.glob(pattern))
    assert files
    schema = ("--builtin-schema", SCHEMAS[pattern])
    done = run(sys.executable, "-m", "check_jsonschema", *schema, *files)
    assert done.returncode == 0, done.stdout + done.stderr


def commands() -> list[str]:
    """Every `run` command of every workflow, including those in a matrix."""
    lines = []
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            lines += [step["run"] for step in job["steps"] if "run" in step]
            for row in job.get("strategy", {}).get("matrix", {}).get("include", []):
                lines += [row[name] for name in ("run", "install", "test") if name in row]
    return lines


def test_workflows_name_files_extras_and_recipes_that_exist() -> None:
    text = "\n".join(commands())
    paths = re.findall(r"(?<![\w/.])(?:tests|tools|docker|studies)/[\w/.]+\w", text)
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists(), path
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:\"\.|\})\[([a-z,]+)\]", text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras


def test_pythons_of_the_workflow_are_those_of_the_project() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())
    tried = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [text.rpartition(" ")[2] for text in project["classifiers"] if " :: 3." in text]
    assert tried == named and project["requires-python"] == f">={tried[0]}"


def test_the_wheel_holds_the_package_and_its_types() -> None:
    from hatchling.builders.wheel import WheelBuilder

    kinds = load_module(RELEASE_TOOL).KINDS
    builder = WheelBuilder(str(ROOT))
    names = {file.distribution_path for file in builder.recurse_included_files()}
    names = {name for name in names if "__pycache__" not in name}
    assert "statetrim/py.typed" in names and "statetrim/__init__.pyi" in names
    assert all(name.startswith("statetrim/") and Path(name).suffix in kinds for name in names)


def test_a_release_needs_its_version_everywhere(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    tool = load_module(RELEASE_TOOL)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not list(tool.tree_faults(f"v{project['version']}"))
    faults = list(tool.tree_faults("v9.9.9", tmp_path))
    assert len(faults) == 3 and project["version"] in faults[0]
    (tmp_path / "CHANGELOG.md").write_text("## [9.9.9] - 2030-01-01\n")
    (tmp_path / "CITATION.cff").write_text("version: 9.9.9\n")
    assert len(list(tool.tree_faults("v9.9.9", tmp_path))) == 1


@pytest.mark.parametrize("hardware", ["cpu", "cuda"])
def test_images_copy_what_the_build_needs_and_run_without_root(hardware: str) -> None:
    text = (ROOT / "docker" / f"{hardware}.Dockerfile").read_text()
    copied = {n for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for n in line.split()}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src"}
    assert text.index("USER 1000") < text.index("ENTRYPOINT")
