"""Before a run's first step: its clipped gradient against plain differentiation, on two random examples.

Epsilon is true if no example moves the sum by more than the sensitivity, whatever the loss. That rests on rules for the
primitives that a loss is made of. Here the rules of one loss are tried on that loss itself, at the shapes and types of the
real data, but never on the data: example by example without clipping, each parameter's gradient must be that of `jax.grad` of
this example alone (a loss may have a batching rule of its own); the norm must not be below that gradient's; and what the run's
own clip rule lets through of a single example must not be longer than the sensitivity.

Random numbers may lie where a loss has no finite gradient (a label beyond the classes), which says nothing; others are
then drawn. Two roundings of one gradient differ, the more so the worse conditioned it is: how much is measured, by moving
every parameter by as little as the narrowest type of the computation tells apart. Where the gradient jumps (ReLU at zero, the
two largest of a maximum), roundings may be on either side: what differs from plain differentiation is looked at again at
parameters nearby, where a wrong rule is as wrong and jumps are elsewhere, against the largest rounding measured so far.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from .. import _checks
from .._errors import UsageError
from .._platform import CPU, GPU, Platform, default_platform, is_known_to_compiler
from .._types import Batch, Params
from ..clipping import (
    ClippedGrad,
    ClipRule,
    Examples,
    Explanation,
    Flat,
    PerGroup,
    check_loss,
    example_keys,
    per_example_values_and_grads,
)
from ..clipping._arithmetic import arithmetic_of
from ..clipping.ghost import explain
from ..jaxprs._jaxpr import parts_of, subjaxprs
from ._compiling import begin_to_compile

ROWS = 2
_LIMITS = (
    None,
    2**20,
    2**17,
    2**15,
    2**14,
    2**12,
    2**10,
    2**8,
    100,
    10,
    2,
)  # random integers lie below; None for all that the type has
_FLOATS: tuple[Callable[[np.random.Generator, Any], np.ndarray], ...] = (
    lambda rng, shape: rng.standard_normal(shape, np.float32),
    lambda rng, shape: rng.random(shape, np.float32),
    lambda rng, shape: rng.integers(0, 2, shape).astype(np.float32),
)
_QUICKLY: dict[Platform, dict[str, Any]] = {
    CPU: {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True},
    GPU: {"xla_gpu_autotune_level": 0},
}
# A CPU's compiler without YNNPACK: what that gets wrong (`jaxprs._for_cpus`) the clipped gradient is to be held against.
_WITHOUT_YNNPACK = ("xla_cpu_experimental_ynn_fusion_type", "")
_NEARBY = 7  # points looked at, of which most decide
_IS_WRONG = "a rule of the clipped gradient is wrong for this loss, and epsilon would be false. "
_BY_VMAP = (
    f'{_IS_WRONG}Use the parameter in another way, or jaxdp.clipped_grad(..., method="vmap"), and please report it'
)
_LOOK = (
    f"{_IS_WRONG}Compute with jax.numpy what has a kernel or a batching rule of its own, by which examples may see each other, "
    "and please report it"
)
_OUT_OF_RANGE = (
    "such examples contribute nothing, since an activation or its gradient leaves the range in which norms are taken: float32's, "
    "or what is below 1e19 where a matrix unit's factors are rounded. Scale what the loss computes, give make_step(..., "
    'precision="float32") or, in a loop of your own, jaxdp.clipped_grad(..., method="vmap")'
)
_OFF = "make_step(..., self_check=False) goes without the check"


class _Oracle(NamedTuple):
    """Plain gradients of two examples: each leaf [2, ...], the length of each [leaves, 2], and its rounding."""

    grads: list[np.ndarray]
    lengths: np.ndarray
    rounding: np.ndarray

    @property
    def totals(self) -> np.ndarray:
        """Each example's norm, [2]."""
        return np.linalg.norm(self.lengths, axis=0)


