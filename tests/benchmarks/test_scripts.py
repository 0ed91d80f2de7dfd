"""The README's benchmark scripts run, at their smallest: those that need no peer and no minutes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("mechanisms.py --draws 1000 --repeats 1", "mechanisms.json"),
        ("scaling.py --quick --parts parameters --repeats 1", "scaling*.png"),
        ("clipping.py --workloads mlp --pairs 2 --methods auto", "clipping.json"),
        ("pate.py --repeats 1", "pate.json"),
        ("reading.py --quick", "reading-quick.json"),
        ("audit.py --quick", "audit.png"),
        ("shadows.py --quick --no-tf-privacy", "shadows-quick.json"),
    ],
)
def test_a_benchmark_runs_and_leaves_its_results(command: str, left: str, tmp_path: Path) -> None:
    script, *options = command.split()
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)}
    subprocess.run([sys.executable, BENCHMARKS / script, *options, "--results", tmp_path], check=True, env=environment)
    assert len(list(tmp_path.glob(f"*/{left}"))) == 1


@pytest.mark.slow("minutes")
def test_twenty_kills_at_random_moments_change_no_end(tmp_path: Path) -> None:
    """Of training on a table and on images with canaries, of PATE and of an audit; every end is compared to the bit."""
    command = [sys.executable, BENCHMARKS / "faults.py", "--kills", "20", "--only-kills", "--results", tmp_path]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)})
