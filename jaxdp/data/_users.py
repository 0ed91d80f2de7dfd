"""Users as the unit of privacy: all records of a user in one row, so that sampling and clipping are by user."""

import hashlib
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Shaped

from .. import _checks
from .._errors import UsageError
from .._types import Params
from ..clipping import takes_rng

# What NumPy, pandas and databases write where there is nothing.
_ABSENT = frozenset({"", "nan", "none", "nat", "<na>", "null", "n/a"})
_EACH_ITS_USER = "give every record a user, so that no two users count as one; leave out records of nobody"


def group_by_user(
    records: Any, users: Shaped[np.ndarray, " records"], *, records_per_user: int, rng: np.random.Generator
) -> tuple[Any, Bool[np.ndarray, "users records_per_user"]]:
    """The records of each user, at most `records_per_user` of them, as one row.

    Args:
        records: pytree of arrays [records, ...].
        users: [records], whose each record is: numbers or strings.
        records_per_user: k, the most records that are used of a user; of more, a random k.
        rng: which of them; a user's choice depends on it and on their own records alone.

    Returns:
        The pytree as arrays [users, k, ...], and bool [users, k]: which are records. Where a user has fewer than k, the rest
        repeats their first record, so that a loss of it is finite. Rows are in the order of the sorted users.

    Raises:
        UsageError: for arrays that disagree on the number of records, none at all, k not a positive whole number, and users that
            are missing (NaN, or text that stands for it), too large for their floating-point type to tell apart, or written in
            two ways ("1" beside "1.0" or "1 ", or one letter in two of Unicode's forms).

    Examples:
        >>> images = np.arange(5.0)
        >>> grouped, mask = group_by_user(images, np.array(["b", "a", "b", "b", "c"]), records_per_user=2,
        ...                               rng=np.random.default_rng(0))
        >>> grouped.shape, mask.sum(axis=1).tolist()
        ((3, 2), [1, 2, 1])
    """
    most = _checks.count("records_per_user", records_per_user, "give the most records of a user")
    _checks.generator("rng", rng)
    owners = _on_host("users", users)
    leaves = [_on_host("records", leaf) for leaf in jax.tree.leaves(records)]
    sizes, named = {len(leaf) if leaf.ndim else 0 for leaf in leaves}, len(owners) if owners.ndim == 1 else 0
    if sizes != {named} or not named:
        raise UsageError(
            f"records and users [records] disagree on the number of records, or have none: records {sorted(sizes)}, users "
            f"[{named}]"
        )
    if np.issubdtype(owners.dtype, np.inexact) and np.isnan(owners).any():
        raise UsageError(f"users hold NaN: {_EACH_ITS_USER}")
    if np.issubdtype(owners.dtype, np.inexact) and (large := np.abs(owners) >= 1 / np.finfo(owners.dtype).eps).any():
        raise UsageError(
            f"users hold {owners[large][0]} as {owners.dtype}, in which numbers so large lose digits, and users would count as "
            "one: give whole numbers in an integer type, or strings"
        )
    names, owner = np.unique(owners, return_inverse=True)
    if owners.dtype.kind in "US" and (absent := _ABSENT & {_as_text(name).strip().lower() for name in names.tolist()}):
        raise UsageError(f"users hold {min(absent)!r}, text for what is missing: {_EACH_ITS_USER}")
    order = np.lexsort((_priorities(_told_apart(users, names), owner, rng), owner))
    starts = np.searchsorted(owner[order], np.arange(len(names)))
    counts = np.diff(np.append(starts, len(owners)))
    place = np.arange(most)
    mask = place < counts[:, None]
    rows = order[starts[:, None] + np.where(mask, place, 0)]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], records), mask


def _told_apart(users: Any, names: np.ndarray) -> list[str]:
    """The names as text; refuses two that may be of one user, and one that NumPy has made of two."""
    written, seen = list(map(_written, names.tolist())), {}
    for name, text in zip(names.tolist(), written, strict=True):
        if (other := seen.setdefault(_read(text), name)) is not name:
            raise UsageError(
                f"users hold {other!r} and {name!r}, which may be one user, and would be two rows of twice the weight: "
                "write each name in one way"
            )
    given = users if isinstance(users, list | tuple) else ()
    for name in given:
        if isinstance(name, str | bytes) and _as_text(name).endswith("\0"):
            raise UsageError(f"users hold {name!r}, of which NumPy drops the end, and two may become one: leave it out")
    return written


def _read(text: str) -> str:
    """What people take for the same name: without blanks around it, in one Unicode form, of a whole number without decimals."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", unicodedata.normalize("NFC", text.strip()))


def _as_text(name: str | bytes) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else name


def _on_host(name: str, given: Any) -> np.ndarray:
    """An array of numbers or strings; refuses what is neither, and what is traced."""
    if isinstance(given, Tracer):
        raise UsageError(f"{name} are traced by jax: group records on the host, outside of jax.jit")
    if isinstance(given, np.ma.MaskedArray):
        raise UsageError(f"{name} are a masked array, and its mask would be lost: leave out what is masked")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} are no array ({error}): give [records], numbers or strings") from error
    if array.dtype.kind not in "biufcUS" and not _checks.is_array(array):
        raise UsageError(f"{name} are {array.dtype}: give [records], numbers or strings, none of them missing")
    return array


def _priorities(names: list[str], owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random numbers of each user's records that depend on nobody else's: whoever joins or leaves changes no other user's row."""
    seed = rng.bytes(16)
    by_user = np.argsort(owner, kind="stable")
    priorities = np.empty(len(owner), np.uint64)
    for name, records in zip(names, np.split(by_user, np.flatnonzero(np.diff(owner[by_user])) + 1), strict=True):
        bits = hashlib.shake_256(seed + name.encode("utf-8", "surrogatepass")).digest(8 * len(records))
        priorities[records] = np.frombuffer(bits, "<u8")
    return priorities


def _written(name: Any) -> str:
    """A user's name in the same text whatever type NumPy has found for all of them, which one more user can change."""
    if isinstance(name, str | bytes):
        text = _as_text(name)
        return text.removesuffix(".0") if re.fullmatch(r"-?\d+\.0", text) else text  # of whole floats beside text
    return str(int(name.real)) if np.isfinite(name) and name == int(name.real) else repr(name)


def loss_of_user(loss_fn: Callable[..., Float[Array, ""]]) -> Callable[..., Float[Array, ""]]:
    """The loss of a user: the mean of `loss_fn(params, record, *shared)` over their records.

    Args:
        loss_fn: the loss of one record; a scalar, without auxiliary data. One that takes `rng=` (dropout) gets a key of its own
            for each record.

    Returns:
        A function of `(params, (records, mask), *shared)`, as `jaxdp.clipped_grad` and `make_step` take it for the arrays that
        `group_by_user` gives, which takes `rng=` where `loss_fn` does. A user with fewer records weighs as much as one with many.
    """

    def mean(
        params: Params, user: tuple[Any, Bool[Array, " k"]], shared: tuple[Any, ...], **keys: Any
    ) -> Float[Array, ""]:
        records, mask = user
        losses = jax.vmap(lambda record, key: loss_fn(params, record, *shared, **key))(records, keys)
        total = jnp.sum(jnp.where(mask, losses, jnp.zeros((), losses.dtype)))
        return total / jnp.maximum(jnp.sum(mask), 1).astype(losses.dtype)

    if takes_rng(loss_fn):
        return lambda params, user, *shared, rng: mean(params, user, shared, rng=jax.random.split(rng, user[1].size))
    return lambda params, user, *shared: mean(params, user, shared)
