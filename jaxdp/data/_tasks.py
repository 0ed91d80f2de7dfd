"""Tasks: the meaning of labels, and with it the loss of a record, probabilities, and how they are evaluated.

A data set has a task (`Labelled.task`), and a model's outputs are read by it: nobody asks what a model is called. `TASKS` has
the tasks by the names that a run's folder gives them.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from .. import _checks
from .._errors import UsageError

Loss = tuple[Float[Array, ""], Float[Array, ""]]

_LARGEST = 1e30  # of a number's size, so that float32 has what is computed of it,
_CLOSEST = 1e-4  # and of bounds, beside their size, so that it tells a thousand values between them apart


def too_close(lower: Any, upper: Any) -> Any:
    """Whether float32 tells too few values between bounds apart."""
    return upper - lower < _CLOSEST * np.maximum(np.abs(lower), np.abs(upper))


@runtime_checkable
class Task(Protocol):
    """How a model's outputs are understood: a frozen dataclass whose fields JSON can hold.

    Where the second figure of `loss` and `evaluate` is no accuracy, a method `figures(loss, second) -> dict[str, float]` names
    what a run tells of both, the loss as "loss", as that of `Numbers` does.

    Attributes:
        kind: its name in `TASKS`.
    """

    kind: ClassVar[str]

    @property
    def outputs(self) -> int:
        """How many numbers a model has to give for a record."""
        ...

    @property
    def targets(self) -> int:
        """Over how many targets a record's loss is added up."""
        ...

    def check_labels(self, labels: np.ndarray) -> None:
        """Raise `UsageError` where these can't be labels."""
        ...

    def loss(self, logits: Float[Array, " outputs"], label: Any) -> Loss:
        """(loss, accuracy) of one record."""
        ...

    def probabilities(self, logits: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """The predictions that a model's outputs for one record stand for."""
        ...

    def evaluate(self, probabilities: Float[np.ndarray, "n outputs"], labels: np.ndarray) -> tuple[float, float]:
        """(mean loss of a target, accuracy) of predictions."""
        ...


@dataclass(frozen=True)
class Classes:
    """One class a record: cross-entropy of a softmax, and how often the likeliest class is the label.

    Args:
        count: how many classes there are; labels are whole numbers from 0 to this less one.

    Raises:
        UsageError: for fewer than two classes.
    """

    count: int

    kind: ClassVar[str] = "classes"

    def __post_init__(self) -> None:
        if _checks.count("count", self.count, "give the number of classes") < 2:
            raise UsageError(f"count={self.count} leaves nothing to tell apart: give two classes or more")

    @property
    def outputs(self) -> int:
        """A logit for each class."""
        return self.count

    @property
    def targets(self) -> int:
        """1."""
        return 1

    def check_labels(self, labels: np.ndarray) -> None:
        """Refuse what is no class."""
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise UsageError(
                f"labels have shape {labels.shape} and dtype {labels.dtype}: give whole numbers [n], a class each"
            )
        if len(labels) and not (labels.min() >= 0 and labels.max() < self.count):
            bad = labels.min() if labels.min() < 0 else labels.max()
            raise UsageError(
                f"labels hold {bad}, and of {self.count} classes one is a number from 0 to {self.count - 1}"
            )

    def loss(self, logits: Float[Array, " outputs"], label: Any) -> Loss:
        """Cross-entropy, and whether the largest logit is the label's."""
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, label)
        return loss, (jnp.argmax(logits) == label).astype(jnp.float32)

    def probabilities(self, logits: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """The softmax."""
        return jax.nn.softmax(logits)

    def evaluate(self, probabilities: Float[np.ndarray, "n outputs"], labels: np.ndarray) -> tuple[float, float]:
        """(mean cross-entropy, accuracy)."""
        of_label = probabilities[np.arange(len(labels)), labels].astype(np.float64)
        loss = float(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)).mean())
        return loss, float((probabilities.argmax(axis=1) == labels).mean())


