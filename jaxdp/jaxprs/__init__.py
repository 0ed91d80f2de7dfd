"""Reading and evaluating jaxprs, JAX's intermediate language.

`_jaxpr` is the one module that touches what JAX keeps unstable of its programs (what it tells of batched and sharded values,
`jaxdp.noise._copies` reads); `_evaluate` is the one evaluator, which takes a hook
for the equations that are to be computed in another way; `_convolutions` brings axes into the order that compilers have fast code
for, and `_for_cpus` whole programs into a form that XLA's CPU compiler computes fast, and right; `_turned` transposes what loops
read across rows before they begin; `_vectorised` is `jax.vmap` whose convolutions let no example's NaN reach another one;
`_one_value` keeps what several read from being computed, and rounded, for each of them.
"""

from ._convolutions import (
    heads_outside_on_tpus as heads_outside_on_tpus,
    in_order_on_tpus as in_order_on_tpus,
)
from ._evaluate import constant_value as constant_value, evaluate as evaluate, reads_any as reads_any
from ._for_cpus import for_cpus as for_cpus
from ._one_value import as_one_value as as_one_value
from ._vectorised import vectorised as vectorised
