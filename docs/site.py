"""What the site has beside the pages here: README as its first page, pictures, notebooks, and a page of the API for each room.

mkdocs calls these functions (`hooks` in mkdocs.yml). Links in the pages hold on a clone; here they become the site's.
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxdp"
_NOT_FOR_USERS = ("UsageError",)  # of rooms; the top level has it


def on_files(files: Files, config: Any) -> Files:
    """Add the files that aren't under docs/."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    for folder, kind in (
        ("benchmarks/results", "*.png"),
        ("benchmarks/results", "*.md"),
        ("benchmarks/results", "*.txt"),
        ("notebooks", "*.ipynb"),
    ):
        for path in sorted((ROOT / folder).rglob(kind)):
            name = str(path.relative_to(ROOT)).replace("benchmarks/results", "results")
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for room, names in rooms().items():
        files.append(File.generated(config, f"api/{room}.md", content=page_of(room, names)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them."""
    if page.file.src_uri == "index.md":
        markdown = markdown.replace("](docs/", "](").replace("](notebooks)", "](notebooks/01_private_mnist.ipynb)")
    markdown = markdown.replace("](../README.md)", "](index.md)")
    return re.sub(r"\]\((\.\./)?benchmarks/results/", "](results/", markdown).replace("](../notebooks/", "](notebooks/")


def rooms() -> dict[str, list[str]]:
    """The names that the top level and each of its rooms export, by room."""
    top = exported(PACKAGE)
    public = [name for name in top if (PACKAGE / name).is_dir()]
    return {
        "jaxdp": [name for name in top if name not in public],
        **{name: exported(PACKAGE / name) for name in public},
    }


def exported(package: Path) -> list[str]:
    """The names that a package gives on, as `x as x` in its list."""
    stub, module = package / "__init__.pyi", package / "__init__.py"
    tree = ast.parse((stub if stub.exists() else module).read_text())
    found = [
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname
    ]
    return [name for name in found if not name.startswith("_") and (package == PACKAGE or name not in _NOT_FOR_USERS)]


def page_of(room: str, names: list[str]) -> str:
    """A page of the API."""
    where = "jaxdp" if room == "jaxdp" else f"jaxdp.{room}"
    head = f"# {where}\n\n::: {where}\n    options:\n      members: []\n      show_root_toc_entry: false\n"
    return "\n".join((head, *(f"::: {where}.{name}\n" for name in names)))
