"""The rooms of the house: who imports whom, which libraries stay outside, and that values are asked and not told apart."""

import ast
import itertools
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import jaxdp
from jaxdp.clipping import RULES
from jaxdp.noise import NOISES
from jaxdp.sampling import NAMES, SAMPLINGS

PACKAGE = Path(jaxdp.__file__).parent
ROOMS = (
    *("_errors", "_elsewhere", "_checks", "_types", "_interrupts", "_outputs", "_platform"),
    *("_processes", "_meeting", "_mesh", "_alike", "_block", "_spread"),
    *("jaxprs", "noise", "sampling", "reading", "clipping", "accounting", "transforms", "dpsgd"),
    *("mechanisms", "pate", "audit"),
    *("data", "models", "runs", "commands", "cli", "__main__"),
)
OF_THE_LIBRARY = ROOMS[: ROOMS.index("runs")]
FOR_COMMANDS = {"rich", "matplotlib", "tyro", "orbax"}
VALUES = {  # that nobody tells apart, but for the room in which they are made
    "sampling": {kind.__name__ for kind in SAMPLINGS}
    | {"PoissonSampler", "TruncatedPoissonSampler", "ShuffledSampler"},
    "noise": {kind.__name__ for kind in NOISES},
    None: {
        *(kind.__name__ for kind in RULES),
        *("LaplaceNoisyMax", "GaussianNoisyMax", "ConfidentNoisyMax", "InteractiveNoisyMax"),
    },
}
ANOTHER_MEANING = ("accounting/_search.py", "commands/tune/_options.py")  # the law of a number of runs


@cache  # once, in the one process that runs these tests
def files() -> dict[str, ast.Module]:
    """The syntax tree of each file, by its path in the package; a room's list of names is a part of its own."""
    return {str(path.relative_to(PACKAGE)): ast.parse(text_of(path)) for path in sorted(PACKAGE.rglob("*.py"))}


def text_of(path: Path) -> str:
    listed = path.with_suffix(".pyi")
    return path.read_text() + (listed.read_text() if listed.exists() else "")


def room_of(path: str) -> str:
    return Path(path).parts[0].removesuffix(".py")


def imported(path: str, tree: ast.Module) -> Iterator[str]:
    """The files of the package that a file imports, in functions and for types alone included; and foreign names."""
    here = Path(path).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield node.module or ""
                continue
            base = (*here[: len(here) - node.level + 1], *(node.module or "").split(".")) if node.module else None
            start = base or here[: len(here) - node.level + 1]
            for alias in node.names:
                found = file_of((*start, alias.name)) or file_of(start)
                assert found is not None, f"{path} imports {start}, which is no file"
                yield found


def file_of(parts: tuple[str, ...]) -> str | None:
    for path in (Path(*parts, "__init__.py"), Path(*parts).with_suffix(".py") if parts else Path("__init__.py")):
        if (PACKAGE / path).is_file():
            return str(path)
    return None


@cache
def imports() -> dict[str, list[str]]:
    """What each file imports."""
    return {path: sorted(set(imported(path, tree))) for path, tree in files().items()}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_from_those_above_it_alone(room: str) -> None:
    for path in (path for path in files() if room_of(path) == room):
        for other in (other for other in imports()[path] if other.endswith(".py")):
            assert ROOMS.index(room_of(other)) <= ROOMS.index(room), f"{path} imports {other}, of a room below it"


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {path: {other for other in others if other.endswith(".py")} for path, others in imports().items()}
    tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("room", OF_THE_LIBRARY)
def test_the_library_knows_nothing_of_terminals_pictures_and_checkpoints(room: str) -> None:
    for path in (path for path in files() if room_of(path) == room):
        foreign = {name.partition(".")[0] for name in imports()[path] if not name.endswith(".py")}
        assert not foreign & FOR_COMMANDS, f"{path} imports {foreign & FOR_COMMANDS}"


@pytest.mark.slow
def test_importing_the_library_imports_none_of_them_either() -> None:
    assert loaded_by("import jaxdp; [getattr(jaxdp, name) for name in dir(jaxdp)]", FOR_COMMANDS) == "[]\n"


@pytest.mark.slow_but("arguments1")
@pytest.mark.parametrize("arguments", [["--help"], ["trian"], ["train", "--epocks", "3"], ["epsilon", "--help"]])
def test_help_and_what_was_mistyped_wait_for_no_jax(arguments: list[str]) -> None:
    code = f"from jaxdp import cli\ntry: cli.main({arguments})\nexcept SystemExit: pass"
    assert loaded_by(code, {"jax", "scipy", "matplotlib", "orbax"}).splitlines()[-1] == "[]"


@pytest.mark.slow_but("runs")
@pytest.mark.parametrize(
    "name", ["dpsgd", "transforms", "models", "runs", "pate.aggregators", "clipping.ghost", "noise.draws", "accounting"]
)
def test_a_room_can_be_asked_for_before_anything_else(name: str) -> None:
    assert loaded_by(f"import jaxdp; jaxdp.{name}", set()) == "[]\n"


def loaded_by(code: str, libraries: set[str]) -> str:
    """What a process prints that runs this, and then which of these libraries it has imported."""
    code = f"import sys\n{code}\nprint(sorted({libraries} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def told_apart(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Where a class of these names is asked for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass", "type"):
            asked = {leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}
            asked |= {leaf.attr for leaf in ast.walk(node) if isinstance(leaf, ast.Attribute)}
            if asked & names:
                yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Compare) and ast.unparse(node.left).startswith("type("):
            asked = {leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}
            if asked & names:
                yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.MatchClass) and ast.unparse(node.cls).split(".")[-1] in names:
            yield f"{node.lineno}: {ast.unparse(node)}"


def known_by_name(tree: ast.Module) -> Iterator[str]:
    """Where the short name of a sampling stands, but as a default: compared, matched, or the key of a table."""
    defaults = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}
    defaults |= {
        id(default)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for default in itertools.chain(node.args.defaults, node.args.kw_defaults)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES and id(node) not in defaults:
            yield f"{node.lineno}: {node.value!r}"


@pytest.mark.parametrize(("home", "names"), VALUES.items())
def test_values_are_told_apart_in_their_own_room_alone(home: str | None, names: set[str]) -> None:
    outside = {path: tree for path, tree in files().items() if room_of(path) != home}
    assert [(path, found) for path, tree in outside.items() for found in told_apart(tree, names)] == []


def test_no_name_of_a_sampling_is_compared_outside_its_room() -> None:
    outside = {
        path: tree for path, tree in files().items() if room_of(path) != "sampling" and path not in ANOTHER_MEANING
    }
    assert [(path, found) for path, tree in outside.items() for found in known_by_name(tree)] == []


@pytest.mark.parametrize("code", ["isinstance(noise, noise.Gaussian | None)", "type(x) is Gaussian"])
def test_a_class_that_is_asked_for_is_found(code: str) -> None:
    assert len(list(told_apart(ast.parse(code), VALUES["noise"]))) == 1


def test_a_short_name_that_is_compared_is_found() -> None:
    assert len(list(known_by_name(ast.parse("if run.sampling in ('shuffle', 'poisson'): pass")))) == 2
