"""The classic mechanisms, vectorised and compiled: what releases a number, a choice or an answer privately, without training.

Each is a frozen description that knows its noise and its dp-accounting event, and is called with values and a key:

    laplace = jaxdp.mechanisms.Laplace(epsilon=0.5, sensitivity=1)
    count = laplace(exact_count, key=jaxdp.key_from_entropy())
    ledger = ledger.add(laplace.event_of(exact_count), "a count")

- `Laplace` and `Gaussian` add noise on a grid (`_grid`), so that the low bits of what is released say nothing.
- `Exponential` and `ReportNoisyMax` choose a candidate by its score.
- `RandomizedResponse` lets everyone answer for themselves, and estimates what the answers were.
- `NoisyMean` and `NoisyHistogram` summarise records that are clamped to public bounds.
- `MultiplicativeWeights` makes a synthetic histogram, from which `CategoricalTable` draws synthetic rows.

Leading axes are independent releases, each of which costs the event once: `event_of` counts them. A key serves one call:
`jax.vmap` over values with one key, which would give all of them the same noise, is refused.
"""

from ._additive import Gaussian as Gaussian, Laplace as Laplace
from ._categorical import CategoricalTable as CategoricalTable
from ._multiplicative_weights import MultiplicativeWeights as MultiplicativeWeights
from ._randomized_response import RandomizedResponse as RandomizedResponse
from ._selection import Exponential as Exponential, ReportNoisyMax as ReportNoisyMax
from ._statistics import NoisyHistogram as NoisyHistogram, NoisyMean as NoisyMean
