"""The sampling that options name: its choices, its usual adjacency, and a warning where it cuts nearly every batch."""

import math
from typing import Annotated, TypeAlias

import tyro

from .. import dpsgd, sampling

SamplingName: TypeAlias = Annotated[str, tyro.conf.arg(metavar="{poisson,truncated_poisson,shuffle}")]


def adjacency_of(named: str | None, sampled: str) -> str:
    """The relation that a run is accounted under: the one that the user names, or the usual one of its sampling."""
    return named or sampling.kind_of(sampled).adjacencies[0]


def cut_nearly_always(run: "dpsgd.DPSGD") -> str | None:
    """A warning about a truncated batch two standard deviations or more below the expected one; None of others."""
    expected, most = run.expected_batch_size, run.truncated_batch_size
    if most is None or most > expected - 2 * math.sqrt(expected * (1 - run.sampling_rate)):
        return None
    return (
        f"warning: --truncated-batch-size {most} is far below the {expected:g} examples that are drawn on average: nearly every "
        "batch is cut to it, and what is cut off is not learned from, though it adds to epsilon"
    )
