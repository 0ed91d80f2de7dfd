r"""Gaussian noise with tails deep enough for the delta that is claimed.

`jax.random.normal` inverts the normal distribution at a float32 uniform. Such uniforms stop at \(2^{-24}\) from 1, so no
value lies beyond about ±5.4. An output that only one of two neighbouring data sets can produce has then a probability of
about \(\Pr[N > 5.4 - 1/\sigma]\) a step, which over the steps of a usual run exceeds a delta of 1e-5: the guarantee that
the accountant computes for a true Gaussian would not hold for what is drawn.

The Box-Muller transform reaches far deeper. Each normal spends 64 bits on the radius \(r = \sqrt{-2 \ln u}\) and the angle. Of
most, 32 + 8 go to `u` and 24 to the angle. Where the first 32 are all zero, which is where the tail is, `u` takes the other 32
as well: it has a point for each \(2^{-64}\), and r ends at \(\sqrt{2 \cdot 73 \ln 2} = 10.06\). The angle is then those same 32
bits times an odd number near \(2^{32}/\varphi\) (the golden ratio, Fibonacci hashing): successive points of the radius stand
around the circle evenly, as Kronecker's sequence does. What lies beyond `LARGEST_NORMAL`, where 16 such points remain, is taken
as missing: \(2^{-60}\) of all radii. `jaxdp.accounting` takes what that costs from delta (`jaxdp.accounting._reach`).

`u` is made as a small number with full float32 precision near zero. The transform's second normal, by the angle's sine, is not
used: without it each element is a function of its own index, and fuses into a single pass.

What remains is the discreteness of float32 itself (Mironov, "On significance of the least significant bits for
differential privacy", 2012), and that JAX's generators are not cryptographic.
"""

import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

from ... import _checks
from ..._block import Block
from ..._errors import UsageError
from ..._platform import default_device, default_platform
from .._keys import Domain, own_key
from ._threefry import draw_beginnings, draw_bits, draw_row, draw_rows

LARGEST_NORMAL = math.sqrt(2 * 60 * math.log(2))  # 9.12: up to there draws follow the normal law; they end at 10.06
MOST_VALUES = 2**34  # of a tree: for so many, what lies beyond is accounted
_GOLDEN = 0x9E3779B1
_LARGE = 2**16  # values of a leaf
_ROOT_OF_HALF = 0x3F3504F3  # its bits
# Of the least largest error: sin(x) / x in x² on half a circle, and (log(1 + f) - f) / f² between the roots of 1/2 and 2.
_SINE = (1.0, -1.66666605e-01, 8.33308817e-03, -1.98111127e-04, 2.60893262e-06)
_LOGARITHM = (
    *(-0.49999992, 0.3333395, -0.25001755, 0.19962072),
    *(-0.16570508, 0.14917974, -0.1430752, 0.08734839),
)
_NO_BLOCKS: Mapping[int, Block] = MappingProxyType({})


