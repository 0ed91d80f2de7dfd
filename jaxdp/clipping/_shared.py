"""Arguments that every example's loss gets beside its own row, told apart from labels that were meant to be rows.

Other libraries take a batch as several arguments, `f(params, X, Y)`. Here Y would go to every example whole: one label
would reach all of them, and no clip norm would bound what it moves. Whatever has an axis of the batch's size, from two on, is
therefore refused, unless it is said to be shared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from .._errors import UsageError


@dataclass(frozen=True)
class Shared:
    """A value for every example alike, though one of its axes is as long as the batch; the loss gets the value itself.

    Needed for such a value alone: frozen weights of other sizes, scalars and step numbers are shared as they are. What is
    computed from private records may be neither shared nor closed over by the loss: no example's norm would bound it.

    Args:
        value: any pytree of arrays.

    Examples:
        >>> import jax.numpy as jnp, jaxdp
        >>> loss = lambda w, x, weights: jnp.vdot(w, weights @ x)
        >>> batch, weights = jnp.ones((3, 3)), jnp.eye(3)
        >>> jaxdp.clipped_grad(loss, clip_norm=9.0)(jnp.zeros(3), batch, jaxdp.Shared(weights)).grads
        Array([3., 3., 3.], dtype=float32)
    """

    value: Any


jax.tree_util.register_dataclass(Shared, data_fields=["value"], meta_fields=[])


def unwrap_shared(shared: tuple[Any, ...], sizes: Mapping[str, int | None], call: str) -> tuple[Any, ...]:
    """The further arguments as the loss gets them.

    Args:
        shared: what followed the batch.
        sizes: by what it is the size of, such as "the batch's size"; None where it isn't known. A size of 1 tells nothing,
            and of a single example nothing can be mistaken for another's.
        call: how the batch is handed over, for the message.

    Returns:
        `shared` without wrappers.

    Raises:
        UsageError: for an array with an axis of one of the sizes, or a list or tuple of so many, that isn't wrapped.
    """
    known = {size: name for name, size in sizes.items() if size is not None and size > 1}
    for number, value in enumerate(shared):
        _refuse_rows(value, f"shared argument {number + 1}", known, call)
    return tuple(_value(value) for value in shared)


def _refuse_rows(value: Any, place: str, sizes: Mapping[int, str], call: str) -> None:
    if isinstance(value, Shared):
        return
    children = jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda part: part is not value)
    is_leaf = len(children) == 1 and children[0][1] is value
    is_sequence = isinstance(value, list | tuple) and not hasattr(value, "_fields")
    shape = tuple(getattr(value, "shape", ())) if is_leaf else (len(children),) * is_sequence
    for size in shape:
        if size in sizes:
            what = f"has shape {shape}" if is_leaf else f"is a {type(value).__name__} of {size}"
            raise UsageError(
                f"{place} {what}, and {size} is {sizes[size]}: what follows the batch goes to every example whole, so that "
                f"labels there would be clipped with none. Hand them over in the batch, {call}; wrap what is meant for every "
                "example alike, jaxdp.Shared(value)"
            )
    if not is_leaf:
        for path, child in children:
            _refuse_rows(child, place + jax.tree_util.keystr(path), sizes, call)


def _value(tree: Any) -> Any:
    is_shared = lambda part: isinstance(part, Shared)
    return jax.tree.map(lambda part: _value(part.value) if is_shared(part) else part, tree, is_leaf=is_shared)
