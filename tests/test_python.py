"""Python as a user types it: names, types, models by their path."""

import subprocess
import sys
from pathlib import Path

import statetrim as st

SOURCE = Path(__file__).parents[1] / "src"

_NAMES = """
    Analysis ChannelRows Checkpoint Evidence Family Geometry LayerStatistics Plan Score Scores
    StateReport StatetrimError Statistics Sweep Timing Timings ValueEvidence __version__ analyze
    benchmark calibrate evaluate inspect load merge needs open prepare prune recover refit report
    rows select serves sweep top trim
"""
PUBLIC = _NAMES.split()
"""What users rely on: a name may join, none may leave."""


def test_public_names_are_these_and_each_leads_somewhere() -> None:
    assert sorted(st.__all__) == PUBLIC == sorted(dir(st))
    for name in PUBLIC:
        assert getattr(st, name) is not None, name
    assert st.open.__name__ == "open_checkpoint"
    assert not hasattr(st, "slect")


def typed(script: str, folder: Path) -> str:
    """What mypy says of a user's script."""
    (folder / "script.py").write_text(script)
    # Its verdict on statetrim is another's task; torch's types take long and matter little here.
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = true\nfollow_imports = silent\n"
        "[mypy-torch.*,transformers.*,safetensors.*]\nfollow_imports = skip\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "script.py"],
        cwd=folder,
        env={"MYPYPATH": str(SOURCE), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_type_checker_sees_every_public_name(tmp_path: Path) -> None:
    used = "\n".join(f"st.{name}" for name in PUBLIC)
    said = typed(
        f"import statetrim as st\n{used}\n"
        'model = st.open("MODEL")\n'
        'plan = st.select(model, "l1", keep=0.5)\n'
        'small = st.prune(model, plan, "SMALL")\n'
        "reveal_type(model)\nreveal_type(plan)\nreveal_type(small)\nreveal_type(st.__version__)\n"
        "st.slect\n",
        tmp_path,
    )
    kinds = [
        line.rpartition("Revealed type is ")[2] for line in said.splitlines() if "note" in line
    ]
    checkpoint = '"statetrim.storage.checkpoint.Checkpoint"'
    assert kinds == [checkpoint, '"statetrim.artifacts.plan.Plan"', checkpoint, '"str"'], said
    errors = [line for line in said.splitlines() if "error:" in line]
    assert len(errors) == 1 and 'maybe "select"' in errors[0], said
