"""What is drawn before the first run of a search: how many runs there are, and the hyper-parameters of each."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...runs._folder import PRIVATE, RunFolder
from ...runs._key_source import KeySource
from ._options import TuneOptions

_FILE = f"{PRIVATE}/search.json"


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        lr: its learning rate.
        clip_norm: its clip norm.
        batch_size: its expected batch size.
        seed: where the search has one.
        score: by which models are compared, with its noise; None until it is trained.
    """

    lr: float
    clip_norm: float
    batch_size: int
    seed: int | None
    score: float | None = None


def drawn(options: TuneOptions, sizes: tuple[int, ...], keys: KeySource) -> list[Trial]:
    """The runs of a search, none of which depends on the data: not even on the seed's keys, which do."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(keys.public_key("search"))))
    number = options.search.number_of_runs(rng)

    def between(ends: tuple[float, float]) -> float:
        low, high = ends
        return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)

    ranges = options.ranges
    return [
        Trial(
            lr=between(ranges["lr"]),
            clip_norm=between(ranges["clip_norm"]),
            batch_size=int(rng.choice(sizes)),
            seed=None if options.seed is None else int(rng.integers(2**32)),
        )
        for _ in range(number)
    ]


def keep_trials(folder: RunFolder, trials: list[Trial]) -> None:
    """Write them, with what is known of them."""
    folder.write_sealed_json(_FILE, {"trials": [dataclasses.asdict(trial) for trial in trials]})


def kept_trials(folder: RunFolder) -> list[Trial]:
    """Those of a search that is gone on with; raises `UsageError` where they are missing or damaged."""
    content: dict[str, Any] = folder.read_sealed_json(_FILE)
    return [Trial(**trial) for trial in content["trials"]]
