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


def digests_of(options: TrainOptions) -> dict[str, bytes]:
    """SHA-256 of each file that the options name, by its option: not to be kept, unless under a secret."""
    named = {"features": options.features, "targets": options.targets}
    named |= {"bounds-file": options.bounds_file, "columns": options.columns}
    return {name: _digest(path) for name, path in named.items() if path}


def keep_files(folder: RunFolder, digests: dict[str, bytes]) -> None:
    """Write what tells the files, of which `digests_of` was asked before they were read, from others."""
    secret = secrets.token_bytes(32)
    folder.write_json(_NAME, {"secret": secret.hex(), **_under(secret, digests)})


def check_files(folder: RunFolder, digests: dict[str, bytes]) -> None:
    """Refuse files of other digests than those that the fold in this folder began with."""
    path = folder.path / _NAME
    if not path.exists():
        raise UsageError(
            f"{path} is missing: whether {folder.path} was trained on the same files can't be told. Train all folds anew, in "
            "another folder"
        )
    with as_written(path):
        kept: dict[str, Any] = dict(folder.read_json(_NAME))
        now = _under(bytes.fromhex(kept.pop("secret")), digests)
    if other := [f"--{name}" for name in sorted(kept.keys() | now.keys()) if kept.get(name) != now.get(name)]:
        raise UsageError(
            f"{', '.join(other)}: not the file that {folder.path} began with. Models of different data can't be put together: a "
            "record could be in all of them, which would cost more than what is stated. Bring it back, or train all folds anew, "
            "in another folder"
        )


def forget_files(folder: RunFolder) -> None:
    """Of a fold that is put together with the others."""
    (folder.path / _NAME).unlink(missing_ok=True)


def _under(secret: bytes, digests: dict[str, bytes]) -> dict[str, str]:
    return {name: hmac.new(secret, digest, hashlib.sha256).hexdigest() for name, digest in digests.items()}


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror}): give a CSV file") from error
