"""Short names are told apart in the room of samplings alone, and nobody asks of which class a sampling or a noise is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxdp
from jaxdp.noise import NOISES
from jaxdp.sampling import NAMES, SAMPLINGS, kind_of, words_of_batch_size

PACKAGE = Path(jaxdp.__file__).parent
ANOTHER_POISSON = PACKAGE / "accounting" / "_search.py"  # the distribution of a number of runs
CLASSES = {kind.__name__ for kind in (*SAMPLINGS, *NOISES)}


def files_outside(*rooms: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if not any(path.is_relative_to(PACKAGE / room) for room in rooms):
            yield path, ast.parse(path.read_text())


def has_name(node: ast.AST | None) -> bool:
    return node is not None and any(isinstance(part, ast.Constant) and part.value in NAMES for part in ast.walk(node))


def compared(tree: ast.Module) -> Iterator[int]:
    """The lines where a short name is compared, matched, or the key of a table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(has_name, (node.left, *node.comparators))):
            yield node.lineno
        if isinstance(node, ast.Dict) and any(map(has_name, node.keys)):
            yield node.lineno
        if isinstance(node, ast.MatchValue) and has_name(node.value):
            yield node.lineno


def asked_for_class(tree: ast.Module) -> Iterator[int]:
    """The lines with `isinstance` of a class of a sampling or a noise."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            parts = list(ast.walk(node.args[1]))
            names = {part.id for part in parts if isinstance(part, ast.Name)}
            names |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
            if names & CLASSES:
                yield node.lineno


def test_no_short_name_is_compared_outside_the_room_of_samplings() -> None:
    found = [
        (path.name, line)
        for path, tree in files_outside("sampling")
        for line in compared(tree)
        if path != ANOTHER_POISSON
    ]
    assert found == []
    assert list(compared(ast.parse("if run.sampling in ('shuffle', 'poisson'): pass"))) == [1]


def test_nobody_asks_for_the_class_of_a_sampling_or_a_noise() -> None:
    found = [(path.name, line) for path, tree in files_outside("sampling", "noise") for line in asked_for_class(tree)]
    assert found == []
    assert list(asked_for_class(ast.parse("isinstance(noise, noise.Gaussian | None)"))) == [1]


def test_each_short_name_is_its_classs_own_and_an_unknown_one_has_no_words() -> None:
    assert [kind_of(name).name for name in NAMES] == list(NAMES) == ["poisson", "truncated_poisson", "shuffle"]
    assert [words_of_batch_size(name) for name in NAMES] == [
        " expected (Poisson)",
        " expected (truncated Poisson)",
        " (shuffled)",
    ]
    assert words_of_batch_size(None) == words_of_batch_size("alphabetical") == ""
    with pytest.raises(jaxdp.UsageError, match="sampling='alphabetical' is not known"):
        kind_of("alphabetical")
