"""Random losses against the per-example loop: no example may pass unclipped, whatever the loss does with its parameters.

A program is drawn from a seed: a source of rows (numbers, lookups by ids of any integer type and mode, convolutions, Fourier
transforms), a few layers in which parameters are used in every way that the rules name and in ways that they don't (tied,
transposed, stacked and indexed, complex, in eight bits, behind custom gradients, in loops, branches and rematerialised
bodies), and settings: precision, mask, bad examples, clip rule, microbatches. `check` holds `clipped_grad` to the loop.

    python tests/fuzz_models.py --programs 1000 --seed 0      # by hand; the slow tests run a hundred
    python tests/fuzz_models.py --minutes 60
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from oracle import distance, norm_of, widened

import jaxdp
from jaxdp._platform import compiling_for
from jaxdp.clipping import _clipped_grad
from jaxdp.clipping._arithmetic import arithmetic_of

Layer = Callable[[Any, Any, Any], Any]  # (params, example, rows) -> rows [T, d]

ROUNDING = {"float32": 2e-3, "float64": 2e-3, "bfloat16": 0.2, "float16": 0.05}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
MODES = ("clip", "fill", "promise_in_bounds")


@dataclass
class Program:
    """A loss under construction: its parameters, its example's arrays, and the width of its rows."""

    random: np.random.Generator
    dtype: str
    params: dict[str, Any] = field(default_factory=dict)
    example: dict[str, Any] = field(default_factory=dict)
    layers: list[tuple[str, Layer]] = field(default_factory=list)
    length: int = 1
    first_width: int = 1
    width: int = 1
    rounding: float = 0.0
    batch: int = 1

    def one_of(self, *choices: Any) -> Any:
        return choices[self.random.integers(len(choices))]

    def weight(self, *shape: int) -> str:
        """A new parameter, or one that is there with that shape."""
        alike = [name for name, leaf in self.params.items() if leaf.shape == shape]
        if alike and self.random.random() < 0.3:
            return str(self.random.choice(alike))
        name = f"p{len(self.params)}"
        scale = 1 / math.sqrt(max(1, math.prod(shape[:-1])))
        self.params[name] = jnp.asarray(self.random.normal(size=shape) * scale, self.dtype)
        return name

    def data(self, value: np.ndarray) -> str:
        """A new array of the example, [B, ...]."""
        name = f"x{len(self.example)}"
        self.example[name] = jnp.asarray(value)
        return name

    def add(self, layer: Layer, name: str) -> None:
        self.layers.append((name, layer))

    def loss(self, params: Any, example: Any) -> Any:
        rows = jnp.zeros((self.length, self.first_width), self.dtype)
        for _, layer in self.layers:
            rows = layer(params, example, rows)
        total = jnp.sum(jnp.sin(rows) * jnp.arange(1, rows.shape[-1] + 1, dtype=rows.dtype))
        return total.astype(self.dtype)


# Sources: each replaces the rows by [length, width] made of the example.


def numbers(program: Program) -> None:
    name = program.data(program.random.normal(size=(program.batch, program.length, program.width)).astype("float32"))
    program.add(lambda p, x, rows: x[name].astype(rows.dtype), "numbers")


def lookup(program: Program) -> None:
    """A gather by ids of any type; a few lie outside the table."""
    kind, mode = program.one_of(*INTEGERS), program.one_of(*MODES)
    how = program.one_of("take", "take", "gather", "an index", "wrapping")
    entries, width = program.one_of(3, 7, 130, 256, 300), program.width
    highest = min(entries, np.iinfo(kind).max + 1)
    ids = program.random.integers(0, highest, size=(program.batch, program.length))
    if mode != "promise_in_bounds" and program.random.random() < 0.3:
        is_narrow = entries - 1 > np.iinfo(kind).max  # counting from the end wraps there, in JAX itself
        low = 0 if is_narrow else max(-entries - 3, np.iinfo(kind).min)
        high = min(entries + 100, np.iinfo(kind).max + 1)
        ids = program.random.integers(low, high, size=ids.shape)
    name, table = program.data(ids.astype(kind)), program.weight(entries, width)
    pooled = program.random.random() < 0.3
    rows_of_table = jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))

    def layer(p: Any, x: Any, rows: Any) -> Any:
        if how == "gather" or mode == "promise_in_bounds":
            found = jax.lax.gather(p[table], x[name][:, None], rows_of_table, (1, width), mode=mode, fill_value=0)
        elif how == "an index" and entries <= np.iinfo(kind).max:  # JAX itself refuses longer tables
            found = p[table][x[name]]
        elif how == "wrapping" and entries <= np.iinfo(kind).max:
            found = jnp.take(p[table], x[name], axis=0, mode="wrap")
        else:
            found = jnp.take(p[table], x[name], axis=0, mode=mode, fill_value=0 if mode == "fill" else None)
        return rows + (jnp.sum(found, axis=0, keepdims=True) if pooled else found)

    program.add(layer, f"lookup of {entries} by {kind}, {how}, mode {mode}, pooled {pooled}")


