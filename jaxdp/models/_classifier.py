"""A flax model with a task: a loss for one example, probabilities, an accuracy."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Num

from .. import _checks
from .._errors import UsageError
from .._types import Example, Params
from ..data import TASKS, Column, Task
from ..data._tfds import Progress, no_progress
from ..dpsgd import validate
from ._cnn import CNN
from ._dense import Dense
from ._mlp import MLP
from ._scattering_net import ScatteringNet
from ._strided import StridedCNN

MODELS: dict[str, Callable[..., nn.Module]] = {
    "scattering": ScatteringNet,
    "cnn": CNN,
    "mlp": MLP,
    "strided": StridedCNN,
    "dense": Dense,
}
"""Models by name: functions of `num_classes=`, the number of outputs, and of those of `activation=`, `hidden=`, `scales=` and
`dtype=` that they have, to a flax module. It maps one record's input, with `train=`, to logits, and may draw from the rng named
"dropout".

One of your own is a line of your program, before it trains or loads a run with it:

    jaxdp.models.MODELS["mine"] = Mine

A class attribute `takes`, "images" or "features", says that it can do with those alone. A method `prepare(input)` is a fixed
function of one input, computed once for each: what is trained takes its result.
"""

_OURS = tuple(MODELS.values())
_OF_TASKS = ("kind", "outputs", "targets", "loss", "probabilities", "evaluate")
_OF_FLAX = ("num_classes", "parent", "name")  # what isn't a caller's to give
_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}
_AXES = {"images": 3, "features": 1}
_EVALUATION_BATCH = 1000
_PREPARED_AT_ONCE = 32  # which caches hold


@dataclass(frozen=True)
class Classifier:
    """A flax model for inputs of one shape, with the functions that training and prediction need.

    Attributes:
        prepares: whether that is anything but the inputs themselves.
        prepare: `prepare(inputs [n, ...], progress=...) -> [n, ...]`: what the model makes of each input by itself before it
            learns anything, kept on the device; the inputs themselves, where that is nothing. Inputs on disk, here and below,
            are a `jaxdp.data.Column`.
        init: `init(key) -> params`.
        logits: `logits(params, prepared) -> [classes]`, for one input, no unit dropped.
        loss: `loss(params, (prepared, label)) -> (loss, accuracy)` for one example, as the task has it; takes `rng=` if the model
            drops units.
        probabilities: `probabilities(params, prepared [n, ...]) -> float32 [n, classes]`, in batches, on the host.
        predict: the same of inputs that are not prepared.
        evaluate: `evaluate(probabilities, labels) -> (mean loss of a target, accuracy)`, or what the task has in its place.
        figures: `figures(loss, accuracy)`: what a run tells of both, by name.
        described: what `classifier_of` makes it again from, in JSON.
        targets: over how many targets an example's loss is added up.
    """

    prepares: bool
    prepare: Callable[..., Any]
    init: Callable[[Key[Array, ""]], Any]
    logits: Callable[[Any, Any], Float[Array, " classes"]]
    loss: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    probabilities: Callable[[Any, Num[Array | np.ndarray, "n ..."]], Float[np.ndarray, "n classes"]]
    predict: Callable[[Any, Num[np.ndarray, "n ..."]], Float[np.ndarray, "n classes"]]
    evaluate: Callable[[Float[np.ndarray, "n classes"], np.ndarray], tuple[float, float]]
    figures: Callable[[float, float], dict[str, float]]
    described: dict[str, Any]
    targets: int = 1


def classifier(
    name: str, task: Task, *, input_shape: tuple[int, ...], input_dtype: Any, **architecture: Any
) -> Classifier:
    """The model of that name, made for a task and for inputs of that shape and type.

    Args:
        name: in `MODELS`.
        task: what its outputs stand for.
        input_shape: of one input.
        input_dtype: of the inputs.
        **architecture: what the model takes beside the number of its outputs, as plain values; an activation by its name.

    Raises:
        UsageError: for a model that is not known, doesn't take such inputs or such arguments, has other outputs than the task
            asks for, or can't be trained on single examples.
    """
    check_model(name)
    architecture = _checked(name, architecture)
    made = {key: _ACTIVATIONS[value] if key == "activation" else value for key, value in architecture.items()}
    if missing := [each for each in _OF_TASKS if not hasattr(task, each)]:
        raise UsageError(
            f"task={task!r:.100} has no {missing[0]}: give a task of jaxdp.data.TASKS, such as Classes(10)"
        )
    input_shape = _checks.shape(input_shape.tolist() if isinstance(input_shape, np.ndarray) else input_shape)
    input_dtype = _numeric("input_dtype", input_dtype)
    kind = next((kind for kind, axes in _AXES.items() if axes == len(input_shape)), None)
    if not suits(name, kind):
        raise UsageError(
            f"--model={name} takes {_taken_by(name)}, and an input of these data has shape {input_shape}: give "
            f"{models_for(kind) or 'one of your own, in jaxdp.models.MODELS'}"
        )
    network: Any = MODELS[name](num_classes=task.outputs, **made)
    of_one, example = getattr(network, "prepare", None), jax.ShapeDtypeStruct(input_shape, input_dtype)
    if of_one is not None:
        example = jax.eval_shape(of_one, example)
        if not isinstance(example, jax.ShapeDtypeStruct):
            raise UsageError(
                f"--model={name} prepares {type(example).__name__} of an input: let `prepare` return one array"
            )
    try:
        validate(network, example, train=False).check()
    except ZeroDivisionError as error:  # of an initialisation, by the number of what a layer sees
        raise _sees_nothing(name, input_shape) from error

    @jax.jit
    def init(key: Key[Array, ""]) -> Any:
        return network.init(key, jnp.zeros(example.shape, example.dtype), train=False)["params"]

    if not all(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)))):
        raise _sees_nothing(name, input_shape)

    def logits(params: Params, input: Any) -> Float[Array, " classes"]:
        return network.apply({"params": params}, input, train=False)

    def loss(params: Params, example: Example) -> Any:
        return task.loss(network.apply({"params": params}, example[0], train=True), example[1])

    def loss_with_dropout(params: Params, example: Example, rng: Key[Array, ""]) -> Any:
        logits = network.apply({"params": params}, example[0], train=True, rngs={"dropout": rng})
        return task.loss(logits, example[1])

    @jax.jit
    def batch_probabilities(params: Params, inputs: Any) -> Float[Array, "n classes"]:
        return jax.vmap(lambda input: task.probabilities(logits(params, input)))(inputs)

    def batch_predictions(params: Params, inputs: Any) -> Float[Array, "n classes"]:
        return batch_probabilities(params, _prepared(of_one, inputs))

    params = jax.eval_shape(init, jax.random.key(0))
    given = jax.eval_shape(logits, params, example).shape
    if given != (task.outputs,):
        raise UsageError(
            f"--model={name} gives outputs of shape {given}, and {task} needs ({task.outputs},): make as many as num_classes says"
        )
    return Classifier(
        of_one is not None,
        partial(_prepared, of_one),
        init,
        logits,
        loss_with_dropout if _drops_units(network, params, example) else loss,
        partial(_in_batches, batch_probabilities),
        partial(_in_batches, batch_predictions),
        task.evaluate,
        getattr(task, "figures", _loss_and_accuracy),
        {
            "model": name,
            "architecture": architecture,
            "task": {"kind": task.kind, **asdict(task)},  # pyright: ignore[reportArgumentType]
            "input_shape": input_shape,
            "input_dtype": str(np.dtype(input_dtype)),
        },
        task.targets,
    )


def classifier_of(described: Mapping[str, Any]) -> Classifier:
    """The classifier that `described` describes, as read from JSON.

    Raises:
        UsageError: for a model or a task that is not known here: nothing is imported by a name that a file holds; and for what
            isn't a description.
    """
    needed = ("model", "architecture", "task", "input_shape", "input_dtype")
    _checks.instance("described", described, Mapping, "give the `described` of a Classifier")
    if missing := [each for each in needed if each not in described]:
        raise UsageError(
            f"described has no {missing[0]!r}: give the `described` of a Classifier, with {', '.join(needed)}"
        )
    task = dict(described["task"])
    if (kind := task.pop("kind")) not in TASKS:
        raise UsageError(
            f"the task {kind!r} is none of {', '.join(TASKS)}: put one of your own into jaxdp.data.TASKS first"
        )
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in described["architecture"].items()
    }
    return classifier(
        described["model"],
        TASKS[kind](**task),
        input_shape=tuple(described["input_shape"]),
        input_dtype=np.dtype(described["input_dtype"]),
        **plain,
    )


def check_model(name: str) -> None:
    """Refuse a model that isn't in `MODELS`."""
    if not isinstance(name, str) or name not in MODELS:
        raise UsageError(
            f"--model={name} is not known: give one of {', '.join(sorted(MODELS))}, or put one of your own into "
            "jaxdp.models.MODELS first"
        )


