"""Which files a fold was trained on: models of different data can't be put together, for a record might be in all of them.

A fold that is finished has forgotten its data's fingerprint. This one, of the whole files, stays in its private/ until all folds
are put together: under a secret of its own, and for those alone who may see the run's keys.
"""

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Any

from ..._errors import UsageError
from ...runs._folder import PRIVATE, RunFolder, as_written
from ._options import TrainOptions

_NAME = f"{PRIVATE}/files.json"


def described_files(options: TrainOptions, secret: bytes | None = None) -> dict[str, str]:
    """What tells the files that options name from others of these names, under a secret that is drawn here if not given."""
    secret = secrets.token_bytes(32) if secret is None else secret
    named = {"features": options.features, "targets": options.targets, "bounds-file": options.bounds_file}
    digests = {name: _digest(path, secret) for name, path in (named | {"columns": options.columns}).items() if path}
    return {"secret": secret.hex(), **digests}


def keep_files(folder: RunFolder, described: dict[str, str]) -> None:
    """Write what `described_files` gave before they were read."""
    folder.write_json(_NAME, described)


def check_files(folder: RunFolder, options: TrainOptions) -> None:
    """Refuse files that aren't those that the fold in this folder began with."""
    path = folder.path / _NAME
    if not path.exists():
        raise UsageError(
            f"{path} is missing: whether {folder.path} was trained on the same files can't be told. Train all folds anew, in "
            "another folder"
        )
    with as_written(path):
        kept: dict[str, Any] = dict(folder.read_json(_NAME))
        now = described_files(options, bytes.fromhex(kept["secret"]))
    if other := [f"--{name}" for name in sorted(kept.keys() | now.keys()) if kept.get(name) != now.get(name)]:
        raise UsageError(
            f"{', '.join(other)}: not the file that {folder.path} began with. Models of different data can't be put together: a "
            "record could be in all of them, which would cost more than what is stated. Bring it back, or train all folds anew, "
            "in another folder"
        )


def forget_files(folder: RunFolder) -> None:
    """Of a fold that is put together with the others."""
    (folder.path / _NAME).unlink(missing_ok=True)


def _digest(path: Path, secret: bytes) -> str:
    try:
        with path.open("rb") as file:
            return hmac.new(secret, hashlib.file_digest(file, "sha256").digest(), hashlib.sha256).hexdigest()
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror}): give a CSV file") from error