def standard_normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Independent standard normals in float32, within ±10.06, by their law up to ±9.12.

    Args:
        key: a scalar key, used here and nowhere else.
        shape: the shape to draw.

    Returns:
        float32 array of that shape.

    References:
        Box and Muller, "A note on the generation of random normal deviates", 1958.
    """
    _checks.key(key)
    key = jax.random.bits(own_key(key, Domain.NORMAL), (2,), jnp.uint32)
    return _normal(*draw_bits(key, _checks.shape(shape)))


def tree_normal(key: Key[Array, ""], tree: Any, blocks: Mapping[int, Block] = _NO_BLOCKS) -> Any:
    """Standard normals shaped like `tree`, no two of them from the same bits.

    Each value is a function of its leaf's number and its own index, in whatever arrays they are drawn. On a CPU's only device the
    smallest leaves are one array, and elsewhere small leaves of one shape: of a deep model one draw is compiled, not hundreds.
    Others are drawn where they are added, which takes no memory, and of a leaf that is divided over devices each draws its own
    part.

    Args:
        key: a scalar key, used here and nowhere else.
        tree: a pytree of arrays or of anything with a `shape`.
        blocks: of leaves, by their number, of which a block alone is wanted: the same values as it has in the whole.

    Returns:
        A pytree of float32 arrays of the same structure and shapes, or the shapes of the blocks.

    Raises:
        UsageError: for more than 2^34 values.
    """
    _checks.key(key)
    leaves, treedef = jax.tree.flatten(tree)
    for leaf in leaves:
        if not hasattr(leaf, "shape"):
            raise UsageError(f"tree has the leaf {leaf!r}, which has no shape: give arrays, or jax.ShapeDtypeStruct")
    if (values := sum(math.prod(leaf.shape) for leaf in leaves)) > MOST_VALUES:
        raise UsageError(
            f"the tree has {values:,} values, more than the {MOST_VALUES:,} for which the end of the noise is accounted: train "
            "fewer parameters at a time"
        )
    normals, words = list(leaves), jax.random.bits(own_key(key, Domain.TREE_NORMAL), (2,), jnp.uint32)
    sizes = [0 if i in blocks else math.prod(leaf.shape) for i, leaf in enumerate(leaves)]
    alike: dict[tuple[int, ...], list[int]] = {}
    if smallest := _smallest(sizes):
        lengths = [sizes[i] for i in smallest]
        drawn = _apart_on_cpus(_normal(*draw_beginnings(words, smallest, lengths)))
        for i, normal in zip(smallest, jnp.split(drawn, np.cumsum(lengths)[:-1]), strict=True):
            normals[i] = normal.reshape(leaves[i].shape)
    for i in sorted(set(range(len(leaves))).difference(smallest)):
        alike.setdefault(tuple(leaves[i].shape), []).append(i)
    for shape, members in alike.items():
        if math.prod(shape) < _LARGE and len(members) > 1 and blocks.keys().isdisjoint(members):
            drawn = list(_apart_on_cpus(_normal(*draw_rows(words, members, shape))))
        else:
            drawn = [_normal(*draw_row(words, i, shape, blocks.get(i))) for i in members]
        for i, normal in zip(members, drawn, strict=True):
            normals[i] = normal
    return treedef.unflatten(normals)


def _smallest(sizes: list[int]) -> list[int]:
    """The numbers of the smallest sizes above zero, as many as are drawn as one array.

    None where there are several devices: a compiler that divides a leaf over them would divide that array, and move its parts.
    """
    if default_device().client.device_count() > 1:
        return []
    most, ascending = default_platform().draws_together, sorted((size, i) for i, size in enumerate(sizes) if size)
    in_all = itertools.accumulate(size for size, _ in ascending)
    found = [i for (_, i), until in zip(ascending, in_all, strict=True) if until <= most]
    return sorted(found) if len(found) > 1 else []


def _apart_on_cpus(drawn: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same, made once: XLA's CPU compiler would fuse all of it into each leaf's own slice, and compile it as often."""
    return jax.lax.platform_dependent(drawn, cpu=jax.lax.optimization_barrier, default=lambda drawn: drawn)


def _normal(first: UInt32[Array, "..."], others: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """A normal from 64 bits."""
    deep = first == 0
    return _radius(first, others) * _cosine(jnp.where(deep, others * jnp.uint32(_GOLDEN), others) >> jnp.uint32(8))


def _radius(first: UInt32[Array, "..."], others: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """sqrt(-2 ln u), exact to float32 where u is small; zero where u comes out as 1.

    u is (first 2^8 + low + 1/2) 2^-40, with the lowest eight bits of `others`; where `first` is zero, all of `others` take its
    place and u is (others 2^8 + low + 1/2) 2^-72: a point of each 2^-64.
    """
    deep = first == 0
    low = (others & jnp.uint32(0xFF)).astype(jnp.float32) + 0.5
    u = jnp.where(deep, others, first).astype(jnp.float32) * jnp.float32(2**-32) + low * jnp.float32(2**-40)
    u = jnp.minimum(u, 1) * jnp.where(deep, jnp.float32(2**-32), jnp.float32(1))
    return jnp.sqrt(-2 * jax.lax.platform_dependent(u, cpu=_logarithm, default=jnp.log))


def _logarithm(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """The natural logarithm of normal float32 numbers, to 3e-8 relatively but for rounding.

    XLA's own is as much work on a CPU as all the bits, since it minds numbers that aren't drawn. With u = 2^e (1 + f) and 1 + f
    between the roots of 1/2 and 2, it is e ln 2 + f + f² Q(f).
    """
    bits = jax.lax.bitcast_convert_type(u, jnp.int32)
    exponent = (bits - _ROOT_OF_HALF) >> 23
    f = jax.lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1
    return exponent.astype(jnp.float32) * jnp.float32(math.log(2)) + (f + f * f * _polynomial(_LOGARITHM, f))


def _cosine(angle: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """The cosine of a uniform angle of 24 bits, counted from -π/4: a sine on half the circle, with a sign, to 2e-7.

    XLA's own reduces arguments of any size, which costs more than all the rest of the transform.
    """
    turned = angle + jnp.uint32(2**21 + 2**22)  # where half a circle begins with the sine's zero in its middle
    x = (turned & jnp.uint32(0x7FFFFF)).astype(jnp.float32) - jnp.float32(2**22 - 0.5)
    x *= jnp.float32(math.pi / 2**23)
    sine = x * _polynomial(_SINE, x * x)
    return jnp.where(turned & jnp.uint32(2**23) == 0, sine, -sine)


def _polynomial(coefficients: tuple[float, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """By Horner's rule, from the constant term on."""
    *others, total = coefficients
    for coefficient in reversed(others):
        total = total * x + jnp.float32(coefficient)
    return jnp.asarray(total)
