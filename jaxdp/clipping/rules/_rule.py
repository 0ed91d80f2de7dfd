"""The contract of a clip rule: each one in this folder satisfies it, and one from outside the package can."""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from ... import _checks
from ..._errors import UsageError
from ..._types import Params

ROUND_DOWN = 1 - 2.0**-22  # more than the roundings that a factor's computation adds to those of its norm

_ALL_TOGETHER = 1 + 1e-9  # squared shares, with what rounding adds; ROUND_DOWN leaves room for it


class Groups(NamedTuple):
    """Leaves that are clipped together.

    Attributes:
        of_leaf: each leaf's group, in the order of the flattened tree.
        shares: of each group, its clip norm in units of the joint one; their squares add up to 1.
    """

    of_leaf: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def one(cls, params: Params) -> "Groups":
        """All leaves in one group."""
        return cls((0,) * len(jax.tree.leaves(params)), (1.0,))


@runtime_checkable
class ClipRule(Protocol):
    """A clip rule: a frozen dataclass, or another value that can be hashed and compared, with these methods.

    `check`, `in_run`, `noise_multiplier_of_sum` and `in_words` are called on the host before anything is compiled; the others
    may be traced. A rule without a state can borrow what has to do with it, and with the run, from `Flat`:
    `init, clip_norm_now, observe, advance = Flat.init, Flat.clip_norm_now, Flat.observe, Flat.advance`, likewise `in_run` and
    `noise_multiplier_of_sum`.

    At `clip_norm=inf`, which `check` may refuse, nothing is clipped and `factors` is not asked.
    """

    def check(self, clip_norm: float) -> None:
        """Raise a `UsageError` where the rule lacks a number or can't scale to this clip norm."""
        ...

    def in_run(self, expected_batch_size: float) -> "ClipRule":
        """The rule with what a run knows filled in; itself where there is nothing to fill in.

        Raises:
            UsageError: where the rule contradicts the run.
        """
        ...

    def noise_multiplier_of_sum(self, total: float) -> float:
        """The noise multiplier of the sum of gradients in a run whose steps are accounted at `total`.

        That is `total` itself, unless `observe` is a further look at the data whose noise is part of the total.

        Raises:
            UsageError: where the total leaves no room for that look.
        """
        ...

    def groups(self, params: Params) -> Groups:
        """Which leaves are clipped together, and each group's share of the clip norm."""
        ...

    def factors(self, upper: Float[Array, " B"], clip_norm: Float[Array, ""]) -> Float[Array, " B"]:
        """float32 [B]: by what to scale gradients, none of which is longer than `upper`, for a length of at most `clip_norm`.

        Asked for each group, with its share of the clip norm. Whatever it gives for NaN and inf is not used.
        """
        ...

    def in_words(self, clip_norm: float) -> str:
        """How gradients were scaled, for a statement: "clipped to L2 norm 1"."""
        ...

    def init(self, clip_norm: float, key: Key[Array, ""]) -> Any:
        """The state before the first step, a pytree of arrays; None for a rule without one."""
        ...

    def clip_norm_now(self, state: Any, clip_norm: float) -> Any:
        """The clip norm of a step, and so its sensitivity: the one given, or the state's, a float32 scalar.

        Raises:
            UsageError: for a state that is missing, or passed to a rule without one.
        """
        ...

    def observe(self, norms: Float[Array, " B"], mask: Bool[Array, " B"], clip_norm: Float[Array, ""]) -> Any:
        """A pytree of float32 scalars from the norms before clipping, which are added up over microbatches; None for nothing."""
        ...

    def advance(self, state: Any, observed: Any) -> Any:
        """The state of the next step, from this one's and what was observed, to which it adds noise; None without a state."""
        ...


_METHODS = tuple(name for name in vars(ClipRule) if not name.startswith("_"))


def check_is_rule(rule: Any) -> None:
    """Refuse what doesn't satisfy `ClipRule`, naming what is missing."""
    is_class = isinstance(rule, type)
    missing = [name for name in _METHODS if is_class or not callable(getattr(rule, name, None))]
    if missing:
        lacks = "it is a class" if is_class else f"it has no {', '.join(missing)}"
        raise UsageError(
            f"rule={rule!r} is not a clip rule, {lacks}: give jaxdp.clipping.Flat(), PerGroup(), Normalised(), Quantile(), or a "
            "value with the methods of jaxdp.clipping.ClipRule"
        )
    _checks.hashable("rule", rule)


def check_rule(rule: Any, clip_norm: float) -> None:
    """Refuse what is not a rule, and what the rule itself refuses."""
    check_is_rule(rule)
    rule.check(clip_norm)


def groups_of(rule: ClipRule, params: Params) -> Groups:
    """A rule's groups; refuses those of which the clipped parts could be longer, together, than the clip norm."""
    groups, leaves = rule.groups(params), len(jax.tree.leaves(params))
    whole, number = int | np.integer, float | int | np.floating
    if not (
        isinstance(groups, Groups)
        and all(isinstance(part, tuple) for part in groups)
        and len(groups.of_leaf) == leaves
        and all(isinstance(share, number) and share > 0 for share in groups.shares)
        and all(isinstance(group, whole) and 0 <= group < len(groups.shares) for group in groups.of_leaf)
        and set(groups.of_leaf) == set(range(len(groups.shares)))
        and math.fsum(float(share) ** 2 for share in groups.shares) <= _ALL_TOGETHER
    ):
        raise UsageError(
            f"rule={rule!r} divides {leaves} leaves as {groups!r:.200}: give jaxdp.clipping.Groups of two tuples: for each leaf "
            "the number of its group, from 0 on, and for each group a share above 0. The squares of all shares add up to 1: else "
            "what is clipped is longer than the clip norm"
        )
    return groups


def refuse_no_clipping(rule: ClipRule, clip_norm: float) -> None:
    """Refuse `clip_norm=inf` for a rule that has then nothing to scale to."""
    if math.isinf(clip_norm):
        raise UsageError(
            f"clip_norm=inf means no clipping, which {type(rule).__name__} can't do: give a finite clip norm"
        )
