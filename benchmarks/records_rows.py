"""What is measured of accuracies: each row is the options of a `jaxdp train` or a `jaxdp pate`."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import adult
from trained import Figures, recipe_of

_PLD = ("--accountant", "pld")


class Row(NamedTuple):
    """A kind of run.

    Attributes:
        method: in the table and the picture.
        words: the command and its options.
        data: "MNIST" or "Adult".
        in_table: whether it has a line there, and isn't a point of the picture alone.
    """

    method: str
    words: tuple[str, ...]
    data: str = "MNIST"
    in_table: bool = False


def _points(
    name: str,
    method: str,
    words: tuple[str, ...],
    budgets: tuple[float, ...],
    in_table: tuple[float, ...] = (),
    accountant: tuple[str, ...] = _PLD,
) -> dict[str, Row]:
    """A row for each budget; those of some have a line in the table."""
    return {
        f"{name}-{e:g}": Row(method, (*words, "--target-epsilon", f"{e:g}", *accountant), in_table=e in in_table)
        for e in budgets
    }


LINEAR = "linear on scattering"
_PATE, _AUGMENTED = "PATE, whatever the votes, on 1,000 images", "CNN, four distortions of an image"
ROWS = {
    "default": Row("`jaxdp train` alone", ("train",), in_table=True),
    "mnist-0.3": Row(LINEAR, ("train", "--recipe", "scattering-0.3"), in_table=True),
    "mnist-1": Row(LINEAR, ("train", "--recipe", "scattering", *_PLD), in_table=True),
    "mnist-3": Row(LINEAR, ("train", "--recipe", "scattering-3"), in_table=True),
    "pate": Row(_PATE, ("pate",), in_table=True),
    "adult-1": Row(
        "logistic regression", ("train", *adult.WORDS, "--target-epsilon", "1", *_PLD), "Adult", in_table=True
    ),
    **_points("mnist", LINEAR, ("train", "--recipe", "scattering-0.3", "--lr", "0.1"), (0.1,)),
    **_points("mnist", LINEAR, ("train", "--recipe", "scattering-3"), (8.0,)),
    **_points("cnn", "CNN", ("train", "--model", "cnn"), (0.1, 0.3, 1.0, 3.0, 8.0), in_table=(1.0,)),
    **_points("cnn-augmented", _AUGMENTED, ("train", "--recipe", "cnn-augmented"), (1.0,), in_table=(1.0,)),
    **_points("pate", _PATE, ("pate",), (0.5, 1.0), in_table=(1.0,), accountant=()),
}


def measured(path: Path) -> dict[str, list[Figures]]:
    """What a file has of the rows as they are: figures under other options, or another recipe, are left out."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    now = described({name: [] for name in ROWS})
    return {name: row["figures"] for name, row in rows.items() if {**row, "figures": []} == now.get(name)}


def searched(path: Path) -> dict[str, Any] | None:
    """What benchmarks/search.py wrote beside a file of the rows; None where it hasn't."""
    own = path.with_name("search.json")
    return json.loads(own.read_text()) if own.exists() else None


def described(found: dict[str, list[Figures]]) -> dict[str, Any]:
    """Figures as they are written: with the options and the recipe that they are of."""
    rows = {
        name: {"words": row.words, "recipe": recipe_of(row.words), "figures": found.get(name, [])}
        for name, row in ROWS.items()
    }
    return json.loads(json.dumps({name: row for name, row in rows.items() if name in found}))