def signature(*trees: Any) -> Any:
    """The mark of a program: the structure, shapes and types of its arguments."""
    leaves, structure = jax.tree.flatten(trees)
    return structure, tuple((jnp.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)


def self_check(
    grad_fn: ClippedGrad, params: Params, data: Any, shared: tuple[Any, ...], key: Key[Array, ""] | None
) -> None:
    """Compare a gradient function with plain differentiation, once, on two random examples.

    Args:
        grad_fn: of the run.
        params: of the state; used as they are, and once moved at random, since much has no gradient at an
            initialisation by zeros.
        data: pytree of arrays [n, ...]; of its shapes and types alone.
        shared: as the loss gets it.
        key: of the losses' randomness, for its kind; None for a loss without.

    Raises:
        UsageError: for a disagreement, naming the parameter; for a loss that has no finite gradient on any of the random
            examples, and what `clipped_grad` refuses.
    """
    highest = partial(jax.default_matmul_precision, "highest")  # so that no device's rounding of products differs
    with highest():
        in_float32 = _Check(replace(grad_fn, precision="float32"), params, data, shared, key)
    rounding = None
    if arithmetic_of(grad_fn.precision).rounds:  # the program that will run is another
        rounding = _Check(grad_fn, params, data, shared, key, in_float32)
    with highest():  # now that all programs are being compiled
        in_float32.run()
    if rounding is not None:
        rounding.run()


class _Check:
    def __init__(
        self,
        grad_fn: ClippedGrad,
        params: Params,
        data: Any,
        shared: tuple[Any, ...],
        key: Any,
        before: "_Check | None" = None,  # of the same loss and rule, in another precision
    ) -> None:
        self._grad_fn, self._params, self._shared = grad_fn, params, shared
        impl = None if key is None else jax.random.key_impl(key)
        self._keys = lambda: None if impl is None else example_keys(jax.random.key(0, impl=impl), ROWS)
        self._rng = np.random.default_rng(0)
        self._leaves, self._structure = jax.tree.flatten(data)
        # Beyond the end of what is divided XLA reads zeros in a plain gradient, and the last entry in others: indices stay small.
        are_whole = [leaf.is_fully_replicated for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array)]
        self._is_divided = not all(are_whole)
        batch = self._draw(_FLOATS[0], [2] * len(self._leaves))
        if before is None:
            loss_fn, method = grad_fn.loss_fn, grad_fn.method
            check_loss(loss_fn, grad_fn.has_aux, params, batch, shared, key, grad_fn.num_examples, method)
        self._loss = grad_fn.trace(params, batch, shared, self._keys())
        narrowest = 2.0**-23 if default_platform().products_are_float32 else 2.0**-10
        of_params = [float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(params)]
        if self._loss is not None and self._loss.plan.arithmetic.rounds:
            narrowest = max(narrowest, 2.0**-self._loss.plan.arithmetic.mantissa_bits)
        self._epsilon = max(narrowest, *of_params, _epsilon(() if self._loss is None else self._loss.plan.jaxpr.eqns))
        with jax.default_matmul_precision("highest"):
            without = default_platform() is CPU and is_known_to_compiler(*_WITHOUT_YNNPACK)
            options: dict[str, Any] = dict([_WITHOUT_YNNPACK]) if without else {}
            self._plain = before._plain if before else _compiled(options, self._plain_program, params, batch, shared)
        self._clipped = self._clipped_program(grad_fn, batch)
        self._unclipped = self._clipped
        self._lets_through = before._lets_through if before else _lets_through(grad_fn.rule)
        if not self._lets_through:
            self._unclipped = self._clipped_program(replace(grad_fn, rule=Flat()), batch)

    def _plain_program(self, params: Params, batch: Batch, shared: Any) -> Any:
        fn, has_aux = self._grad_fn.loss_fn, self._grad_fn.has_aux
        keys = self._keys()
        values, grads = per_example_values_and_grads(fn, has_aux, params, batch, shared, keys, one_by_one=True)
        return values[0] if has_aux else values, grads

    def _clipped_program(self, grad_fn: ClippedGrad, batch: Batch) -> Callable[..., Any]:
        def clipped(params: Params, batch: Batch, mask: Any, clip_norm: Any, shared: Any) -> tuple[Any, Any]:
            out = grad_fn.sum_at_once(self._loss, params, Examples(batch, mask, self._keys()), shared, clip_norm)
            return out.grads, out.norms

        return _compiled({}, clipped, self._params, batch, jnp.ones(ROWS, jnp.bool_), jnp.float32(1), self._shared)

    def run(self) -> None:
        """All trials."""
        for params, batch, oracle in self.trials():
            self.compare(params, batch, oracle)

    def trials(self) -> Iterator[tuple[Any, Any, _Oracle]]:
        """Parameters and examples at which the gradients are finite, with them."""
        for floats in _FLOATS:
            limits: list[int | None] = [2] * len(self._leaves)
            small = self._draw(floats, limits)
            oracle = self._oracle(self._params, small)
            if oracle is None:
                continue
            yield self._params, small, oracle
            # What depends on several examples may be right for the sums of some.
            negated = lambda leaf: -leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf
            opposite = jax.tree.map(negated, small)
            of_opposite = self._oracle(self._params, opposite)
            if of_opposite is not None:
                yield self._params, opposite, of_opposite
            wide = small
            for i, leaf in enumerate(self._leaves):
                if not jnp.issubdtype(jnp.result_type(leaf), jnp.integer):
                    continue
                for limit in () if self._is_divided else _LIMITS:
                    limits[i] = limit
                    batch = self._draw(floats, limits)
                    found = self._oracle(self._params, batch)
                    if found is not None:
                        wide, oracle = batch, found
                        break
            if wide is not small:
                yield self._params, wide, oracle
            moved = self._moved()
            oracle = self._oracle(moved, wide)
            if oracle is not None:
                yield moved, wide, oracle
            return
        raise UsageError(
            "self_check: the loss has no finite gradient on any random example of the data's shapes (normal, uniform in "
            "[0, 1], zeros and ones; integers from 0 and 1 to all of their type) at these parameters, or none that is shorter "
            "than 1e30, so that its clipping can't be compared with plain differentiation: see that the parameters are finite, "
            f"and that gradients don't leave the range of their type, which for float16 ends at 65,504; {_OFF}"
        )

    def _draw(self, floats: Callable[..., np.ndarray], limits: Sequence[int | None]) -> Any:
        rows = [_random(self._rng, floats, leaf, limit) for leaf, limit in zip(self._leaves, limits, strict=True)]
        return self._structure.unflatten(rows)

    def _moved(self) -> Any:
        def move(leaf: np.ndarray) -> Any:
            finite = leaf[np.isfinite(leaf)].astype(np.float64)
            size = 0.1 * np.sqrt(np.mean(np.square(finite))) + 0.01 if finite.size else 0.0
            return leaf + np.float32(size) * self._rng.standard_normal(leaf.shape, np.float32)

        return _changed(move, self._params)

    def _nudged(self, params: Params, by: float) -> Any:
        signs = lambda leaf: 2 * self._rng.integers(0, 2, leaf.shape, np.int8) - 1
        return _changed(lambda leaf: leaf * (1 + np.float32(by) * signs(leaf)), params)

    def _oracle(self, params: Params, batch: Batch) -> _Oracle | None:
        """The plain gradients; None where they, or the losses, aren't finite, there or a rounding away."""
        losses, grads = map(_on_host, self._plain(params, batch, self._shared))
        _, nudged = map(_on_host, self._plain(self._nudged(params, self._epsilon), batch, self._shared))
        if not all(np.isfinite(leaf).all() for leaf in (*losses, *grads, *nudged)):
            return None
        found = _Oracle(grads, _lengths(grads), _lengths([a - b for a, b in zip(grads, nudged, strict=True)]))
        return found if found.totals.max() < 1e30 else None

    def compare(self, params: Params, batch: Batch, oracle: _Oracle) -> None:
        """Refuse what differs on these examples, unless it is at a jump of the gradient."""
        shortest = oracle.totals[oracle.totals > 0].min(initial=math.inf)
        clip_norm = max(min(self._grad_fn.clip_norm, shortest / 2), 1e-25)  # at which something is clipped
        clip_norm = 1.0 if math.isinf(clip_norm) else float(np.float32(clip_norm))
        for i in range(ROWS):
            total, _ = self._alone(self._clipped, params, batch, i, clip_norm)
            contribution = float(np.linalg.norm(_lengths([leaf[None] for leaf in total])))
            if not contribution <= clip_norm * (1 + 1e-5):
                self._refuse(
                    self._culprits(params, batch, oracle, i),
                    f"lets one example contribute {contribution:.3g} where the sensitivity is {clip_norm:.3g}",
                )
            self._compare_beside_another(params, batch, i, clip_norm, total)
        apart = self._apart(params, batch, oracle)
        if apart is not None and not self._agrees_nearby(params, batch, oracle.rounding):
            self._refuse(*apart)

    def _compare_beside_another(
        self, params: Params, batch: Batch, i: int, clip_norm: float, total: list[np.ndarray]
    ) -> None:
        """Refuse what one example contributes where another, masked one changes it: by a bit, if the device makes them alike."""
        twice = jax.tree.map(lambda leaf: leaf[np.array([i] * ROWS)], batch)
        off = _apart_by_leaf(self._alone(self._clipped, params, twice, i, clip_norm)[0], total)
        if not off.any():
            return
        inexact = _apart_by_leaf(self._alone(self._clipped, params, batch, i, clip_norm)[0], total)
        changed = np.flatnonzero(~(off <= 8 * np.max(inexact)))
        if len(changed):
            what = f"is changed by another example of the batch, by {off[changed[0]]:.3g} of {clip_norm:.3g}"
            self._refuse(changed[:1], what, _LOOK)

    def _agrees_nearby(self, params: Params, batch: Batch, rounding: np.ndarray) -> bool:
        """At most of several points: each parameter moved by a thousandth, or what its type tells apart; zeros stay."""
        differ = agree = 0
        while max(differ, agree) <= _NEARBY // 2:
            nearby = self._nudged(params, max(1e-3, 8 * self._epsilon))
            oracle = self._oracle(nearby, batch)
            if oracle is not None:
                rounding = np.maximum(rounding, oracle.rounding)
                oracle = oracle._replace(rounding=rounding)
            agrees = oracle is not None and self._apart(nearby, batch, oracle) is None
            differ, agree = differ + (not agrees), agree + agrees
        return agree > differ

    def _apart(self, params: Params, batch: Batch, oracle: _Oracle) -> tuple[np.ndarray, str, str] | None:
        """What is not as plain differentiation has it: leaves, how, and what that means."""
        relative = min(max(32 * self._epsilon, 1e-4), 0.3)
        rounding = oracle.rounding
        slack = relative * (oracle.lengths + oracle.totals / 10) + 8 * rounding
        slack_of_norm = relative * oracle.totals + 8 * np.linalg.norm(rounding, axis=0)
        for i in range(ROWS):
            total, norms = self._alone(self._unclipped, params, batch, i, math.inf)
            off = _apart_by_leaf(total, [grads[i, ...] for grads in oracle.grads])
            wrong = np.flatnonzero(~(off <= slack[:, i]))
            if len(wrong) and not norms[i] < oracle.totals[i] - slack_of_norm[i] and not any(map(np.any, total)):
                what = f"is zero, and its norm {norms[i]:.3g}, where plain differentiation has one of norm {oracle.totals[i]:.3g}"
                return wrong, what, _OUT_OF_RANGE
            if len(wrong):
                length = oracle.lengths[wrong[0], i]
                what = f"is {off[wrong[0]]:.3g} away from the gradient of plain differentiation, of length {length:.3g}"
                return wrong[:1], what, _BY_VMAP
            if not norms[i] >= oracle.totals[i] - slack_of_norm[i]:
                what = f"makes the norm {norms[i]:.3g} of an example whose gradient has norm {oracle.totals[i]:.3g}"
                return self._culprits(params, batch, oracle, i), what, _BY_VMAP
        return None

    def _alone(self, program: Any, params: Params, batch: Batch, i: int, clip_norm: float) -> tuple[list[Any], Any]:
        """One example's contribution, leaf by leaf, and the norms."""
        total, norms = program(params, batch, jnp.arange(ROWS) == i, jnp.float32(clip_norm), self._shared)
        return _on_host(total), np.asarray(norms)

    def _culprits(self, params: Params, batch: Batch, oracle: _Oracle, i: int) -> np.ndarray:
        """The leaves that, each to be clipped to half of its length, are longer; all leaves where there is none."""
        weights = {str(leaf): max(length, 1e-12) ** 2 for leaf, length in enumerate(oracle.lengths[:, i])}
        by_leaf = replace(self._grad_fn, rule=PerGroup(weights=weights))
        program = self._clipped_program(by_leaf, batch)
        total, _ = self._alone(program, params, batch, i, max(oracle.totals[i] / 2, 1e-25))
        lengths = _lengths([leaf[None] for leaf in total])[:, 0]
        longer = np.flatnonzero(lengths > 0.6 * oracle.lengths[:, i])
        return longer if len(longer) else np.arange(len(lengths))

    def _refuse(self, leaves: Any, what: str, means: str = _BY_VMAP) -> None:
        by_rules = replace(self._grad_fn, method="auto", strict=False)
        loss = by_rules.trace(self._params, self._draw(_FLOATS[0], [2] * len(self._leaves)), self._shared, self._keys())
        paths = [path for path, _ in jax.tree.leaves_with_path(self._params)]
        names = ", ".join(f"params{jax.tree_util.keystr(paths[i])}" for i in leaves)
        report = () if loss is None else explain(loss.plan, self._params).leaves
        lines = Explanation(tuple(report[i] for i in leaves)) if report else ""
        raise UsageError(
            f"self_check: on random examples of the data's shapes, the clipped gradient of {names} {what}: {means}.\n{lines}"
        )


