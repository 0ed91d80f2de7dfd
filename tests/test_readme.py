"""The README's snippets run as they stand, with fewer steps."""

import re
from pathlib import Path
from typing import Any


def test_the_snippets_run() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("steps=200", "steps=2"), names)
    assert names["state"].step == 2
    assert names["out"].grads.keys() == names["params"].keys()
