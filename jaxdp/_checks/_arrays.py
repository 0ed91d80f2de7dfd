"""Checks of arrays, keys and trees of them, and what counts as an array of numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._errors import UsageError
from ._plain import whole

THREEFRY = "threefry2x32"  # JAX's name of the generator of its default keys
_FEW = 2**20  # numbers that come to the host sooner than a program that looks at them is compiled


def step(name: str, value: Any) -> int:
    """`value`, a scalar array too, as the number of a step: whole, from 0 on, and such as 32 bits can hold."""
    fix = "give the number of a step, counted from 0"
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.shape == () and is_real(value):
        value = np.asarray(value)[()]
    number = whole(name, value, fix)
    if number >= 2**31 - 1:
        raise UsageError(f"{name}={number} is too large: {fix}")
    return number


def key(value: Any, name: str = "key", *, of_noise: bool = True) -> None:
    """Refuse what is not a scalar JAX key, and of what noise is drawn by, other generators than Threefry.

    JAX's "rbg" draws for all keys of a `jax.vmap` by the first of them, and other numbers where arrays are divided otherwise;
    keys that "unsafe_rbg" splits may coincide.
    """
    if not isinstance(value, jax.Array) or not is_key(value) or value.shape != ():
        # The words of keys are as secret as the noise that is drawn by them: an error, which gets into logs, shows none.
        given = f", an array of {value.dtype} {list(value.shape)}," if is_array(value) else f"={value!r}"
        raise UsageError(
            f"{name}{given} is not a scalar JAX key: pass jaxdp.key_from_entropy(), or jax.random.key(seed) in a test"
        )
    implementation = jax.random.key_impl(value)
    if of_noise and implementation != THREEFRY:
        raise UsageError(
            f"{name} is of the generator {implementation!r}, by which different keys may draw the same noise: pass "
            f"jaxdp.key_from_entropy(), or jax.random.key(seed, impl={THREEFRY!r}) in a test"
        )


def is_key(value: Any) -> bool:
    """Whether an array, or the shape and dtype of one, is of JAX's keys."""
    return jnp.issubdtype(getattr(value, "dtype", jnp.float32), jax.dtypes.prng_key)


def words(value: Any) -> Any:
    """A key's words, and everything else as it is."""
    return jax.random.key_data(value) if is_key(value) else value


def key_with_value(value: Any, name: str = "key") -> None:
    """Refuse what is not a scalar JAX key, or is traced."""
    key(value, name)
    if isinstance(value, Tracer):
        raise UsageError(f"{name} is traced by jax; its words are needed on the host: call it outside of jax.jit")


def is_array(value: Any) -> bool:
    """Whether `value` is an array of numbers, bools or keys, traced or not, or the shape and dtype of one."""
    dtype = getattr(value, "dtype", None)
    if not hasattr(value, "shape") or dtype is None:
        return False
    if getattr(dtype, "char", None) in ("m", "g", "G"):  # spans of time, which NumPy counts among integers, and 80 bits
        return False
    if not getattr(dtype, "isnative", True):
        return False
    return jnp.issubdtype(dtype, jax.dtypes.extended) or jnp.issubdtype(dtype, np.number) or dtype == np.bool_


def only_looks_like_an_array(value: Any) -> bool:
    """Whether it has a shape and is none of NumPy's or JAX's, as what is read from a file whole, each time that it is used."""
    return hasattr(value, "shape") and not isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def is_number(value: Any) -> bool:
    """Whether `value` is an array as `is_array` says, of values, or a plain Python number or bool."""
    if isinstance(value, int) and not isinstance(value, bool):
        limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(int))
        return limits.min <= value <= limits.max
    has_values = is_array(value) and not isinstance(value, jax.ShapeDtypeStruct)
    return has_values or isinstance(value, bool | float | complex)


def is_real(value: Any) -> bool:
    """Whether `value` is a number or an array of floating-point or whole numbers: no bools, keys or complex numbers."""
    return is_number(value) and any(jnp.issubdtype(jnp.result_type(value), kind) for kind in (np.floating, np.integer))


