"""Laplace and Gaussian noise on values whose sensitivity is known."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from .. import _checks
from .._errors import UsageError
from ..accounting._events import gaussian_event, repeated
from ..accounting._reach import end_of_gaussian
from ..noise._copies import refuse_shared_key
from ..noise._keys import Domain, own_key
from ._discrete_gaussian import MARGIN, MOST_STEPS as MOST_OF_GAUSSIAN, discrete_gaussian
from ._grid import (
    MOST_STEPS as MOST_OF_LAPLACE,
    ROUNDING,
    discrete_laplace,
    finest_step,
    steps_of,
    sum_on_grid,
    whole_step,
)
from ._inputs import checked_epsilon, checked_sensitivity, checked_shape, checked_values, leading

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_LARGE = 1e3  # a noise multiplier whose end takes hardly more than that of any larger one


@dataclass(frozen=True, kw_only=True)
class Laplace:
    r"""Values plus Laplace noise: \(\Pr[\text{out}] \le e^\varepsilon \Pr'[\text{out}]\) for neighbouring data sets.

    That is but for what lies beyond 44 scales, where draws end, and above ε = 32 for what the last bits of rare draws are rounded
    by: \(e^{\varepsilon - 41.6} / 2\), which `jaxdp.accounting` takes from delta, covers both. The noise is added
    on a grid (see `jaxdp.mechanisms._grid`); its scale covers the rounding to it. Values are clamped to ±2^50 steps of the grid.

    Args:
        epsilon: ε of one release, from 1e-4 to 40.
        sensitivity: Δ, the L1 distance by which adding or removing one record can move the values of one release, as the type
            holds them that they are given in.
        shape: of the values of one release; leading axes before it are releases of their own.
        integers: whether values are whole numbers, such as counts, which the grid doesn't move.

    Raises:
        UsageError: for an epsilon or a sensitivity out of range, and for so many values at once that their rounding would cost
            more than a little.

    Examples:
        >>> import jax
        >>> laplace = Laplace(epsilon=0.5, sensitivity=1, integers=True)
        >>> float(laplace(1000, key=jax.random.key(0)))
        1000.2216796875
        >>> laplace.event
        LaplaceDpEvent(noise_multiplier=2.0)

    References:
        Dwork, McSherry, Nissim and Smith, "Calibrating noise to sensitivity in private data analysis", 2006, proposition 1.
    """

    epsilon: float
    sensitivity: float
    shape: tuple[int, ...] = ()
    integers: bool = False

    _middle: ClassVar[float] = 0.5  # where in its step the noise is put: it is a floor
    _most_steps: ClassVar[float] = MOST_OF_LAPLACE

    def __post_init__(self) -> None:
        epsilon, sensitivity = checked_epsilon(self.epsilon), checked_sensitivity(self.sensitivity)
        integers = _checks.flag("integers", self.integers)
        _checks.set_fields(
            self, epsilon=epsilon, sensitivity=sensitivity, shape=checked_shape(self.shape), integers=integers
        )
        _check_scale(self)

    @property
    def step(self) -> float:
        """The grid's step g, a power of two."""
        scale = self.sensitivity / self.epsilon
        if self.integers:
            return whole_step(scale)
        return finest_step(scale, self.sensitivity / math.prod(self.shape), MOST_OF_LAPLACE / 4)

    @property
    def scale(self) -> float:
        """The noise's scale b; its standard deviation is √2 times that."""
        rounding = 0.0 if self.integers else math.prod(self.shape) * self.step
        return (self.sensitivity + rounding) / (self.epsilon - ROUNDING)

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one release."""
        from dp_accounting import LaplaceDpEvent

        return LaplaceDpEvent(1 / self.epsilon)

    def event_of(self, values: Any) -> "DpEvent":
        """The event of releasing `values`: one for each index of the axes before `shape`."""
        return repeated(self.event, leading(values, self.shape))

    def __call__(self, values: Any, *, key: Key[Array, ""]) -> Float[Array, "..."]:
        """Release values.

        Args:
            values: [..., *shape], numbers; under `jax.jit` such as float32 can hold, or whole ones with `integers`.
            key: a scalar key, used here and nowhere else.

        Returns:
            float32 array of the same shape.

        Raises:
            UsageError: for another shape or type, and for values that aren't finite.
        """
        return _release(self, values, key)

    def _noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return discrete_laplace(own_key(key, Domain.LAPLACE_MECHANISM), shape, self.step / self.scale)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    r"""Values plus Gaussian noise of standard deviation σ = noise multiplier · Δ.

    The noise is a discrete Gaussian on a grid (see `jaxdp.mechanisms._discrete_gaussian`), and σ covers the values' rounding to
    it. Draws reach 8.8 σ at least, beyond which 10⁻¹⁸ of a true Gaussian lie; `jaxdp.accounting` takes
    what that costs from delta. Values are clamped to ±2^50 steps of the grid.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, from 1e-3 to 1e6.
        sensitivity: Δ, the L2 distance by which adding or removing one record can move the values of one release.
        shape: of the values of one release; leading axes before it are releases of their own.
        integers: whether values are whole numbers, which the grid doesn't move.

    Raises:
        UsageError: as `Laplace` does.

    Examples:
        >>> gaussian = Gaussian.calibrated(epsilon=1.0, delta=1e-5, sensitivity=2.0, shape=(3,))
        >>> print(f"{gaussian.noise_multiplier:.4f}, {gaussian.scale:.2f}")
        3.7306, 7.49

    References:
        Dwork and Roth, "The algorithmic foundations of differential privacy", 2014, appendix A.
    """

    noise_multiplier: float
    sensitivity: float
    shape: tuple[int, ...] = ()
    integers: bool = False

    _middle: ClassVar[float] = 0.0  # where in its step the noise is put: it is symmetric about 0
    _most_steps: ClassVar[float] = MOST_OF_GAUSSIAN

    def __post_init__(self) -> None:
        fix = "give the noise in units of the sensitivity"
        noise_multiplier = _checks.positive("noise_multiplier", self.noise_multiplier, fix)
        if not 1e-3 <= noise_multiplier <= 1e6:
            raise UsageError(f"noise_multiplier={noise_multiplier} must lie between 1e-3 and 1e6: {fix}")
        sensitivity = checked_sensitivity(self.sensitivity)
        integers, shape = _checks.flag("integers", self.integers), checked_shape(self.shape)
        _checks.set_fields(
            self, noise_multiplier=noise_multiplier, sensitivity=sensitivity, shape=shape, integers=integers
        )
        _check_scale(self)

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        sensitivity: float,
        shape: tuple[int, ...] = (),
        integers: bool = False,
    ) -> "Gaussian":
        """The least noise for which one release is (ε, δ)-differentially private.

        That drawn noise ends takes a part of a small δ, for which the noise is made larger: where it would take more than half
        of δ, by a little more than the least.

        Raises:
            UsageError: for an argument out of range, and for a δ that no noise as it is drawn can keep, about 1e-18.

        References:
            Balle and Wang, "Improving the Gaussian mechanism for differential privacy", arXiv 1805.06530, theorem 8, as
            dp-accounting computes it.
        """
        from dp_accounting import get_sigma_gaussian

        _checks.positive("epsilon", epsilon, "give the ε of one release, such as 1.0")
        of_endless = lambda left: float(get_sigma_gaussian(float(epsilon), left)) * (1 + 1e-9)
        values = math.prod(checked_shape(shape))
        takes = lambda sigma: end_of_gaussian(sigma, delta, values)
        sigma = of_endless(_checks.delta(delta))
        while takes(sigma) > delta / 2 and sigma < _LARGE:
            sigma *= 1.01
        if takes(sigma) > delta / 2:
            raise UsageError(
                f"delta={delta:g} can't be kept by noise as it is drawn, which ends: outputs beyond, which one neighbour alone "
                "can produce, have a greater probability: give a larger delta"
            )
        sigma = max(sigma, of_endless(delta - takes(sigma)))  # of which the end takes no more
        return cls(noise_multiplier=sigma, sensitivity=sensitivity, shape=shape, integers=integers)

    @property
    def step(self) -> float:
        """The grid's step g, a power of two."""
        scale = self.noise_multiplier * self.sensitivity
        if self.integers:
            return whole_step(scale)
        return finest_step(scale, self.sensitivity / math.sqrt(math.prod(self.shape)), MOST_OF_GAUSSIAN / 4)

    @property
    def scale(self) -> float:
        """The noise's standard deviation σ."""
        rounding = 0.0 if self.integers else math.sqrt(math.prod(self.shape)) * self.step
        return self.noise_multiplier * (self.sensitivity + rounding) * (1 + MARGIN)

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one release."""
        return gaussian_event(noise_multiplier=self.noise_multiplier)

    def event_of(self, values: Any) -> "DpEvent":
        """The event of releasing `values`: one for each index of the axes before `shape`."""
        return gaussian_event(noise_multiplier=self.noise_multiplier, times=leading(values, self.shape))

    def __call__(self, values: Any, *, key: Key[Array, ""]) -> Float[Array, "..."]:
        """Release values; arguments, result and errors as `Laplace` has them."""
        return _release(self, values, key)

    def _noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return discrete_gaussian(own_key(key, Domain.GAUSSIAN_MECHANISM), shape, self.scale / self.step)


def _release(mechanism: Laplace | Gaussian, values: Any, key: jax.Array) -> jax.Array:
    _checks.key(key)
    checked = checked_values(values, mechanism.shape, integers=mechanism.integers)
    if isinstance(checked, np.ndarray):
        return _on_grid(mechanism, steps_of(checked, mechanism.step), key)
    known, one = refuse_shared_key(key, checked, (checked, jnp.ones((), jnp.float32)))
    return _on_grid(mechanism, known, key) * one  # NaN is none on the grid


@partial(jax.jit, static_argnums=0)
def _on_grid(mechanism: Laplace | Gaussian, values: Any, key: jax.Array) -> jax.Array:
    """Values, or what `steps_of` made of them, with noise."""
    steps = values if isinstance(values, tuple) else steps_of(values, mechanism.step)
    return sum_on_grid(steps, mechanism._noise(key, steps[0].shape), mechanism.step, mechanism._middle)


def _check_scale(mechanism: Laplace | Gaussian) -> None:
    """That the noise has as many steps as can be drawn."""
    most = mechanism._most_steps
    if mechanism.integers and not (mechanism.scale >= 2**-10 and mechanism.scale / mechanism.step <= most):
        raise UsageError(
            f"{mechanism} has noise of scale {mechanism.scale:.3g}: for whole numbers it must lie between 2^-10 and "
            f"2^{math.log2(most):.0f}; give another sensitivity, or the values as floats"
        )
    if mechanism.scale / mechanism.step > most:
        raise UsageError(
            f"{mechanism} rounds so many values at once that the noise would have to grow by half or more to cover it: release "
            "fewer together, or with a larger epsilon"
        )
