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
KEYS = (*SECRET, "queries", "student", "first_student")


def write_keys(folder: RunFolder, source: KeySource) -> None:
    """Draw all of the run's keys, and keep them."""
    keys = {name: source.key(name) if name in SECRET else source.public_key(name) for name in KEYS}
    folder.write_sealed_json(_FILE, {name: jax.random.key_data(key).tolist() for name, key in keys.items()})


def read_key(folder: RunFolder, name: str) -> Any:
    """One of the run's keys."""
    words = folder.read_sealed_json(_FILE)[name]
    if words is None:
        made, file = ("labels", "labels.csv") if name in SECRET else ("student", f"{PRIVATE}/summary.json")
        raise UsageError(
            f"{folder.path} has made its {made} and erased its key of the {name}, and {file} is gone: bring it back, its labels "
            "are paid for. Another run makes others, which cost again, and both costs add up"
        )
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=_checks.THREEFRY)


def erase_keys(folder: RunFolder, *names: str) -> None:
    """Forget keys that are not needed any more."""
    keys = folder.read_sealed_json(_FILE)
    folder.write_sealed_json(_FILE, {name: None if name in names else words for name, words in keys.items()})
