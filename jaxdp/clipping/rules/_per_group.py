"""Each group of parameters is clipped on its own, to a part of the joint clip norm."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from ... import _checks
from ..._errors import UsageError
from ..._types import Params
from ._flat import Flat
from ._rule import Groups, refuse_no_clipping


@_checks.fields_explained
@dataclass(frozen=True, kw_only=True, eq=False)  # its labels may be any pytree
class PerGroup:
    r"""Clip each group of leaves on its own, group k to \(C_k = C \sqrt{w_k / \sum_j w_j}\).

    The sensitivity is that of all groups together, \(\sqrt{\sum_k C_k^2} = C\).

    Args:
        labels: a pytree of strings like params, or a prefix of it, or a function from params to that: the group of each
            leaf. By default each leaf is a group of its own, labelled by its place among the leaves: "0", "1" and so on.
        weights: how the squared clip norm is divided, by label; in equal parts by default.

    Raises:
        UsageError: in the call, for a label without a weight or labels that don't fit params.

    Examples:
        >>> import jax.numpy as jnp, jaxdp
        >>> rule = jaxdp.clipping.PerGroup(labels={"a": "left", "b": "right"}, weights={"left": 9, "right": 16})
        >>> loss = lambda p, x: x * (p["a"] + p["b"])
        >>> grad_fn = jaxdp.clipped_grad(loss, clip_norm=5.0, rule=rule)
        >>> out = grad_fn({"a": jnp.float32(0), "b": jnp.float32(0)}, jnp.array([100.0]))
        >>> print(f"{out.grads['a']:.3f} {out.grads['b']:.3f}")
        3.000 4.000

    References:
        McMahan et al., "Learning Differentially Private Recurrent Language Models", arXiv 1710.06963, section 3.
    """

    labels: Any = None
    weights: Mapping[str, float] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether both name the same groups, with the same weights; functions are the same where they are one."""
        if other.__class__ is not self.__class__:
            return False
        try:
            return bool(self._compared() == other._compared())  # pyright: ignore[reportAttributeAccessIssue]
        except ValueError:  # of arrays, which no groups are named by
            return False

    def __hash__(self) -> int:
        return hash(self._compared()[0])

    def _compared(self) -> tuple[Any, ...]:
        if callable(self.labels):
            return (id(self.labels), self.weights)
        leaves, structure = jax.tree.flatten(self.labels)
        return (structure, leaves, self.weights)

    def check(self, clip_norm: float) -> None:
        """Refuse a clip norm of infinity."""
        refuse_no_clipping(self, clip_norm)

    def groups(self, params: Params) -> Groups:
        """The leaves by label."""
        leaves = jax.tree.leaves(params)
        if self.labels is None:
            labels = [str(i) for i in range(len(leaves))]
        else:
            tree = self.labels(params) if callable(self.labels) else self.labels
            try:
                labels = jax.tree.leaves(
                    jax.tree.map(lambda label, part: jax.tree.map(lambda _: label, part), tree, params)
                )
            except ValueError as error:
                raise UsageError(
                    f"PerGroup: labels don't fit params: {error}; give params' tree or a prefix of it"
                ) from error
        _checks.texts("labels", labels)
        if self.weights is not None:
            _checks.instance("weights", self.weights, Mapping, "give a number by label, such as {'kernels': 1.0}")
        names = list(dict.fromkeys(labels))
        weights = dict.fromkeys(names, 1.0) if self.weights is None else self.weights
        if missing := set(names) - set(weights):
            which = "give each a weight"
            if self.labels is None:
                which = "these are the places of the leaves; give labels=, a pytree like params that names each leaf's group"
            raise UsageError(f"PerGroup: weights={dict(weights)} lacks the labels {sorted(missing)}: {which}")
        fix = "give a share of the squared clip norm, such as 1.0"
        parts = [_checks.positive(f"weights[{name!r}]", weights[name], fix) for name in names]
        shares = tuple(math.sqrt(part / math.fsum(parts)) for part in parts)
        return Groups(tuple(names.index(label) for label in labels), shares)

    factors = Flat.factors

    def in_words(self, clip_norm: float) -> str:
        """How gradients were scaled, for a statement."""
        return f"clipped in groups of parameters, each to a part of the joint L2 norm {clip_norm:g}"

    in_run = Flat.in_run
    noise_multiplier_of_sum = Flat.noise_multiplier_of_sum
    init = Flat.init
    clip_norm_now = Flat.clip_norm_now
    observe = Flat.observe
    advance = Flat.advance
