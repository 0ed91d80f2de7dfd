"""Which optimizers can stand behind the noise: those that need the noisy mean and the parameters, once, and nothing else."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import _checks
from .._errors import UsageError
from .._types import Params
from ..jaxprs._jaxpr import ARITHMETIC, MUL, known_operands, trace
from ._privatize import PrivatizeState

_NUMBERS = "give it finite numbers, such as optax.sgd(0.1)"
_ACCUMULATES = (
    "of its micro-steps would get noise of its own, sqrt(k) times as much in all. Give a larger expected_batch_size, and "
    "microbatch_size to bound memory"
)
_ASKS_FOR_MORE = (
    "one that asks for value=, grad= or value_fn= (lbfgs, reduce_on_plateau, polyak_sgd) wants further looks at the private "
    "data, which no accountant counts"
)
_OTHERWISE = (
    "one that adds noise itself (optax.contrib.dpsgd) isn't needed here, and one that takes a pair of parameters (lookahead) has "
    "no place"
)
_UNSUITED = {
    optax.MultiStepsState: f"optimizer has optax.MultiSteps in it: every one {_ACCUMULATES}",
    optax.ApplyEvery: f"optimizer has optax.apply_every in it: every one {_ACCUMULATES}",
    PrivatizeState: "optimizer has jaxdp.privatize in it, and the step adds the noise already: give the optimizer alone, such as "
    "optax.adam(1e-3) in jaxdp.dp_adam's place",
}


def check_transform(optimizer: Any) -> None:
    """Refuse what is no optax transform: None, a class, or the function that makes one."""
    fix = "give an optax optimizer, such as optax.sgd(0.1)"
    if isinstance(optimizer, type) or (callable(optimizer) and not hasattr(optimizer, "update")):
        name = getattr(optimizer, "__name__", repr(optimizer))
        raise UsageError(f"optimizer={name} makes optimizers and is none: call it, and {fix}")
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        raise UsageError(f"optimizer={optimizer!r} is a {type(optimizer).__name__}: {fix}")
    bound_to = getattr(getattr(optimizer, "update", None), "__self__", None)
    if isinstance(optimizer, optax.MultiSteps) or isinstance(bound_to, optax.MultiSteps):
        raise UsageError(_UNSUITED[optax.MultiStepsState])


def check_suitable(optimizer: optax.GradientTransformation, params: Params) -> None:
    """Refuse an optimizer that a private step can't run on `params`: nothing is computed.

    Args:
        optimizer: as `check_transform` lets it pass.
        params: pytree of arrays, or of their shapes.

    Raises:
        UsageError: for one that accumulates gradients, or has `jaxdp.privatize`, wherever in it; that asks for more than the
            noisy mean and the parameters; that doesn't fit the parameters; or whose numbers are NaN; and for parameters of less
            than 16 bits.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if jnp.finfo(leaf.dtype).bits < 16:
            raise UsageError(
                f"params{jax.tree_util.keystr(path)} has dtype {leaf.dtype}, to which optax adds no update: keep it in bfloat16 "
                "or wider, and cast it in the loss"
            )
    state = _tried(lambda: jax.eval_shape(optimizer.init, params), "init(params)")
    for part in jax.tree.leaves(state, is_leaf=lambda node: type(node) in _UNSUITED):
        if type(part) in _UNSUITED:
            raise UsageError(_UNSUITED[type(part)])
    means = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), params)
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)
    update = lambda means, state, params: optimizer.update(means, state, params)
    jaxpr, (updates, _) = _tried(lambda: trace(update, means, state, params), "update(means, state, params)")
    shaped = lambda tree: (jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)])
    if shaped(updates) != shaped(params):
        raise UsageError(
            f"optimizer gives updates of shapes {shapes(updates)} for parameters of {shapes(params)}: give one made for these"
        )
    for primitive, value in known_operands(jaxpr):
        if _is_bad_factor(primitive, value):
            raise UsageError(f"optimizer computes with {value}, as of a learning rate of that value: {_NUMBERS}")


def check_numbers(state: Any) -> None:
    """Refuse an optimizer's first state with a number that is NaN, as a learning rate can be that `inject_hyperparams` keeps."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.size(leaf) == 1 and _checks.has_nan(leaf):
            raise UsageError(f"optimizer has NaN in its state{jax.tree_util.keystr(path)}: {_NUMBERS}")


def _is_bad_factor(primitive: Any, value: Any) -> bool:
    """Whether an operation of arithmetic with a number that is known gives nothing but NaN, or infinities."""
    if primitive not in ARITHMETIC or np.size(value) != 1 or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return False
    number = float(np.asarray(value).astype(np.float64).item())
    return math.isnan(number) or (primitive is MUL and math.isinf(number))


def _tried(call: Callable[[], Any], name: str) -> Any:
    try:
        return call()
    except UsageError:
        raise
    except Exception as error:  # a transform raises what it likes where it isn't given what it wants
        said = str(error).splitlines()[0] if str(error) else ""
        why = (
            _ASKS_FOR_MORE if isinstance(error, TypeError) and "missing" in said and "argument" in said else _OTHERWISE
        )
        raise UsageError(
            f"optimizer.{name} fails with {type(error).__name__}: {said}. A private step gives an optimizer the noisy mean of "
            f"the gradients and the parameters, no more: {why}; give one that needs gradients alone, such as optax.adam, made "
            "for these parameters"
        ) from error
