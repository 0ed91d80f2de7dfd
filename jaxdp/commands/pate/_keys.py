"""The keys of a run of `jaxdp pate`: in private/keys.json until nothing needs them any more."""

from typing import Any

import jax
import jax.numpy as jnp

from ... import _checks
from ..._errors import UsageError
from ...runs._folder import PRIVATE, RunFolder
from ...runs._key_source import KeySource

_FILE = f"{PRIVATE}/keys.json"
SECRET = ("teachers", "noise")  # of the keys
_KEYS = (*SECRET, "queries", "student", "first_student")
ALL = (*_KEYS, "nonce")  # which names the noise, and so the run that the keys are of


def write_keys(folder: RunFolder, source: KeySource, nonce: str) -> None:
    """Draw all of the run's keys, and keep them with its nonce."""
    keys = {name: source.key(name) if name in SECRET else source.public_key(name) for name in _KEYS}
    words = {name: jax.random.key_data(key).tolist() for name, key in keys.items()}
    folder.write_sealed_json(_FILE, {"nonce": nonce, **words})


def read_key(folder: RunFolder, name: str) -> Any:
    """One of the run's keys."""
    words = _read(folder)[name]
    if words is None:
        made, file = ("labels", "labels.csv") if name in SECRET else ("student", f"{PRIVATE}/summary.json")
        raise UsageError(
            f"{folder.path} has made its {made} and erased its key of the {name}, and {file} is gone: bring it back, its labels "
            "are paid for. Another run makes others, which cost again, and both costs add up"
        )
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=_checks.THREEFRY)


def erase_keys(folder: RunFolder, *names: str) -> None:
    """Forget keys that are not needed any more, or all that is kept."""
    keys = _read(folder)
    folder.write_sealed_json(_FILE, {name: None if name in names else words for name, words in keys.items()})


def _read(folder: RunFolder) -> dict[str, Any]:
    """What is kept; refuses another run's, with which two nonces would name one noise."""
    keys = folder.read_sealed_json(_FILE)
    if keys.get("nonce", "") not in (None, folder.read_json("config.json")["nonce"]):
        raise UsageError(
            f"{folder.path / _FILE} isn't of this run, and its noise would be drawn twice: bring back the one that was here, or "
            "begin another run, without --resume"
        )
    return keys
