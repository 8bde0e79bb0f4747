"""The demo, from the built wheel: its model learns, loses some by the cut, and is reported on."""

from pathlib import Path

import pytest

import statetrim as st
from helpers.fresh_install import Fresh


@pytest.mark.timeout(1200)
def test_the_demo_ends_in_a_report(tmp_path: Path, fresh: Fresh) -> None:
    done = fresh.run("statetrim demo", tmp_path)
    assert done.returncode == 0, done.stderr
    home = tmp_path / "statetrim-demo"
    assert (home / "report" / "report.html").is_file()
    assert not home.with_name("statetrim-demo.partial").exists()
    scores = st.Scores.load(home / "scores.json")
    recall = {m: scores.find(m, "mqar", "pairs_16").value for m in scores.models}
    assert list(recall) == ["MODEL", "rand", "l1", "product"]
    assert recall["MODEL"] > 0.9
    assert recall["MODEL"] > recall["product"] > recall["rand"] > 0.1
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ statetrim")]
    assert len(commands) == 11
    end = done.stdout[done.stdout.index("# result") :]
    for name, share in recall.items():
        assert f"{name:<7} recalls {share:4.0%}" in end
    assert "# the verdict on product: " in end and "# what to do next:" in end
    (trim,) = (line[2:].strip() for line in end.splitlines() if "statetrim trim MODEL" in line)
    tried = fresh.run(f"{trim} --limit 8 --no-benchmark --no-control", home)
    assert tried.returncode == 0, tried.stderr
    assert (home / "SMALL" / "statetrim" / "report" / "report.html").is_file()
    again = fresh.run("statetrim demo", tmp_path)
    assert again.returncode == 2
    assert "exists already and is not overwritten" in again.stderr
