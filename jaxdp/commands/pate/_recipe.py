"""The models and the training of teachers and student, chosen on training images held back (`jaxdp pate --holdout`)."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Int

from ..._types import Example, Params
from ...data import Classes
from ...models import Classifier, classifier, distorted, erased
from ...pate._student import StudentStep
from ._options import PateOptions

_TEACHER_LR = {"graph": 0.03, "strided": 3e-3}


class Teaching(NamedTuple):
    """What a teacher is.

    Attributes:
        init: `init(key) -> params`.
        logits: `logits(params, input) -> [classes]`.
        loss: `loss(params, (input, label))`, and `rng=` where it distorts.
    """

    init: Callable[[Any], Any]
    logits: Callable[[Any, Any], Any]
    loss: Callable[..., Any]


def student_model(num_classes: int, image_shape: tuple[int, ...]) -> Classifier:
    """The student's network."""
    return classifier("strided", Classes(num_classes), input_shape=image_shape, input_dtype=np.uint8, activation="relu")


def linear_teaching(num_classes: int, coordinates: int) -> Teaching:
    """A linear model, from zero."""

    def init(key: Any) -> Any:
        del key
        return {"w": jnp.zeros((coordinates, num_classes)), "b": jnp.zeros(num_classes)}

    def logits(params: Params, input: Any) -> Any:
        return input @ params["w"] + params["b"]

    def loss(params: Params, example: Example) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, example[0]), example[1])

    return Teaching(init, logits, loss)


def distorting_teaching(model: Classifier) -> Teaching:
    """A network on distorted images: a shard is small, and what a digit is doesn't change where it is moved a little."""

    def loss(params: Params, example: Example, rng: Any) -> Any:
        logits = model.logits(params, distorted(rng, example[0]))
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    return Teaching(model.init, model.logits, loss)


def teacher_optimizer(options: PateOptions, records: int) -> optax.GradientTransformation:
    """Adam, its learning rate falling to 0 over a teacher's steps."""
    size = -(-records // options.teachers)
    steps = max(1, size * options.teacher_epochs // options.teacher_batch_size)
    rate = options.teacher_lr or _TEACHER_LR[options.teacher_model]
    return optax.adam(optax.cosine_decay_schedule(rate, steps))


def student_optimizer(options: PateOptions, steps: int) -> optax.GradientTransformation:
    """Adam, its learning rate falling to 0 over these steps."""
    return optax.adam(optax.cosine_decay_schedule(options.student_lr, steps))


def student_step(
    model: Classifier, options: PateOptions, labels: Int[np.ndarray, " public"], steps: int
) -> StudentStep:
    """The student's step."""

    def strongly(key: Any, image: Any) -> Any:
        of_motion, of_hole = jax.random.split(key)
        return erased(of_hole, distorted(of_motion, image, turn=0.25, scale=0.18, shift=2.1))

    spread = options.student == "graph"  # most images have a label then, and the others are the doubtful ones
    return StudentStep(
        model.logits,
        student_optimizer(options, steps),
        labels,
        mildly=distorted if spread else partial(distorted, turn=0.06, scale=0.045, shift=0.6),
        strongly=strongly,
        method="fixmatch" if options.student == "fixmatch" else "supervised",
        batch_size=128 if spread else 32,
        unlabelled_batch_size=128,
        confidence=0.9,
    )