@dataclass(frozen=True)
class Targets:
    """Several binary targets a record, each with a probability of its own: cross-entropies of sigmoids, added up.

    Args:
        count: how many targets there are; labels are 0 or 1, [n, count].

    Raises:
        UsageError: for a count that is not above 0.
    """

    count: int

    kind: ClassVar[str] = "targets"

    def __post_init__(self) -> None:
        _checks.count("count", self.count, "give the number of targets")

    @property
    def outputs(self) -> int:
        """A logit for each target."""
        return self.count

    @property
    def targets(self) -> int:
        """All."""
        return self.count

    def check_labels(self, labels: np.ndarray) -> None:
        """Refuse what isn't 0 or 1."""
        if labels.ndim != 2 or labels.shape[1] != self.count or not np.isin(labels, (0, 1)).all():
            raise UsageError(
                f"labels have shape {labels.shape} and dtype {labels.dtype}: give 0 or 1, [n, {self.count}], one a target"
            )

    def loss(self, logits: Float[Array, " outputs"], label: Any) -> Loss:
        """Added up over the targets: of their mean, a gradient would be too small for a usual clip norm to clip."""
        loss = optax.sigmoid_binary_cross_entropy(logits, label.astype(jnp.float32)).sum()
        return loss, ((logits > 0) == (label > 0)).mean(dtype=jnp.float32)

    def probabilities(self, logits: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """The sigmoids."""
        return jax.nn.sigmoid(logits)

    def evaluate(self, probabilities: Float[np.ndarray, "n outputs"], labels: np.ndarray) -> tuple[float, float]:
        """(mean column-wise log loss, accuracy at 1/2).

        As the drug-response competition does, probabilities are kept 1e-15 away from 0 and 1.
        """
        p = probabilities.astype(np.float64).clip(1e-15, 1 - 1e-15)
        loss = -(labels * np.log(p) + (1 - labels) * np.log1p(-p))
        return float(loss.mean()), float(((p > 0.5) == (labels > 0)).mean())


@dataclass(frozen=True)
class Numbers:
    r"""Several numbers a record, within bounds that are known without the data: squared errors, added up.

    A target \(y\) is scaled to \(\mathrm{clip}((y - m) / h, -1, 1)\), where m is the middle of the bounds and h half their
    distance, and an output is an estimate of that. What is predicted, and held against targets that are not clipped, is
    \(m + h \, \mathrm{clip}(\text{output}, -1, 1)\), in the targets' unit.

    Args:
        count: how many targets there are; labels are numbers, [n, count], in their unit.
        lower: the least that a target can be, in that unit.
        upper: the largest.

    Raises:
        UsageError: for a count that is not above 0, and bounds that aren't finite and in order, or not apart in float32.

    Examples:
        >>> import numpy as np
        >>> task = Numbers(1, 0.0, 200.0)
        >>> loss, mean_absolute_error = task.evaluate(np.array([[50.0], [90.0]]), np.array([[60.0], [110.0]]))
        >>> round(task.figures(loss, mean_absolute_error)["rmse"], 2), mean_absolute_error
        (15.81, 15.0)
    """

    count: int
    lower: float
    upper: float

    kind: ClassVar[str] = "numbers"

    def __post_init__(self) -> None:
        _checks.count("count", self.count, "give the number of targets")
        fix = "give numbers such as 0 100"
        lower, upper = _checks.real("lower", self.lower, fix), _checks.real("upper", self.upper, fix)
        if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
            raise UsageError(f"--target-bounds={lower} {upper} must be finite, the lower one first: such as 0 100")
        largest = max(abs(lower), abs(upper))
        if largest > _LARGEST or upper - lower < 1 / _LARGEST or too_close(lower, upper):
            raise UsageError(
                f"--target-bounds={lower} {upper} are too close together, or too large or small, for float32, which has seven "
                "digits: give targets in another unit, or less a constant"
            )

    @property
    def outputs(self) -> int:
        """An estimate of each target."""
        return self.count

    @property
    def targets(self) -> int:
        """All."""
        return self.count

    @property
    def _middle(self) -> float:
        return (self.lower + self.upper) / 2

    @property
    def _half(self) -> float:
        return (self.upper - self.lower) / 2

    def check_labels(self, labels: np.ndarray) -> None:
        """Refuse what is no finite number."""
        if labels.ndim != 2 or labels.shape[1] != self.count or not np.isfinite(labels).all():
            raise UsageError(
                f"labels have shape {labels.shape} and dtype {labels.dtype}: give finite numbers, [n, {self.count}], one a target"
            )

    def loss(self, logits: Float[Array, " outputs"], label: Any) -> Loss:
        """Added up over the targets, as binary ones' is; and the mean absolute error, in the targets' unit."""
        scaled = ((label.astype(jnp.float32) - self._middle) / self._half).clip(-1, 1)
        errors = jnp.abs(logits.clip(-1, 1) - scaled)
        return jnp.square(logits - scaled).sum(), self._half * errors.mean(dtype=jnp.float32)

    def probabilities(self, logits: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """The estimates, in the targets' unit and within their bounds: no probabilities."""
        return self._middle + self._half * logits.clip(-1, 1)

    def evaluate(self, probabilities: Float[np.ndarray, "n outputs"], labels: np.ndarray) -> tuple[float, float]:
        """(mean squared error in units of half the bounds' distance, mean absolute error in the targets' unit)."""
        errors = probabilities.astype(np.float64) - labels
        return float(np.square(errors / self._half).mean()), float(np.abs(errors).mean())

    def figures(self, loss: float, mean_absolute_error: float) -> dict[str, float]:
        """The loss, and in the targets' unit the root mean squared error, "rmse", and the mean absolute error, "mae"."""
        return {"loss": loss, "rmse": self._half * math.sqrt(loss), "mae": mean_absolute_error}


TASKS: dict[str, type[Task]] = {kind.kind: kind for kind in (Classes, Targets, Numbers)}