def _lets_through(rule: ClipRule) -> bool:
    """Whether a rule leaves gradients as they are where the clip norm is infinite."""
    return bool(jnp.all(rule.factors(jnp.array([0.0, 1e-6, 1.0, 1e6]), jnp.float32(math.inf)) == 1))


def _compiled(options: dict[str, Any], fn: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """The program, made quickly rather than to be quick, while others are; whoever calls it waits."""
    begun = begin_to_compile(jax.jit(fn).lower(*args), _QUICKLY.get(default_platform(), {}) | options)
    return lambda *args: begun.result()(*args)


def _random(rng: np.random.Generator, floats: Callable[..., np.ndarray], like: Any, limit: int | None) -> jax.Array:
    """Two rows of a leaf's shape and type; integers of all magnitudes below the limit, it and zero among them."""
    shape, dtype = (ROWS, *jnp.shape(like)[1:]), jnp.result_type(like)
    if _checks.is_key(like):
        return jax.random.split(jax.random.key(rng.integers(2**31), impl=jax.random.key_impl(like)), shape)
    if dtype == jnp.bool_:
        return jnp.asarray(rng.integers(0, 2, shape).astype(np.bool_))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.asarray(floats(rng, shape) + 1j * floats(rng, shape), dtype)
    if not jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(floats(rng, shape)).astype(dtype)
    info = jnp.iinfo(dtype)
    most = int(info.max) if limit is None else min(limit - 1, int(info.max))
    values = np.minimum(np.exp2(rng.random(shape) * math.log2(most + 2.0)) - 1, most).astype(np.uint64)
    if values.size:
        values.flat[0] = most
    signs = rng.integers(0, 2, shape) * (
        limit is None and int(info.min) < 0 and np.arange(values.size).reshape(shape) > 0
    )
    return jnp.asarray(np.where(signs == 1, -values.astype(np.int64), values.astype(np.int64)).astype(dtype))


def _epsilon(eqns: Any) -> float:
    """The distance from 1 to the next number of the narrowest floating-point type that is computed."""
    found = 0.0
    for eqn in eqns:
        for var in eqn.outvars:
            if jnp.issubdtype(getattr(var.aval, "dtype", jnp.int32), jnp.floating):
                found = max(found, float(jnp.finfo(var.aval.dtype).eps))
        found = max([found, *(_epsilon(parts_of(body).eqns) for body in subjaxprs(eqn))])
    return found


def _changed(change: Callable[[np.ndarray], Any], params: Params) -> Any:
    """Parameters changed on the host, where they were on the device."""

    def changed(leaf: Any) -> jax.Array:
        value = np.asarray(change(np.asarray(leaf, np.float32)))
        return jax.device_put(value.astype(leaf.dtype), getattr(leaf, "sharding", None))

    return jax.tree.map(changed, params)


def _on_host(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(tree)]


def _lengths(leaves: Sequence[np.ndarray]) -> np.ndarray:
    """[leaves, examples]: how long each example's part [examples, ...] of each leaf is."""
    return np.stack([np.linalg.norm(leaf.reshape(len(leaf), -1).astype(np.float64), axis=1) for leaf in leaves])


def _apart_by_leaf(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    """[leaves]: how far each leaf of one gradient is from that of another."""
    return _lengths([(a - b)[None] for a, b in zip(some, others, strict=True)])[:, 0]