def numbers_alone(name: str, tree: Any, fix: str, *, real: bool = False) -> None:
    """Refuse a pytree with a leaf that is no array of numbers and no number: a string, a function, an object."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        taken_as_it_is(name, leaf, fix, path)
        if not (is_real(leaf) if real else is_array(leaf) or is_number(leaf)):
            kind = f"an array of {leaf.dtype}" if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
            raise UsageError(
                f"{name}{jax.tree_util.keystr(path)} is {kind} and no array of {'real ' * real}numbers: {fix}"
            )


def has_nan(value: Any, *, or_infinity: bool = False) -> bool:
    """Whether an array holds NaN, or infinity; False where that can't be seen, in a traced one or a shape."""
    if isinstance(value, Tracer | jax.ShapeDtypeStruct) or not getattr(value, "is_fully_addressable", True):
        return False
    with jax.ensure_compile_time_eval():  # for what is known while something else is traced
        given = jnp.asarray(value)
        if not jnp.issubdtype(given.dtype, jnp.floating):
            return False
        if given.size < _FEW and given.is_fully_replicated:
            given = np.asarray(given.addressable_data(0))  # of the user's own array JAX would keep the copy
        there = np if isinstance(given, np.ndarray) else jnp
        return bool(there.isnan(given).any() or (or_infinity and there.isinf(given).any()))


def held(name: str, array: np.ndarray | jax.Array) -> None:
    """Refuse whole numbers that JAX would wrap around in the type in which it takes an array of the host's."""
    taken = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype)) if array.dtype.kind in "iu" else array.dtype
    if taken == array.dtype or not array.size:
        return
    limits, ends = np.iinfo(taken), (int(array.min()), int(array.max()))
    if wrong := [end for end in ends if not limits.min <= end <= limits.max]:
        raise wrapped_around(name, wrong[0], array.dtype, taken)


def wrapped_around(name: str, value: Any, given: np.dtype, taken: np.dtype) -> UsageError:
    """The error of a whole number that the type in which JAX takes a given one doesn't hold."""
    return UsageError(
        f"{name} holds {value}, and JAX takes {given} as {taken}: give smaller numbers, or call "
        "jax.config.update('jax_enable_x64', True) first"
    )


def unmasked(name: str, value: Any, fix: str) -> None:
    """Refuse NumPy's masked arrays, whose masks JAX and NumPy drop."""
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{name} is a masked array, and its mask would be lost: give its .filled(...) ({fix})")


def taken_as_it_is(name: str, value: Any, fix: str, path: tuple[Any, ...] = ()) -> None:
    """Refuse NumPy's arrays that JAX doesn't take, or only without their masks: masked ones, and those in another byte order.

    `path` is where in the pytree of that name the value is.
    """
    if not isinstance(value, np.ndarray):
        return
    place = name + jax.tree_util.keystr(path)
    unmasked(place, value, fix)
    if not value.dtype.isnative:
        raise UsageError(
            f"{place} is of {value.dtype.str}, in another machine's byte order: give "
            f"array.astype(array.dtype.newbyteorder('=')) ({fix})"
        )


def native(given: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    """The same numbers in this machine's byte order, the only one that JAX takes."""
    if isinstance(given, np.ndarray) and not given.dtype.isnative:
        return given.astype(given.dtype.newbyteorder("="))
    return given


def array(name: str, value: Any, fix: str) -> np.ndarray | jax.Array:
    """`value` as an array: JAX's as it is, all else, lists as well, on the host; refuses what holds anything but numbers."""
    if isinstance(value, Tracer):
        raise UsageError(
            f"{name} is traced by jax; this is computed on the host: call it outside of jax.jit and jax.vmap"
        )
    unmasked(name, value, fix)
    try:
        given = value if isinstance(value, jax.Array) else np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:  # rows of several lengths, mostly
        raise UsageError(f"{name} is no array ({error}): {fix}") from error
    given = native(given)
    if not is_array(given) or jnp.issubdtype(given.dtype, jax.dtypes.extended):
        raise UsageError(f"{name} is {type(value).__name__} of {given.dtype} and no array of numbers: {fix}")
    return given
