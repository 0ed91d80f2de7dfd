"""TensorFlow Privacy: its two optimizers, which take Jacobians, and `DPModel`, by `vectorized_map` or by ghost clipping.

A mode that ends in "XLA" compiles the same program with it.
"""

import importlib.metadata
import os
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras_models
import tensorflow as tf
import tensorflow_privacy
from protocol import NotOfferedError, Programs, Task, serve
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
from tensorflow_privacy.privacy.fast_gradient_clipping.registry_functions import (
    layer_normalization,
    nlp_position_embedding,
)

_XLA = ", XLA"
_Program = Callable[[Any, Any], Any]


def build(task: Task) -> Programs:
    """The programs of a mode: "plain", an optimizer's name, "DPModel" or "DPModel, ghost", each also with ", XLA"."""
    _set_up(task)
    way = task.mode.removesuffix(_XLA)
    inputs, logits = keras_models.network(task.workload, task.inputs, unroll=way != "plain")
    model = tf.keras.Model(inputs, logits)
    keras_models.load(model, task.weights)
    if way == "plain":
        clipped, step = _plain(task, model)
    elif way.startswith("DPModel"):
        clipped, step = _by_model(task, model, ghost=way == "DPModel, ghost")
    else:
        clipped, step = _by_optimizer(task, model, getattr(tensorflow_privacy, way))
    return Programs(
        place=lambda inputs, labels: (tf.constant(inputs), tf.constant(labels)),
        clipped=_offered(task, clipped),
        canonical=lambda gradients: keras_models.canonical(model, gradients, task.weights),
        step=_offered(task, step),
        wait=lambda value: tf.test.experimental.sync_devices(),
        peak_bytes=_peak_bytes if task.device == "gpu" else None,
    )


def _set_up(task: Task) -> None:
    if task.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif task.device != "gpu" or not tf.config.list_physical_devices("GPU"):
        raise NotOfferedError(f"TensorFlow finds no {task.device} here")
    tf.config.threading.set_inter_op_parallelism_threads(task.threads)
    tf.config.threading.set_intra_op_parallelism_threads(task.threads)
    tf.config.experimental.enable_tensor_float_32_execution(task.precision != "float32")


def _peak_bytes() -> int:
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def _offered(task: Task, program: _Program) -> _Program:
    """The program, telling what XLA can't compile from what goes wrong."""

    def run(inputs: Any, labels: Any) -> Any:
        try:
            return program(inputs, labels)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            if not task.mode.endswith(_XLA):
                raise
            idle = ("Graph execution error", "Detected at node", "<stack traces")
            lines = [line for line in error.message.splitlines() if line and not line.startswith(idle)]
            raise NotOfferedError(f"XLA can't compile it: {lines[0][:200]}") from error

    return run


def _compiled(task: Task, program: _Program) -> _Program:
    return tf.function(program, jit_compile=task.mode.endswith(_XLA))


def _losses(model: Any, inputs: Any, labels: Any) -> Any:
    """Each example's loss."""
    each = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return each(labels, model(inputs, training=True))


def _plain(task: Task, model: Any) -> tuple[_Program, _Program]:
    """The sum of gradients, and SGD on their mean."""
    variables = model.trainable_variables
    sgd = tf.keras.optimizers.SGD(task.learning_rate)
    sgd.build(variables)

    def clipped(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(_losses(model, inputs, labels))
        return tape.gradient(loss, variables)

    def step(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_losses(model, inputs, labels))
        sgd.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return _compiled(task, clipped), _compiled(task, step)


def _by_optimizer(task: Task, model: Any, optimizer: Any) -> tuple[_Program, _Program]:
    """An optimizer's mean gradients at noise 0, made a sum, and its `minimize`, which is what Keras's `fit` calls."""
    size, variables = len(task.labels), model.trainable_variables
    noiseless, private = (
        optimizer(task.clip_norm, noise, num_microbatches=size, learning_rate=task.learning_rate)
        for noise in (0.0, task.noise_multiplier)
    )

    def clipped(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = _losses(model, inputs, labels)
        return [size * mean for mean, _ in noiseless._compute_gradients(losses, variables, tape=tape)]

    def step(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = _losses(model, inputs, labels)
        private.minimize(losses, variables, tape=tape)

    return _compiled(task, clipped), _compiled(task, step)


def _by_model(task: Task, model: Any, *, ghost: bool) -> tuple[_Program, _Program]:
    """`train_step` at noise 0 with an optimizer that only keeps the mean gradients, as a sum, and `train_step` with SGD."""
    size, variables = len(task.labels), model.trainable_variables
    kept = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    class Keep(tf.keras.optimizers.SGD):
        def apply_gradients(self, pairs: Any) -> None:
            for place, (mean, _) in zip(kept, pairs, strict=True):
                place.assign(size * tf.convert_to_tensor(mean))

    sgd = tf.keras.optimizers.SGD(task.learning_rate)
    sgd.build(variables)
    noiseless = _private_model(task, model, 0.0, Keep(), ghost=ghost)
    private = _private_model(task, model, task.noise_multiplier, sgd, ghost=ghost)

    def clipped(inputs: Any, labels: Any) -> Any:
        noiseless.train_step((inputs, labels))
        return [place.value() for place in kept]

    return tf.function(clipped), tf.function(lambda inputs, labels: private.train_step((inputs, labels)))


def _private_model(task: Task, model: Any, noise_multiplier: float, optimizer: Any, *, ghost: bool) -> Any:
    """A `DPModel` on the layers of a model."""
    private = tensorflow_privacy.DPModel(
        task.clip_norm,
        noise_multiplier,
        use_xla=task.mode.endswith(_XLA),  # of `train_step` alone, as the library does it
        layer_registry=_registry() if ghost else None,
        inputs=model.inputs,
        outputs=model.outputs,
    )
    if ghost and not private._enable_fast_peg_computation:  # the library would clip the slow way without a word
        raise NotOfferedError("fast gradient clipping has no function for some trainable layer")
    private.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return private


def _registry() -> Any:
    """The default registry, of `Dense` and `Embedding`, and the library's functions for what else the models have."""
    registry = layer_registry.make_default_layer_registry()
    registry.insert(tf.keras.layers.LayerNormalization, layer_normalization.layer_normalization_computation)
    registry.insert(keras_models.Positions, nlp_position_embedding.nlp_position_embedding_layer_computation)
    return registry


def _versions() -> dict[str, str]:
    installed = {of.metadata["Name"].replace("_", "-"): of.version for of in importlib.metadata.distributions()}
    return {
        name: installed[name] for name in ("tensorflow-privacy", "tensorflow-cpu", "tensorflow") if name in installed
    }


if __name__ == "__main__":
    serve(build, _versions)