def _checked(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """A model's arguments; refuses those that it doesn't take, and of our own models values that they can't do with."""
    taken = [each for each in options_of(name) if each not in _OF_FLAX]
    try:
        inspect.signature(MODELS[name]).bind_partial(**given, num_classes=1)
    except TypeError as error:
        unknown = next((each for each in given if each not in taken), "")
        raise UsageError(f"the model {name} takes no {unknown}=: it takes {', '.join(taken) or 'nothing'}") from error
    checks = {"activation": _activation} | (_CHECKS if MODELS[name] in _OURS else {})
    return {each: checks[each](value) if each in checks else value for each, value in given.items()}


def _numeric(name: str, value: Any) -> np.dtype[Any]:
    """A dtype that numbers have."""
    try:
        dtype = jnp.dtype("none" if value is None else value)  # None is float64
    except TypeError as error:
        raise UsageError(f"{name}={value!r:.100} is no dtype: give one such as uint8 or float32") from error
    if dtype.kind in "mM" or not any(jnp.issubdtype(dtype, kind) for kind in (jnp.number, jnp.bool_)):
        raise UsageError(f"{name}={dtype} isn't of numbers: give one such as uint8 or float32")
    return dtype


def _activation(value: Any) -> str:
    try:
        _ACTIVATIONS[value]
        return value
    except (KeyError, TypeError) as error:
        raise UsageError(f"activation={value!r:.100} is not known: give one of {', '.join(_ACTIVATIONS)}") from error


def _hidden(value: Any) -> tuple[int, ...]:
    fix = "give the widths of the hidden layers, such as (256, 64)"
    _checks.instance("hidden", value, tuple | list | np.ndarray, fix)
    return tuple(_checks.count("hidden", width, fix) for width in value)


def _dropout(value: Any) -> float:
    if (dropped := _checks.non_negative("dropout", value, "give a probability below 1")) >= 1:
        raise UsageError(f"dropout={value} would drop every unit: give a probability below 1")
    return dropped


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "hidden": _hidden,
    "scales": lambda value: _checks.count("scales", value, "give the number of octaves, such as 2"),
    "dropout": _dropout,
    "dtype": lambda value: _checks.one_of("dtype", _numeric("dtype", value).name, ("float32", "bfloat16", "float16")),
    "width": lambda value: _checks.count("width", value, "give a number of channels, such as 32"),
    "weight_norm": lambda value: _checks.flag("weight_norm", value),
}


