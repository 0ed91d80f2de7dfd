"""What had been spent on the same data before a run, as its user gives it."""

import json
from pathlib import Path

from ..._errors import UsageError
from ...accounting import Ledger


def read_ledger(path: Path | None) -> Ledger:
    """The ledger in a JSON file, or in the statement.json of a run; an empty one for None.

    Raises:
        UsageError: where the file can't be read, or holds no ledger.
    """
    if path is None:
        return Ledger()
    try:
        content = json.loads(path.read_text("utf-8"))
        return Ledger.from_dict(content.get("ledger", content) if isinstance(content, dict) else content)
    except UsageError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"--ledger={path} can't be read ({error}): give the statement.json of a run, or a ledger's to_dict() as JSON"
        ) from error
