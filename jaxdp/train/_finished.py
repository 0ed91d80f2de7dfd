"""A run's folder, read back."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, Num

from .. import _checks
from .._errors import UsageError
from .._options import from_dict
from ..data import Encoding

if TYPE_CHECKING:
    from ._folder import RunFolder


@dataclass(frozen=True)
class FinishedRun:
    """What `jaxdp train` left in a folder.

    Attributes:
        path: the folder.
        options: the options as given, as plain values.
        summary: the results (of private/summary.json, or what is published of them where that can't be read); None while the
            run is unfinished.
        statement: the privacy statement; None for a run without privacy, or unfinished.
        params: the model's parameters.
        step: after how many steps they are.
        metrics: one dict an epoch; none where private/ can't be read.
        input_shape: height, width and channels of the images the model takes, or the number of a table's features.
        encoding: how a table's features are encoded; None for images.
        id_name: what a table's first column is called; None for images.
        target_names: a table's targets; None for images.
    """

    path: Path
    options: dict[str, Any]
    summary: dict[str, Any] | None
    statement: str | None
    params: Any
    step: int
    metrics: list[dict[str, Any]]
    input_shape: tuple[int, ...]
    _probabilities: Any
    encoding: Encoding | None = None
    id_name: str | None = None
    target_names: tuple[str, ...] | None = None

    def predict(self, inputs: Num[np.ndarray, "n ..."]) -> Float[np.ndarray, "n classes"]:
        """Class probabilities of images, or target probabilities of a table's features.

        Args:
            inputs: images, uint8 [n, height, width, channels], or [n, height, width] for one channel; or features as
                `encoding.read` gives them, float32 [n, features].

        Returns:
            float32 [n, classes], or [n, targets].

        Raises:
            UsageError: for inputs of another shape or dtype than the model was trained on.
        """
        inputs = np.asarray(inputs)
        dtype = np.uint8 if self.encoding is None else np.float32
        if inputs.ndim == 3 and self.input_shape[-1] == 1:
            inputs = inputs[..., None]
        if inputs.shape[1:] != self.input_shape or inputs.dtype != dtype or len(inputs) == 0:
            raise UsageError(
                f"inputs have shape {inputs.shape} and dtype {inputs.dtype}; the model takes {np.dtype(dtype)} [n, "
                f"{', '.join(map(str, self.input_shape))}] with n at least 1"
            )
        return self._probabilities(self.params, inputs)


def load_run(path: str | Path) -> FinishedRun:
    """Bring back a model that `jaxdp train` trained, or a student of `jaxdp pate`.

    Args:
        path: the run's folder.

    Returns:
        A `FinishedRun`, with the final model's parameters, or those of the newest checkpoint while the run is under way. To
        those who can't read private/ it has no metrics, and of the results those that are published.

    Raises:
        UsageError: where the folder holds no run, or no checkpoint that can be read.

    Example:
        run = jaxdp.load_run("runs/mnist-cnn-20260101-120000")
        labels = run.predict(images).argmax(axis=1)
    """
    from ._folder import RunFolder, as_written
    from ._optimizer import params_of

    folder = RunFolder.existing(_checks.path("path", path))
    config = folder.read_json("config.json")
    with as_written(folder.path / "config.json"):
        described = config["model"]
        table = "encoding" in described
        shape = (described["features"],) if table else tuple(described["image_shape"])
        of_pate = config.get("command") == "pate"
        model, like = _student(config, shape) if of_pate else _trained(config, shape)
        encoding = Encoding.from_dict(described["encoding"]) if table else None
        target_names = tuple(described["targets"]) if table else None
    params, step = _newest(folder, config, like, (lambda state: state.params[1]) if of_pate else params_of)
    statement = folder.path / "statement.txt"
    return FinishedRun(
        path=folder.path,
        options=folder.options(),
        summary=folder.summary() if folder.is_finished else None,
        statement=statement.read_text("utf-8") if folder.is_finished and statement.exists() else None,
        params=params,
        step=step,
        metrics=folder.metrics(),
        input_shape=shape,
        _probabilities=model.probabilities,
        encoding=encoding,
        id_name=described.get("id"),
        target_names=target_names,
    )


def _newest(folder: "RunFolder", config: dict[str, Any], like: Any, params_of: Callable[[Any], Any]) -> tuple[Any, int]:
    """(parameters, step) of the final model, or of the newest checkpoint while the run is under way."""
    from ._checkpoint import CheckpointFolder, load_model

    for private in (False, True):
        model = load_model(folder.model(private=private), params_of(like))
        if model is not None:
            return model
    if folder.checkpoints.exists():
        with CheckpointFolder(folder.checkpoints) as checkpoints:
            checkpoint, _ = checkpoints.load(like)
        if checkpoint is not None:
            return params_of(checkpoint.state), checkpoint.state.step
    raise UsageError(
        f"{folder.path} has no checkpoint yet: go on with it by jaxdp {config.get('command', 'train')} --resume {folder.path}"
    )


def _trained(config: dict[str, Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The model of a training run, and a state of the structure, shapes, dtypes and accounting that its checkpoints have."""
    from .._key_source import nonce_as_words
    from .._run import DPSGD
    from .._step import RunKeys, TrainState
    from ..accounting import Ledger
    from ..transforms import in_float32
    from ._optimizer import optimizer
    from ._options import TrainOptions
    from ._problem import classifier
    from ._tables import table_model

    options = from_dict(TrainOptions, config["options"])
    if "encoding" in config["model"]:
        model = table_model(options, config["model"])
    else:
        model = classifier(options.architecture, options.activation, config["model"]["num_classes"], shape)
    optimize = optimizer(options, 1.0, 1)
    described = config["plan"]["run"]
    run = DPSGD(**described) if described else None
    inner = in_float32(optimize) if run else optimize
    params = jax.eval_shape(model.init, jax.random.key(0))
    keys, spent_before = RunKeys.split_from(jax.random.key(1)), Ledger.from_dict(config["spent_before"])
    nonce = nonce_as_words(config["nonce"]) if run else None
    opt_state = jax.eval_shape(inner.init, params)
    return model, TrainState(params, opt_state, keys, 0, run=run, spent_before=spent_before, nonce=nonce)


def _student(config: dict[str, Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The student of a run of PATE, and a state like its checkpoints'."""
    from .._step import RunKeys, TrainState
    from ..pate.command import PateOptions, student_model, student_optimizer

    model = student_model(config["model"]["num_classes"], shape)
    params = jax.eval_shape(model.init, jax.random.key(0))
    optimize = student_optimizer(from_dict(PateOptions, config["options"]), 1)
    return model, TrainState(
        (params, params), jax.eval_shape(optimize.init, params), RunKeys.split_from(jax.random.key(1)), 0
    )
