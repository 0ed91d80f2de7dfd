"""Random bits as a function of a key and an array's index: Threefry-2x32 with 20 rounds, the generator of JAX's own keys.

On a CPU, JAX runs the rounds as a loop over arrays, each round through memory, which takes several times as long as all the
rest of a normal draw. Written out, the rounds fuse with what reads the bits: no memory, and one pass on every device.

References:
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011, section 4 and figure 2.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from ..._block import Block
from ..._errors import UsageError

_FEW = 2**13  # elements
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def draw_bits(key: UInt32[Array, " 2"], shape: tuple[int, ...]) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """64 random bits for each element of an array.

    Args:
        key: two words, used here and nowhere else.
        shape: of the array; fewer than 2^32 elements behind each index of the first axis.

    Returns:
        Two uint32 arrays of that shape.

    Raises:
        UsageError: for a shape with more elements than counters.
    """
    if not shape:
        return draw_row(key, 0, shape)
    _check_counters(shape)
    return threefry(key, jax.lax.broadcasted_iota(jnp.uint32, shape, 0), _positions(shape[1:])[None])


def draw_row(
    key: UInt32[Array, " 2"], row: int, shape: tuple[int, ...], block: Block | None = None
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """What `draw_bits` gives at an index of the first axis of an array, by itself: bits [*shape], or a block of them."""
    _check_counters((row + 1, *shape))
    return threefry(key, jnp.uint32(row), _positions(shape, block))


def draw_rows(
    key: UInt32[Array, " 2"], rows: Sequence[int], shape: tuple[int, ...]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """The same at several indices, in one array: bits [k, *shape]."""
    _check_counters((max(rows) + 1, *shape))
    first = np.asarray(rows, np.uint32).reshape(-1, *[1] * len(shape))
    return threefry(key, jnp.broadcast_to(first, (len(rows), *shape)), _positions(shape)[None])


def draw_beginnings(
    key: UInt32[Array, " 2"], rows: Sequence[int], lengths: Sequence[int]
) -> tuple[UInt32[Array, " n"], UInt32[Array, " n"]]:
    """The first bits of several rows, so many of each, one row behind another: [n], all lengths together."""
    _check_counters((max(rows) + 1, max(lengths)))
    first = np.repeat(np.asarray(rows, np.uint32), lengths)
    second = np.concatenate([np.arange(length, dtype=np.uint32) for length in lengths])
    return threefry(key, jnp.asarray(first), jnp.asarray(second))


def _check_counters(shape: tuple[int, ...]) -> None:
    if max(math.prod(shape[1:]), shape[0]) >= 2**32:
        raise UsageError(
            f"shape {shape} has 2^32 elements or more along its first axis or behind it, more than there are counters: "
            "split the array"
        )


def _positions(shape: tuple[int, ...], block: Block | None = None) -> UInt32[Array, "..."]:
    """The place of each element of an array, or of each in a block of it.

    Of few elements it is a constant: a TPU's compiler would make it of several small arrays, an operation each.
    """
    if block is None and math.prod(shape) <= _FEW:
        return jnp.asarray(np.arange(math.prod(shape), dtype=np.uint32).reshape(shape))
    starts, lengths = block or Block((0,) * len(shape), shape)
    position = jnp.zeros(lengths, jnp.uint32)
    for axis in range(len(shape)):
        index = jax.lax.broadcasted_iota(jnp.uint32, lengths, axis) + jnp.uint32(starts[axis])
        position += index * jnp.uint32(math.prod(shape[axis + 1 :]))
    return position


def threefry(
    key: UInt32[Array, " 2"], first: UInt32[Array, "..."], second: UInt32[Array, "..."]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """The block cipher: two words out for each two words in.

    The rounds are JAX's primitives, since its arrays' operators take several times as long to trace.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = jnp.broadcast_arrays(first + schedule[0], second + schedule[1])
    of = partial(jax.lax.full_like, x)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = jax.lax.add(x, y)
            left, right = jax.lax.shift_left(y, of(rotation)), jax.lax.shift_right_logical(y, of(32 - rotation))
            y = jax.lax.bitwise_xor(x, jax.lax.bitwise_or(left, right))
        x += schedule[(group + 1) % 3]
        y += schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y
