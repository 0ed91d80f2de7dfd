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
from ..noise import standard_normal
from ._grid import ROUNDING, discrete_laplace, finest_step, steps_of, sum_on_grid, whole_step
from ._inputs import checked_values, leading

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_LEAST_ON_INTEGERS = 2.0**-10  # a scale of noise
_MOST_ON_INTEGERS = {"Laplace": 2.0**24, "Gaussian": 2.0**20}  # a float32 draw times more would skip whole numbers


@dataclass(frozen=True, kw_only=True)
class Laplace:
    r"""Values plus Laplace noise: \(\Pr[\text{out}] \le e^\varepsilon \Pr'[\text{out}]\) for neighbouring data sets.

    The noise is added on a grid (see `jaxdp.mechanisms._grid`); its scale covers the rounding to it.

    Args:
        epsilon: ε of one release; 1e-4 at least.
        sensitivity: Δ, the L1 distance by which adding or removing one record can move the values of one release, as the type
            holds them that they are given in.
        shape: of the values of one release; leading axes before it are releases of their own.
        integers: whether values are whole numbers, such as counts, which the grid doesn't move. They are clamped to ±2^20, or
            to ±2^30 under noise of a scale above 1024.

    Raises:
        UsageError: for an epsilon or a sensitivity that isn't above 0 and finite.

    Example:
        >>> import jax
        >>> laplace = Laplace(epsilon=0.5, sensitivity=1, integers=True)
        >>> float(laplace(1000, key=jax.random.key(0)))
        999.8408203125
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

    def __post_init__(self) -> None:
        _check_sensitivity(self.sensitivity, "L1")
        if _checks.positive("epsilon", self.epsilon, "give the ε of one release, such as 1.0") < 1e-4:
            raise UsageError(f"epsilon={self.epsilon} is below 1e-4, which is noise alone: give 1e-4 at least")
        _check_scale(self)

    @property
    def step(self) -> float:
        """The grid's step g, a power of two."""
        scale = self.sensitivity / self.epsilon
        if self.integers:
            return whole_step(scale)
        return finest_step(scale, math.prod(self.shape), 2**17)

    @property
    def scale(self) -> float:
        """The noise's scale b; its standard deviation is √2 times that."""
        rounding = 0.0 if self.integers else math.prod(self.shape) * self.step
        return (self.sensitivity + rounding) / (self.epsilon - ROUNDING)

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one release."""
        from dp_accounting import LaplaceDpEvent

        return LaplaceDpEvent(1 / float(self.epsilon))

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
        return discrete_laplace(key, shape, self.step / self.scale)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    r"""Values plus Gaussian noise of standard deviation σ = noise multiplier · Δ.

    The noise is rounded to the same grid as the values (see `jaxdp.mechanisms._grid`), and σ covers the values' rounding. Draws
    end at 7.5 σ, beyond which 10⁻¹³ of a true Gaussian lie. Unlike Laplace noise it is computed in float32 before it is rounded,
    to about one part in a thousand of a step: where the exact distribution matters, take `Laplace`.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity.
        sensitivity: Δ, the L2 distance by which adding or removing one record can move the values of one release.
        shape: of the values of one release; leading axes before it are releases of their own.
        integers: whether values are whole numbers, which the grid doesn't move; clamped as `Laplace` does.

    Raises:
        UsageError: for a noise multiplier or a sensitivity that isn't above 0 and finite.

    Example:
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

    _middle: ClassVar[float] = 0.0  # where in its step the noise is put: it is rounded

    def __post_init__(self) -> None:
        _check_sensitivity(self.sensitivity, "L2")
        _checks.positive("noise_multiplier", self.noise_multiplier, "give the noise in units of the sensitivity")
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

        References:
            Balle and Wang, "Improving the Gaussian mechanism for differential privacy", arXiv 1805.06530, theorem 8, as
            dp-accounting computes it.
        """
        from dp_accounting import get_sigma_gaussian

        _checks.positive("epsilon", epsilon, "give the ε of one release, such as 1.0")
        sigma = float(get_sigma_gaussian(float(epsilon), _checks.delta(delta)))
        return cls(noise_multiplier=sigma * (1 + 1e-9), sensitivity=sensitivity, shape=shape, integers=integers)

    @property
    def step(self) -> float:
        """The grid's step g, a power of two."""
        scale = self.noise_multiplier * self.sensitivity
        if self.integers:
            return whole_step(scale)
        return finest_step(scale, math.isqrt(math.prod(self.shape)) + 1, 2**14)

    @property
    def scale(self) -> float:
        """The noise's standard deviation σ."""
        rounding = 0.0 if self.integers else math.sqrt(math.prod(self.shape)) * self.step
        return self.noise_multiplier * (self.sensitivity + rounding)

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
        return jnp.round(standard_normal(key, shape) * jnp.float32(self.scale / self.step)).astype(jnp.int32)


def _release(mechanism: Laplace | Gaussian, values: Any, key: jax.Array) -> jax.Array:
    _checks.key(key)
    checked = checked_values(values, mechanism.shape, integers=mechanism.integers)
    known = steps_of(checked, mechanism.step) if isinstance(checked, np.ndarray) else checked
    return _on_grid(mechanism, known, key)


@partial(jax.jit, static_argnums=0)
def _on_grid(mechanism: Laplace | Gaussian, values: Any, key: jax.Array) -> jax.Array:
    """Values, or what `steps_of` made of them, with noise."""
    steps = values if isinstance(values, tuple) else steps_of(values, mechanism.step)
    return sum_on_grid(steps, mechanism._noise(key, steps[0].shape), mechanism.step, mechanism._middle)


def _check_sensitivity(sensitivity: Any, norm: str) -> None:
    fix = f"give the {norm} distance by which adding or removing one record can move the values"
    if not 1e-20 <= _checks.positive("sensitivity", sensitivity, fix) <= 1e20:
        raise UsageError(f"sensitivity={sensitivity} must lie between 1e-20 and 1e20: {fix}")


def _check_scale(mechanism: Laplace | Gaussian) -> None:
    largest = _MOST_ON_INTEGERS[type(mechanism).__name__]
    if mechanism.integers and not _LEAST_ON_INTEGERS <= mechanism.scale <= largest:
        raise UsageError(
            f"{mechanism} has noise of scale {mechanism.scale:.3g}: for whole numbers it must lie between 2^-10 and "
            f"2^{math.log2(largest):.0f}; give another sensitivity, or the values as floats"
        )
