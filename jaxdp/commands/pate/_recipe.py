"""The model and the training of teachers and student, chosen on training images held back (`jaxdp pate --holdout`)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Int

from ..._types import Example, Params
from ...data import Classes
from ...models import Classifier, classifier, distorted, erased
from ...pate._student import StudentStep
from ._options import PateOptions


def student_model(num_classes: int, image_shape: tuple[int, ...]) -> Classifier:
    """The network of teachers and student alike."""
    return classifier("strided", Classes(num_classes), input_shape=image_shape, input_dtype=np.uint8, activation="relu")


def teacher_loss(model: Classifier) -> Callable[..., Any]:
    """Cross-entropy on a distorted image: a shard is small, and what a digit is doesn't change where it is moved a little."""

    def loss(params: Params, example: Example, rng: Any) -> Any:
        logits = model.logits(params, distorted(rng, example[0]))
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    return loss


def teacher_optimizer(options: PateOptions, records: int) -> optax.GradientTransformation:
    """Adam, its learning rate falling to 0 over a teacher's steps."""
    size = -(-records // options.teachers)
    steps = max(1, size * options.teacher_epochs // options.teacher_batch_size)
    return optax.adam(optax.cosine_decay_schedule(options.teacher_lr, steps))


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

    return StudentStep(
        model.logits,
        student_optimizer(options, steps),
        labels,
        mildly=partial(distorted, turn=0.06, scale=0.045, shift=0.6),
        strongly=strongly,
        method=options.student,
        batch_size=32,
        unlabelled_batch_size=128,
        confidence=0.9,
    )
