"""Users as the unit of privacy: all records of a user in one row, so that sampling and clipping are by user."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from .. import _checks
from .._errors import UsageError


def group_by_user(
    records: Any, users: Shaped[np.ndarray, " records"], *, records_per_user: int, rng: np.random.Generator
) -> tuple[Any, Bool[np.ndarray, "users records_per_user"]]:
    """The records of each user, at most `records_per_user` of them, as one row.

    Args:
        records: pytree of arrays [records, ...].
        users: [records], whose each record is: numbers or strings.
        records_per_user: k, the most records that are used of a user; of more, a random k.
        rng: which of them.

    Returns:
        The pytree as arrays [users, k, ...], and bool [users, k]: which are records. Where a user has fewer than k, the rest
        repeats their first record, so that a loss of it is finite. Rows are in the order of the sorted users.

    Raises:
        UsageError: for arrays that disagree on the number of records, none at all, or k not a positive whole number.

    Example:
        >>> images = np.arange(5.0)
        >>> grouped, mask = group_by_user(images, np.array(["b", "a", "b", "b", "c"]), records_per_user=2,
        ...                               rng=np.random.default_rng(0))
        >>> grouped.shape, mask.sum(axis=1).tolist()
        ((3, 2), [1, 2, 1])
    """
    most = _checks.count("records_per_user", records_per_user, "give the most records of a user")
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(records)]
    sizes = {len(leaf) if leaf.ndim else 0 for leaf in leaves} | {len(users)}
    if len(sizes) != 1 or sizes == {0}:
        raise UsageError(f"records and users disagree on the number of records, or have none: {sorted(sizes)}")
    _, owner = np.unique(users, return_inverse=True)
    order = rng.permutation(len(users))
    order = order[np.argsort(owner[order], kind="stable")]
    starts = np.searchsorted(owner[order], np.arange(owner.max() + 1))
    counts = np.diff(np.append(starts, len(users)))
    place = np.arange(most)
    mask = place < counts[:, None]
    rows = order[starts[:, None] + np.where(mask, place, 0)]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], records), mask


def loss_of_user(loss_fn: Callable[..., Float[Array, ""]]) -> Callable[..., Float[Array, ""]]:
    """The loss of a user: the mean of `loss_fn(params, record, *shared)` over their records.

    Args:
        loss_fn: the loss of one record; a scalar, without auxiliary data.

    Returns:
        A function of `(params, (records, mask), *shared)`, as `jaxdp.clipped_grad` and `make_step` take it for the arrays that
        `group_by_user` gives. A user with fewer records weighs as much as one with many.
    """

    def loss(params: Any, user: tuple[Any, Bool[Array, " k"]], *shared: Any) -> Float[Array, ""]:
        records, mask = user
        losses = jax.vmap(lambda record: loss_fn(params, record, *shared))(records)
        total = jnp.sum(jnp.where(mask, losses, jnp.zeros((), losses.dtype)))
        return total / jnp.maximum(jnp.sum(mask), 1).astype(losses.dtype)

    return loss
