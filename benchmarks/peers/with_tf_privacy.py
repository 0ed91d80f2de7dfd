"""TensorFlow Privacy: its two optimizers, which take Jacobians, and `DPModel`, by `vectorized_map` or by ghost clipping.

A mode that ends in "XLA" compiles the same program with it.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from typing import Any

from protocol import NotOfferedError, Programs, Task, serve

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
_XLA = ", XLA"


def build(task: Task) -> Programs:
    """The programs of a mode: "plain", an optimizer's name, "DPModel" or "DPModel, ghost", each also with ", XLA"."""
    import tensorflow as tf

    _set_up(task)
    import keras_models

    inputs, logits = keras_models.network(task.workload, task.inputs)
    model = tf.keras.Model(inputs, logits)
    keras_models.load(model, task.weights)
    way = task.mode.removesuffix(_XLA)
    if way == "plain":
        clipped, step = _plain(task, model)
    elif way.startswith("DPModel"):
        clipped, step = _by_model(task, model, ghost=way.endswith("ghost"))
    else:
        clipped, step = _by_optimizer(task, model, way)
    return Programs(
        place=lambda inputs, labels: (tf.constant(inputs), tf.constant(labels)),
        clipped=_offered(task, clipped),
        canonical=lambda gradients: keras_models.canonical(model, gradients, task.weights),
        step=_offered(task, step),
        wait=lambda value: tf.test.experimental.sync_devices(),
        peak_bytes=_peak_bytes if task.device == "gpu" else None,
    )


def _set_up(task: Task) -> None:
    import tensorflow as tf

    if task.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif task.device != "gpu" or not tf.config.list_physical_devices("GPU"):
        raise NotOfferedError(f"TensorFlow finds no {task.device} here")
    tf.config.threading.set_inter_op_parallelism_threads(task.threads)
    tf.config.threading.set_intra_op_parallelism_threads(task.threads)
    tf.config.experimental.enable_tensor_float_32_execution(task.precision != "float32")


def _peak_bytes() -> int:
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def _compiled(task: Task, program: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    import tensorflow as tf

    return tf.function(program, jit_compile=task.mode.endswith(_XLA))


def _offered(task: Task, program: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The program, with what XLA can't compile told from what goes wrong."""
    import tensorflow as tf

    def run(inputs: Any, labels: Any) -> Any:
        try:
            return program(inputs, labels)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            if task.mode.endswith(_XLA):
                raise NotOfferedError(f"XLA: {error.message.splitlines()[0]}") from error
            raise

    return run


def _losses(model: Any, inputs: Any, labels: Any) -> Any:
    """Each example's loss."""
    import tensorflow as tf

    each = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return each(labels, model(inputs, training=True))


def _plain(task: Task, model: Any) -> tuple[Any, Any]:
    """The sum of gradients, and SGD on their mean."""
    import tensorflow as tf

    sgd = tf.keras.optimizers.SGD(task.learning_rate)
    sgd.build(model.trainable_variables)

    def gradient(inputs: Any, labels: Any, reduce: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = reduce(_losses(model, inputs, labels))
        return tape.gradient(loss, model.trainable_variables)

    def step(inputs: Any, labels: Any) -> Any:
        gradients = gradient(inputs, labels, tf.reduce_mean)
        sgd.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return _compiled(task, lambda inputs, labels: gradient(inputs, labels, tf.reduce_sum)), _compiled(task, step)


def _by_optimizer(task: Task, model: Any, name: str) -> tuple[Any, Any]:
    """An optimizer's gradients at noise 0, whose mean becomes a sum, and its `minimize`, as Keras's `fit` calls it."""
    import tensorflow as tf
    import tensorflow_privacy

    size, variables = len(task.labels), model.trainable_variables
    make = getattr(tensorflow_privacy, name)
    noiseless, private = (
        make(task.clip_norm, noise, num_microbatches=size, learning_rate=task.learning_rate)
        for noise in (0.0, task.noise_multiplier)
    )

    def clipped(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = _losses(model, inputs, labels)
        return [size * mean for mean, _ in noiseless._compute_gradients(losses, variables, tape=tape)]

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = _losses(model, inputs, labels)
        private.minimize(losses, variables, tape=tape)

    return _compiled(task, clipped), _compiled(task, step)


def _by_model(task: Task, model: Any, *, ghost: bool) -> tuple[Any, Any]:
    """`train_step` at noise 0 with an optimizer that only keeps the mean gradients, and `train_step` with SGD."""
    import tensorflow as tf

    class Keep(tf.keras.optimizers.SGD):
        def apply_gradients(self, pairs: Any, **options: Any) -> None:
            for place, (gradient, _) in zip(kept, pairs, strict=True):
                place.assign(size * tf.convert_to_tensor(gradient))

    size = len(task.labels)
    kept = [tf.Variable(tf.zeros_like(variable)) for variable in model.trainable_variables]
    noiseless = _private_model(task, model, 0.0, Keep(), ghost=ghost)
    private = _private_model(
        task, model, task.noise_multiplier, tf.keras.optimizers.SGD(task.learning_rate), ghost=ghost
    )
    private.optimizer.build(model.trainable_variables)

    @tf.function
    def clipped(inputs: Any, labels: Any) -> Any:
        noiseless.train_step((inputs, labels))
        return [place.value() for place in kept]

    return clipped, tf.function(lambda inputs, labels: private.train_step((inputs, labels)))


def _private_model(task: Task, model: Any, noise_multiplier: float, optimizer: Any, *, ghost: bool) -> Any:
    """A `DPModel` on the layers of a model."""
    import tensorflow as tf
    from tensorflow_privacy import DPModel

    private = DPModel(
        task.clip_norm,
        noise_multiplier,
        use_xla=task.mode.endswith(_XLA),
        layer_registry=_registry() if ghost else None,
        inputs=model.inputs,
        outputs=model.outputs,
    )
    if ghost and not private._enable_fast_peg_computation:  # without a word it would take the other way
        raise NotOfferedError("a trainable layer is not in the registry of layers for fast gradient clipping")
    private.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return private


def _registry() -> Any:
    """The default registry, of `Dense` and `Embedding`, and the library's functions for what else the models have."""
    import keras_models
    import tensorflow as tf
    from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
    from tensorflow_privacy.privacy.fast_gradient_clipping.registry_functions import (
        layer_normalization,
        nlp_position_embedding,
    )

    registry = layer_registry.make_default_layer_registry()
    registry.insert(tf.keras.layers.LayerNormalization, layer_normalization.layer_normalization_computation)
    registry.insert(keras_models.Positions, nlp_position_embedding.nlp_position_embedding_layer_computation)
    return registry


def _versions() -> dict[str, str]:
    packages = {package.lower() for package in ("tensorflow-privacy", "tensorflow-cpu", "tensorflow")}
    return {
        distribution.metadata["Name"]: distribution.version
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"].lower() in packages
    }


if __name__ == "__main__":
    serve(build, _versions)