def two_axis_lookup(program: Program) -> None:
    kind = program.one_of(*INTEGERS)
    sizes = program.one_of((4, 5), (2, 100), (20, 20))
    first, second = (
        program.random.integers(0, min(n, np.iinfo(kind).max + 1), size=(program.batch, program.length)).astype(kind)
        for n in sizes
    )
    a, b, table = program.data(first), program.data(second), program.weight(*sizes, program.width)
    program.add(lambda p, x, rows: rows + p[table][x[a], x[b]], f"lookup on two axes by {kind}")


def single_rows(program: Program) -> None:
    """Rows, columns and entries at one index each, which JAX writes as dynamic slices; a few indices lie outside."""
    kind, how = (
        program.one_of(*INTEGERS),
        program.one_of("row", "row", "column", "entry", "two axes", "mapped", "slice"),
    )
    info = np.iinfo(kind)  # of longer tables, JAX 0.10 clamps an index of that type at a wrong end, but not under vmap
    entries, width = program.one_of(*(n for n in (3, 7, 128, 130, 256, 300) if n - 1 <= info.max)), program.width
    shapes = {"column": (width, entries), "entry": (entries,), "two axes": (entries, 3, width)}
    low, high = (0, entries) if program.random.random() < 0.7 else (-entries - 3, entries + 100)
    low, high = max(low, int(info.min)), min(high, int(info.max) + 1)
    ids = program.random.integers(low, high, size=(program.batch, 3)).astype(kind)
    name, table = program.data(ids), program.weight(*shapes.get(how, (entries, width)))
    alone = how == "slice" or entries > info.max  # where JAX itself refuses an index of that type

    def found(p: Any, i: Any, j: Any) -> Any:
        weight = p[table]
        if how == "column":
            return jax.lax.dynamic_slice(weight, (j * 0, i), (width, 1))[:, 0] if alone else weight[:, i]
        if how == "entry":
            return jax.lax.dynamic_slice(weight, (i,), (1,))[0] if alone else weight[i]
        if how == "two axes":
            return jax.lax.dynamic_slice(weight, (i, j, j), (1, 1, width))[0, 0] if alone else weight[i, j % 3]
        return jax.lax.dynamic_slice(weight, (i, j), (1, width))[0] if alone else weight[i]

    def layer(p: Any, x: Any, rows: Any) -> Any:
        if how == "mapped":
            return rows + jnp.sum(jax.lax.map(lambda i: found(p, i, i), x[name]), axis=0)
        first, second, third = x[name]
        return rows + found(p, first, second) * jnp.tanh(found(p, third, first))

    program.add(layer, f"single rows of {entries} by {kind}, {how}")


