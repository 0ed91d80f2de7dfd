"""Each notebook runs from top to bottom, at a small size; and what is stored in it is a whole run's output."""

import base64
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PNG = b"\x89PNG"


def execute() -> ModuleType:
    """notebooks/execute.py."""
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_notebook_for_each_tutorial() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01_private_mnist",
        "02_mlp_cnn_with_and_without_privacy",
        "03_pate_hospitals",
        "04_pate_mnist_offices",
        "05_tabular_drug_response",
        "06_ghost_clipping",
        "07_synthetic_records",
    ]


@pytest.mark.slow("minutes")
@pytest.mark.filterwarnings("default")  # of Jupyter's own parts
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXDP_NOTEBOOKS", "small")
    execute().executed(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_a_whole_run_with_its_pictures(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2
    assert all(base64.b64decode(picture).startswith(PNG) for picture in pictures)
    assert "".join(cells[0]["source"]).startswith("# ")
    assert "What to try next" in "".join(cells[-1]["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_axis_is_labelled_where_there_is_a_figure(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "plt.show()" in source and "imshow" not in source:
            assert "xlabel=" in source or "set_xlabel" in source or "xticklabels=" in source
            assert "ylabel" in source
