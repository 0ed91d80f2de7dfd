"""Clip rules: how the norm of an example's gradient becomes the factor by which it is scaled, one rule a file.

A rule sees norms and nothing else, so that every method of computing them serves every rule. Under each of them a scaled
gradient is no longer than the clip norm C: adding or removing one example moves the sum by at most C, its sensitivity.
`Quantile` changes C from step to step, and then the sensitivity follows it.

`_rule` has the contract, `ClipRule`. Whatever satisfies it is a rule: to add one here is one file and one line below, and
one from elsewhere is handed over as it is, `jaxdp.DPSGD(..., rule=MyRule())`.
"""

from typing import Any

from ._flat import Flat as Flat
from ._normalised import Normalised as Normalised
from ._per_group import PerGroup as PerGroup
from ._quantile import Quantile as Quantile, QuantileState as QuantileState
from ._rule import ClipRule as ClipRule, Groups as Groups, check_is_rule as check_is_rule, check_rule as check_rule

RULES: tuple[type[Any], ...] = (Flat, PerGroup, Normalised, Quantile)  # by which a description in JSON is read back