def convolution(program: Program) -> None:
    side, channels = program.one_of(3, 5), program.one_of(1, 2, 8)
    groups, width = program.one_of(1, channels), program.width
    image = program.random.normal(size=(program.batch, side, side, channels)).astype("float32")
    name, kernel = program.data(image), program.weight(2, 2, channels // groups, groups * width)
    strides, padding = program.one_of((1, 1), (2, 1)), program.one_of("SAME", "VALID")

    def layer(p: Any, x: Any, rows: Any) -> Any:
        out = jax.lax.conv_general_dilated(
            x[name][None].astype(rows.dtype),
            p[kernel],
            strides,
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
        return rows + jnp.resize(out.reshape(-1, width), rows.shape)

    program.add(layer, f"convolution of {side}x{side}x{channels} in {groups} groups")


SOURCES = (numbers, lookup, two_axis_lookup, single_rows, convolution)


# Layers: each takes rows to rows of a width that it chooses.


def dense(program: Program) -> None:
    width = program.one_of(1, 3, 6)
    how = program.one_of("x @ w", "w.T @ x.T", "einsum", "dot_general", "by heads", "w @ x, flattened")
    old = program.width
    if how == "by heads" and old % 2 == 0:
        w = program.weight(2, old // 2, width)
        program.add(
            lambda p, x, rows: jnp.einsum("thp,hpd->td", rows.reshape(rows.shape[0], 2, -1), p[w]), "dense, by heads"
        )
    else:
        w = program.weight(old, width)
        forms: dict[str, Layer] = {
            "x @ w": lambda p, x, rows: rows @ p[w],
            "w.T @ x.T": lambda p, x, rows: (p[w].T @ rows.T).T,
            "einsum": lambda p, x, rows: jnp.einsum("io,ti->to", p[w], rows),
            "dot_general": lambda p, x, rows: jax.lax.dot_general(
                rows, p[w], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
            ).astype(rows.dtype),
            "by heads": lambda p, x, rows: jnp.tanh(rows) @ p[w],
            "w @ x, flattened": lambda p, x, rows: (rows.reshape(-1, p[w].shape[0]) @ p[w]).reshape(rows.shape[0], -1),
        }
        program.add(forms[how], f"dense, {how}")
    program.width = width


def contraction(program: Program) -> None:
    """Of axes in any order, with a weight that is transformed along some of them first; columns may differ in length."""
    random = program.random
    left, right, batch = "ij"[: random.integers(1, 3)], "op"[: random.integers(3)], "bc"[: random.integers(3)]
    size = {axis: int(random.integers(1, 5)) for axis in left + right + batch} | {"t": program.length}
    mixed = lambda axes: "".join(random.permutation(list(axes)))
    weight, other, out = mixed(left + right + batch), mixed("t" + left + batch), mixed("t" + right + batch)
    first, shape_of = random.random() < 0.5, lambda axes: tuple(size[axis] for axis in axes)
    along = tuple(weight.index(axis) for axis in program.one_of(left, left, left, left + batch, left + right, left[:1]))
    w, of_columns = program.weight(*shape_of(weight)), [1 if axis in left else size[axis] for axis in weight]
    spread = np.exp(program.one_of(0.0, 1.0, 3.0) * random.normal(size=of_columns))
    program.params[w] = (program.params[w] * spread).astype(program.dtype)
    gain, fixed = program.weight(*of_columns), jnp.asarray(random.normal(size=of_columns), program.dtype)
    kept = random.random(size=(program.batch, *shape_of(out))) < program.one_of(0.1, 1.0)
    kept = program.data((kept * random.normal(size=kept.shape)).astype("float32"))
    uneven = jnp.asarray(
        random.normal(size=shape_of(other.replace("t", ""))), program.dtype
    )  # nothing cancels when centred
    mean = lambda x: jnp.mean(x, axis=along, keepdims=True)
    size_of = lambda x: jnp.sqrt(mean(jnp.square(x)) + jnp.asarray(1e-5, x.dtype))
    centred = lambda x: x - mean(x)
    standardised = lambda x: centred(x) / size_of(centred(x))
    forms: dict[str, Callable[[Any], Any]] = {
        "as it is": lambda p: p[w],
        "standardised": lambda p: standardised(p[w]),
        "standardised, with a gain": lambda p: standardised(p[w]) * p[gain],
        "standardised, from two means": lambda p: (
            centred(p[w]) * jax.lax.rsqrt(mean(p[w] ** 2) - mean(p[w]) ** 2 + 0.1)
        ),
        "normalised": lambda p: p[w] / size_of(p[w]),
        "normalised, with a gain": lambda p: p[w] / size_of(p[w]) * (1 + p[gain]),
        "normalised twice": lambda p: standardised(p[w] / size_of(p[w])) + p[w],
        "centred": lambda p: centred(p[w]),
        "scaled": lambda p: p[w] * fixed + p[gain],
        "of length one by absolute values": lambda p: p[w] / (mean(jnp.abs(p[w])) + jnp.asarray(1e-3, p[w].dtype)),
        "softmax": lambda p: jax.nn.softmax(p[w], axis=along),
        "held": lambda p: p[w] / jax.lax.stop_gradient(size_of(p[w])),
        "squashed": lambda p: jnp.tanh(p[w]),
    }
    form = program.one_of(*forms)
    operands, backwards = ((weight, other), [1, 0]) if first else ((other, weight), [0, 1])

    def layer(p: Any, x: Any, rows: Any) -> Any:
        given = jnp.resize(jnp.sin(rows), (program.length, math.prod(shape_of(other)) // program.length))
        inner = other.replace("t", "")
        given = given.reshape(program.length, *shape_of(inner)) * uneven.astype(rows.dtype)
        given = jnp.transpose(given, [("t" + inner).index(axis) for axis in other])
        pair = [(given, forms[form](p).astype(rows.dtype))[i] for i in backwards]
        found = jnp.einsum(f"{operands[0]},{operands[1]}->{out}", *pair) * x[kept].astype(rows.dtype)
        return jnp.moveaxis(found, out.index("t"), 0).reshape(program.length, -1)

    spelled = f"{operands[0]},{operands[1]}->{out}"
    program.add(layer, f"{spelled} of {size}, {w} {form} along {along}, spread {float(np.ptp(np.log(spread))):.1f}")
    program.width = math.prod(shape_of(out)) // program.length


def bias_and_scale(program: Program) -> None:
    b, s = program.weight(program.width), program.weight(program.width)
    program.add(lambda p, x, rows: rows * p[s][None] + p[b][None], "bias and scale")


def there_and_back(program: Program) -> None:
    w = program.weight(program.width, program.one_of(2, 4))
    program.add(lambda p, x, rows: jnp.tanh(rows @ p[w]) @ p[w].T, "one weight and its transpose")


def transformed_weight(program: Program) -> None:
    w, width = program.weight(program.width, program.one_of(2, 5)), None
    width = program.params[w].shape[1]
    a, b = program.weight(program.width, 1), program.weight(1, width)
    fixed = jnp.asarray(program.random.normal(size=(program.width, width)), program.dtype)
    name = program.one_of("standardised", "low rank", "masked", "sorted", "padded", "held", "reversed", "concatenated")
    forms: dict[str, Callable[[Any], Any]] = {
        "standardised": lambda p: (
            (p[w] - jnp.mean(p[w], axis=0)) / (jnp.std(p[w], axis=0) + jnp.asarray(0.5, p[w].dtype))
        ),
        "low rank": lambda p: fixed + p[a] @ p[b],
        "masked": lambda p: jnp.where(fixed > 0, p[w], 0),
        "sorted": lambda p: jnp.sort(p[w], axis=0),
        "padded": lambda p: jnp.pad(p[w], ((1, 0), (0, 0)))[:-1],
        "held": lambda p: p[w] / jax.lax.stop_gradient(jnp.asarray(1, p[w].dtype) + jnp.linalg.norm(p[w])),
        "reversed": lambda p: p[w][::-1],
        "concatenated": lambda p: jnp.concatenate([p[w][:, :1], p[b].repeat(p[w].shape[0], 0)[:, 1:]], axis=1),
    }
    program.add(lambda p, x, rows: rows @ forms[name](p).astype(rows.dtype), f"weight {name}")
    program.width = width


def stacked_and_indexed(program: Program) -> None:
    w = program.weight(3, program.width, program.width)
    pick = program.data(program.random.integers(0, 3, size=(program.batch,)).astype(program.one_of(*INTEGERS)))

    def scanned_with_penalties(p: Any, x: Any, rows: Any) -> Any:
        layer = jax.checkpoint(lambda h, v: (jnp.tanh(h @ v), 0.1 * jnp.sum(v * v)))
        h, penalties = jax.lax.scan(layer, rows, p[w])
        return h + jnp.sum(penalties)

    def rematerialised_with_places(p: Any, x: Any, rows: Any) -> Any:
        h, places = jax.checkpoint(lambda h: (jnp.tanh(h), jnp.arange(h.shape[-1])))(rows)
        return h @ p[w][0][places]

    forms: dict[str, Layer] = {
        "by number": lambda p, x, rows: jnp.tanh(rows @ p[w][0]) @ p[w][2],
        "by the example": lambda p, x, rows: rows @ p[w][x[pick]],
        "dynamically": lambda p, x, rows: rows @ jax.lax.dynamic_index_in_dim(p[w], 1, keepdims=False),
        "in a loop": lambda p, x, rows: jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ p[w][i]), rows),
        "scanned": lambda p, x, rows: jax.lax.scan(lambda h, v: (jnp.tanh(h @ v), None), rows, p[w])[0],
        "scanned, rematerialised": lambda p, x, rows: jax.lax.scan(
            jax.checkpoint(lambda h, v: (jnp.tanh(h @ v), None)), rows, p[w]
        )[0],
        "scanned, rematerialised, with penalties": scanned_with_penalties,
        "rematerialised, with places": rematerialised_with_places,
    }
    how = program.one_of(*forms)
    program.add(forms[how], f"stacked weights, {how}")


def parts_of_weights(program: Program) -> None:
    """Parts of one weight, cut, indexed, split, gathered, joined and rearranged, or parts of parts: some overlap, some don't."""
    shape = (program.one_of(2, 4, 9), *(int(n) for n in program.random.integers(1, 4, size=2)))
    w, count = program.weight(*shape), int(program.random.integers(2, 8))
    usual = ("sliced", "sliced", "indexed", "dynamic")
    cuts = [program.one_of(*usual, *program.one_of((), ("split", "gathered", "whole"))) for _ in range(count)]
    axes = [program.one_of(0, 0, 0, 1, 2) for _ in range(count)]
    starts = [int(program.random.integers(0, shape[axis] + 1)) for axis in axes]
    bounds = [(low, low + int(program.random.integers(0, 4))) for low in starts]
    steps = program.random.integers(1, 3, size=count).tolist()
    orders = [program.random.permutation(3).tolist() for _ in range(count)]
    forms = [
        program.one_of("as it is", "as it is", "transposed", "flat", "reversed", "joined", "named", "behind a barrier")
        for _ in range(count)
    ]
    directly = program.random.random(count) < program.one_of(0.0, 0.4, 1.0)
    first = program.random.random(count) < 0.5  # cut out of a part that is cut out of the weight

    def cut(weight: Any, i: int) -> Any:
        axis, n = axes[i], weight.shape[axes[i]]
        low, high = (min(bound, n) for bound in bounds[i])
        at = min(low, n - 1)
        if cuts[i] == "sliced":
            return jax.lax.slice_in_dim(weight, low, high, steps[i], axis)
        if cuts[i] == "split":
            return jnp.split(weight, [low, high], axis=axis)[i % 3]
        if cuts[i] == "gathered":
            return jnp.take(weight, np.arange(n)[:: -steps[i]] if i % 2 else np.array([at, n - 1]), axis=axis)
        if cuts[i] == "dynamic":
            return jax.lax.dynamic_slice_in_dim(weight, low, max(min(high, n) - low, 1), axis)
        return jax.lax.index_in_dim(weight, at, axis, keepdims=False) if cuts[i] == "indexed" else weight

    def arranged(part: Any, i: int) -> Any:
        if forms[i] in ("named", "behind a barrier"):
            return checkpoint_name(part, "a part") if forms[i] == "named" else jax.lax.optimization_barrier(part)
        if forms[i] == "transposed":
            return jnp.transpose(part, [axis for axis in orders[i] if axis < part.ndim])
        if forms[i] == "flat":
            return part.reshape(-1)
        if forms[i] == "joined":
            return jnp.stack([part, part * 2]) if i % 2 else jnp.concatenate([part, part], axis=0)
        return part[::-1] if forms[i] == "reversed" else part

    def layer(p: Any, x: Any, rows: Any) -> Any:
        out = rows
        part_of_all = p[w][: shape[0] - 1]
        for i in range(count):
            whole = part_of_all if first[i] else p[w]
            part = arranged(cut(whole, i), i)
            part = part.reshape(math.prod(part.shape[:-1]), part.shape[-1])
            given = jnp.sin(jnp.resize(rows, (rows.shape[0], part.shape[0])))
            used = given @ part.astype(rows.dtype)
            if directly[i] and part.size:
                used = given[:, :1] * jnp.tanh(part[:1])
            out = out + jnp.sum(used, axis=1, keepdims=True)
        return jnp.tanh(out)

    what = ", ".join(
        f"{c} on {a} at {b} by {s}, {f}" for c, a, b, s, f in zip(cuts, axes, bounds, steps, forms, strict=True)
    )
    program.add(layer, f"parts of a weight {shape}: {what}, directly {directly.tolist()}")


def overlapping_pairs(program: Program) -> None:
    """Two places of a weight, apart from one another, at each of which two parts overlap; some are parts of a part."""
    w = program.weight(10, program.width)
    wholes = [program.one_of("the weight", "a part", "joined") for _ in range(4)]
    pairs = (
        [(0, int(program.random.integers(1, 4)), 0), (0, 3, 1)],
        [(5, 8, 2), (int(program.random.integers(4, 7)), 8, 3)],
    )
    other = program.weight(2, program.width)
    ruled = program.random.random() < 0.3

    def layer(p: Any, x: Any, rows: Any) -> Any:
        scale, whole = jnp.mean(rows), {"the weight": p[w], "a part": p[w][:9]}
        for low, high, i in (*pairs[0], *pairs[1]):
            joined = wholes[i] == "joined"
            part = jnp.concatenate([p[w][low:high], p[other]]) if joined else whole[wholes[i]][low:high]
            used = jnp.sin(rows) @ part.T if ruled and i > 1 else jnp.sin(part * scale)
            rows = rows + jnp.mean(used).astype(rows.dtype)
        return jnp.tanh(rows)

    program.add(layer, f"pairs of parts that overlap: {pairs} of {wholes}, by a rule: {ruled}")


def recurrent(program: Program) -> None:
    width = program.one_of(2, 4)
    w, u = program.weight(program.width, width), program.weight(width, width)
    reverse, carried = program.random.random() < 0.5, program.random.random() < 0.3

    def layer(p: Any, x: Any, rows: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            h, weight = carry
            h = jnp.tanh(row @ p[w] + h @ (weight if carried else p[u]))
            return (h, weight), h

        start = (jnp.zeros(width, rows.dtype), p[u])
        return jax.lax.scan(step, start, rows, reverse=reverse)[1]

    program.add(layer, f"recurrent, weights in the carry: {carried}")
    program.width = width


def branch(program: Program) -> None:
    w = program.weight(program.width, program.width)
    program.add(
        lambda p, x, rows: jax.lax.cond(
            jnp.sum(rows) > 0, lambda rows: rows @ p[w], lambda rows: jnp.sin(rows) @ p[w].T, rows
        ),
        "branch on the example",
    )


def custom_gradient(program: Program) -> None:
    w = program.weight(program.width, program.width)

    @jax.custom_vjp
    def scaled(weight: Any, rows: Any) -> Any:
        return rows @ weight

    def back(kept: Any, g: Any) -> Any:
        weight, rows = kept
        return jnp.asarray(3, g.dtype) * (rows.T @ g), g @ weight.T

    scaled.defvjp(lambda weight, rows: (rows @ weight, (weight, rows)), back)
    squashed = jax.custom_jvp(lambda weight, rows: jnp.tanh(rows @ weight))
    squashed.defjvp(lambda primals, tangents: (squashed(*primals), primals[1] @ tangents[0] + tangents[1] @ primals[0]))
    chosen = program.one_of(scaled, squashed)
    program.add(lambda p, x, rows: chosen(p[w], rows), f"custom gradient, {'vjp' if chosen is scaled else 'jvp'}")


def complex_numbers(program: Program) -> None:
    how = program.one_of("a spectrum by a real weight", "a complex weight", "a filter")
    w, v = program.weight(program.width, 3), program.weight(program.width, 3)
    f = program.weight(program.width)

    def layer(p: Any, x: Any, rows: Any) -> Any:
        single = rows.astype(jnp.float32)
        if how == "a filter":
            out = jnp.real(jnp.fft.ifft(jnp.fft.fft(single) * (1 + 1j * p[f][None].astype(jnp.float32))))
        elif how == "a complex weight":
            out = jnp.abs(single @ (p[w] + 1j * p[v]).astype(jnp.complex64))
        else:
            out = jnp.abs(jnp.fft.fft(single) @ p[w].astype(jnp.complex64))
        return jnp.tanh(out).astype(rows.dtype)

    program.add(layer, f"complex: {how}")
    program.width = program.width if how == "a filter" else 3


def narrow_types(program: Program) -> None:
    w = program.weight(program.width, 4)
    narrow = program.one_of("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    rows_too = program.random.random() < 0.5
    program.rounding = max(program.rounding, 0.6 if "float8" in narrow else 0.2)

    def layer(p: Any, x: Any, rows: Any) -> Any:
        weight, given = p[w].astype(narrow), rows
        if rows_too and "float8" not in narrow:
            return (given.astype(narrow) @ weight).astype(rows.dtype)
        return given @ weight.astype(rows.dtype)

    program.add(layer, f"a weight in {narrow}, rows too: {rows_too}")
    program.width = 4


def attention(program: Program) -> None:
    q, k = program.weight(program.width, 2), program.weight(program.width, 2)

    def layer(p: Any, x: Any, rows: Any) -> Any:
        return jax.nn.softmax((rows @ p[q]) @ (rows @ p[k]).T, axis=-1) @ rows

    program.add(jax.checkpoint(layer) if program.random.random() < 0.5 else layer, "attention")


def mapped_heads(program: Program) -> None:
    w = program.weight(2, program.width, 3)
    inner = jax.jit(lambda weight, rows: jnp.tanh(rows @ weight))
    program.add(
        lambda p, x, rows: jnp.sum(jax.vmap(inner, in_axes=(0, None))(p[w], rows), axis=0), "a map over two weights"
    )
    program.width = 3


def row_convolution(program: Program) -> None:
    w = program.weight(2, program.width, 3)

    def layer(p: Any, x: Any, rows: Any) -> Any:
        return jax.lax.conv_general_dilated(rows[None], p[w], (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))[0]

    program.add(layer, "a convolution over rows")
    program.width = 3


def regulariser(program: Program) -> None:
    w = program.weight(program.width)
    program.add(lambda p, x, rows: rows + jnp.sum(jnp.square(p[w])) * jnp.asarray(0.1, rows.dtype), "a regulariser")


LAYERS = (
    dense,
    dense,
    dense,
    bias_and_scale,
    there_and_back,
    transformed_weight,
    contraction,
    contraction,
    stacked_and_indexed,
    parts_of_weights,
    overlapping_pairs,
    recurrent,
    branch,
    custom_gradient,
    complex_numbers,
    narrow_types,
    attention,
    mapped_heads,
    row_convolution,
    regulariser,
    lookup,
    two_axis_lookup,
    single_rows,
    convolution,
)


@dataclass(frozen=True)
class Case:
    """A program with its settings."""

    seed: int
    program: Program
    x64: bool
    mask: np.ndarray
    rule: Any
    quantile: float
    microbatch_size: int | None
    method: str
    bad: float | None
    precision: str
    device: str

    def __str__(self) -> str:
        layers = "; ".join(name for name, _ in self.program.layers)
        shapes = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in self.program.params.items()}
        return (
            f"seed {self.seed}: {layers}\n  {shapes}, x64 {self.x64}, mask {self.mask.tolist()}, {self.rule}, microbatches of "
            f"{self.microbatch_size}, {self.method}, bad {self.bad}, {self.precision}, as on a {self.device}"
        )


def x64(on: bool) -> Any:
    return jax.enable_x64(True) if on else nullcontext()  # pyright: ignore[reportCallIssue]


def drawn(seed: int) -> Case:
    """The case of a seed."""
    random = np.random.default_rng(seed)
    wide = bool(random.random() < 0.25)
    dtype = str(random.choice(["float32"] * 6 + ["bfloat16", "float16"] + (["float64"] * 3 if wide else [])))
    with x64(wide):
        width = int(random.choice([1, 2, 4, 6]))
        program = Program(random, dtype, length=int(random.integers(1, 5)), first_width=width, width=width)
        program.batch = int(random.choice([1, 2, 3, 5]))
        program.rounding = ROUNDING[dtype]
        program.one_of(*SOURCES)(program)
        for _ in range(random.integers(1, 5)):
            program.one_of(*LAYERS)(program)
        if not program.params:
            dense(program)
    rules = [
        *(jaxdp.clipping.Flat(), jaxdp.clipping.Flat(), jaxdp.clipping.PerGroup(), jaxdp.clipping.Normalised()),
        jaxdp.clipping.Quantile(expected_batch_size=4.0),
    ]
    case = Case(
        seed=seed,
        program=program,
        x64=wide,
        mask=random.random(program.batch) < 0.8,
        rule=rules[random.integers(len(rules))],
        quantile=float(random.random()),
        microbatch_size=program.one_of(None, None, 1, 2),
        method=program.one_of("ghost", "ghost", "auto"),
        bad=program.one_of(None, None, None, math.nan, math.inf),
        precision=program.one_of("float32", "float32", "bfloat16", "tensorfloat32"),
        device=program.one_of("cpu", "cpu", "gpu", "tpu"),
    )
    return replace(case, device="gpu") if case.precision == "tensorfloat32" and case.device == "tpu" else case


class NoLossError(Exception):
    """JAX itself can't differentiate the program: a narrow index of a longer table, say."""


def check(case: Case) -> None:
    """Hold `clipped_grad` to the loop over single examples.

    Raises:
        AssertionError: where it is wrong, with the case.
        NoLossError: where there is nothing to hold it to.
    """
    with x64(case.x64), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), _as_on(case.device):
        _check(case)


@contextmanager
def _as_on(device: str) -> Iterator[None]:
    """Traced as for another device, which drops large gradients of transformed parameters: here, those of any size."""
    whatever_it_costs = lambda precision: replace(
        arithmetic_of(precision), least_transformed=0, transformed_costs=math.inf
    )
    if device == "cpu":
        yield
        return
    with compiling_for(device), patch.object(_clipped_grad, "arithmetic_of", whatever_it_costs):
        yield


def _check(case: Case) -> None:
    program, batch = case.program, dict(case.program.example)
    if case.bad is not None:
        floats = [name for name, leaf in batch.items() if jnp.issubdtype(leaf.dtype, jnp.floating)]
        for name in floats[:1]:
            batch[name] = batch[name].at[0].set(case.bad)
    gradients = _gradients(case, widened(batch))
    norms = [norm_of(g) for g in gradients]
    finite = [n for n in norms if math.isfinite(n) and n > 0]
    clip_norm = min(max(float(np.quantile(finite, case.quantile)), 1e-20), 1e20) if finite else 1.0
    grad_fn = jax.jit(
        jaxdp.clipped_grad(
            program.loss,
            clip_norm=clip_norm,
            rule=case.rule,
            method=case.method,
            microbatch_size=case.microbatch_size,
            precision=case.precision,
        )
    )
    follows = isinstance(case.rule, jaxdp.clipping.Quantile)  # its clip norm is a part of its state
    state = {"rule_state": case.rule.init(clip_norm, jax.random.key(0))} if follows else {}
    whole = grad_fn(program.params, batch, mask=jnp.asarray(case.mask), **state)
    sensitivity = float(whole.sensitivity)
    assert sensitivity <= clip_norm * (1 + 1e-6), f"sensitivity {sensitivity} for clip norm {clip_norm}\n{case}"
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape), program.params)
    for i, gradient in enumerate(gradients):
        alone = grad_fn(program.params, batch, mask=jnp.arange(program.batch) == i, **state)
        moved = norm_of(alone.grads)
        assert moved <= sensitivity * (1 + 1e-5), (
            f"example {i} moves the sum by {moved}, accounted {sensitivity}\n{case}"
        )
        expected = _scaled(case, gradient, clip_norm)
        away, size = distance(alone.grads, expected), norm_of(expected)
        as_exact = case.precision == "float32"  # factors rounded to bfloat16 may cancel where float32's don't
        assert not as_exact or away <= program.rounding * max(size, 1e-30), (
            f"example {i}: {away} from the loop's, which is {size} long of {norms[i]}; norm {float(alone.norms[i])}, clip norm "
            f"{clip_norm}\n{case}"
        )
        if case.mask[i]:
            total = jax.tree.map(np.add, total, jax.tree.map(lambda g: np.asarray(g, np.float64), alone.grads))
    together = sum(min(n, sensitivity) for n, used in zip(norms, case.mask, strict=True) if used and math.isfinite(n))
    away = distance(whole.grads, total)
    assert away <= max(program.rounding * together, 1e-30), f"the sum is {away} from that of its parts\n{case}"


def _gradients(case: Case, batch: Any) -> list[Any]:
    one_gradient = jax.jit(jax.grad(case.program.loss))
    rows = [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(case.program.batch)]
    exact = lambda leaf: np.asarray(leaf.astype(jnp.float32 if leaf.dtype != jnp.float64 else leaf.dtype), np.float64)
    try:
        return [jax.tree.map(exact, one_gradient(case.program.params, row)) for row in rows]
    except (OverflowError, TypeError, ValueError) as error:
        raise NoLossError(str(error)) from error


def _scaled(case: Case, gradient: Any, clip_norm: float) -> Any:
    """What the rule makes of one gradient: zeros of one that isn't finite, or whose norm float32 doesn't hold."""
    leaves, treedef = jax.tree.flatten(gradient)
    norm = norm_of(gradient)
    if not norm < np.finfo(np.float32).max:
        return jax.tree.map(np.zeros_like, gradient)
    if isinstance(case.rule, jaxdp.clipping.PerGroup):
        share = clip_norm / math.sqrt(len(leaves))
        factors = [min(1.0, share / norm_of(leaf)) if norm_of(leaf) else 1.0 for leaf in leaves]
    elif isinstance(case.rule, jaxdp.clipping.Normalised):
        factors = [clip_norm / (norm + case.rule.stability)] * len(leaves)
    else:
        factors = [min(1.0, clip_norm / norm) if norm else 1.0] * len(leaves)
    return treedef.unflatten([leaf * factor for leaf, factor in zip(leaves, factors, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=None, help="how many programs to try; 200 without --minutes")
    parser.add_argument("--minutes", type=float, default=None, help="go on for so long")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next ones follow")
    options = parser.parse_args()
    most = options.programs or (None if options.minutes else 200)
    until = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    tried, wrong, none = 0, [], []
    while (most is None or tried < most) and time.monotonic() < until:
        case = drawn(options.seed + tried)
        try:
            check(case)
        except NoLossError as error:
            none.append(f"{case.seed}: {str(error)[:100]}")
        except Exception as error:
            wrong.append(case.seed)
            print(f"{type(error).__name__}: {str(error)[:2000]}\n{case}", flush=True)
        tried += 1
        if tried % 50 == 0:
            print(f"{tried} programs, {len(wrong)} wrong", flush=True)
            jax.clear_caches()
    print(f"{tried} programs from seed {options.seed}: {len(wrong)} wrong {wrong}; no losses: {len(none)} {none[:20]}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