def _sees_nothing(name: str, input_shape: tuple[int, ...]) -> UsageError:
    return UsageError(
        f"--model={name} has a layer that sees nothing of inputs of shape {input_shape}: give larger inputs, or another model"
    )


def suits(name: str, kind: str | None) -> bool:
    """Whether a model takes inputs of a kind: "images", "features", or None for others; raises `UsageError` as `options_of`."""
    check_model(name)
    return _taken_by(name) in (None, kind)


def sees_pixels(name: str) -> bool:
    """Whether a model is trained on images themselves, not on what it prepares of them."""
    return suits(name, "images") and not hasattr(MODELS[name], "prepare")


def models_for(kind: str | None) -> str:
    """The names of the models that take inputs of a kind, for an error."""
    return ", ".join(sorted(name for name in MODELS if suits(name, kind)))


def options_of(name: str) -> dict[str, Any]:
    """The arguments that a model takes, with their defaults; raises `UsageError` for one that isn't in `MODELS`."""
    check_model(name)
    return {key: of.default for key, of in inspect.signature(MODELS[name]).parameters.items()}


def _prepared(
    of_one: Callable[..., Any] | None,
    inputs: Num[Array | np.ndarray, "n ..."] | Column,
    progress: Progress = no_progress,
) -> Num[Array | np.ndarray, "n ..."] | Column:
    """What a function makes of each input, on the device; `progress` is as in `jaxdp.data`."""
    if of_one is None:
        return inputs
    size, rows = len(inputs), min(_EVALUATION_BATCH, len(inputs))
    one = jax.eval_shape(of_one, jax.ShapeDtypeStruct(inputs.shape[1:], inputs.dtype))
    found = jnp.empty((size, *one.shape), one.dtype)
    for start in progress(range(0, size, rows), "preparing inputs"):
        at = min(start, size - rows)
        found = _with_rows(of_one, found, inputs[at : at + rows], at)
    return found


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _with_rows(of_one: Callable[..., Any], found: Array, inputs: Any, at: Any) -> Array:
    """`found`, with what a function makes of each of these inputs from a row on."""
    made = jax.lax.map(of_one, inputs, batch_size=_PREPARED_AT_ONCE)
    return jax.lax.dynamic_update_slice_in_dim(found, made, at, axis=0)


def _in_batches(
    function: Callable[..., Any], params: Params, inputs: Num[Array | np.ndarray, "n ..."] | Column
) -> Float[np.ndarray, "n classes"]:
    """A function of parameters and as many inputs as are evaluated at once, for all inputs, on the host."""
    if not len(inputs):
        raise UsageError("inputs has no rows: give at least one input")
    rows, parts = min(_EVALUATION_BATCH, len(inputs)), []
    for start in range(0, len(inputs), rows):
        part = inputs[start : start + rows]
        if missing := rows - len(part):
            padding: Any = [(0, missing), *[(0, 0)] * (inputs.ndim - 1)]
            part = np.pad(part, padding)
        parts.append(np.asarray(function(params, part))[: rows - missing])
    return np.concatenate(parts)


def _drops_units(network: nn.Module, params: Params, example: Example) -> bool:
    """Whether training draws random numbers, of the rng named "dropout"."""
    try:
        jax.eval_shape(lambda params, input: network.apply({"params": params}, input, train=True), params, example)
    except flax.errors.InvalidRngError:
        return True
    return False


def _loss_and_accuracy(loss: float, accuracy: float) -> dict[str, float]:
    return {"loss": loss, "accuracy": accuracy}


def _taken_by(name: str) -> str | None:
    return getattr(MODELS[name], "takes", None)
