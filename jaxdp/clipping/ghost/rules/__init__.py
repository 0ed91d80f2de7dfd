"""Rules for primitives, one a file: how per-example gradients follow from what meets a parameter in one operation.

`_rule` has the contract. To add a rule: write a file with a value of `Rule`, and add it to the list below. What it says is held
against plain differentiation by the self-check before a run's first step (`clipped_grad` by itself has none). The first rule
that covers a use has it.
"""

from ._conv import CONVOLUTION
from ._dot import DOT
from ._embedding import LOOKUP
from ._row import ROW
from ._rule import (
    INDICES as INDICES,
    REAL as REAL,
    Dense as Dense,
    Layout as Layout,
    OneHot as OneHot,
    OuterProducts as OuterProducts,
    Rule as Rule,
)

RULES: tuple[Rule, ...] = (DOT, CONVOLUTION, LOOKUP, ROW)
