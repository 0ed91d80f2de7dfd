"""A run's folder, read back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8

from .._errors import UsageError
from .._options import from_dict


@dataclass(frozen=True)
class FinishedRun:
    """What `jaxdp train` left in a folder.

    Attributes:
        path: the folder.
        options: the options as given, as plain values.
        summary: the results (the content of summary.json); None while the run is unfinished.
        statement: the privacy statement; None for a run without privacy, or unfinished.
        params: the model's parameters.
        step: after how many steps they are.
        metrics: one dict an epoch.
        image_shape: height, width and channels of the images the model takes.
    """

    path: Path
    options: dict[str, Any]
    summary: dict[str, Any] | None
    statement: str | None
    params: Any
    step: int
    metrics: list[dict[str, Any]]
    image_shape: tuple[int, ...]
    _probabilities: Any

    def predict(self, images: UInt8[np.ndarray, "n ..."]) -> Float[np.ndarray, "n classes"]:
        """Class probabilities of images.

        Args:
            images: uint8 [n, height, width, channels], or [n, height, width] for one channel.

        Returns:
            float32 [n, classes].

        Raises:
            UsageError: for images of another shape or dtype than the model was trained on.
        """
        images = np.asarray(images)
        if images.ndim == 3 and self.image_shape[-1] == 1:
            images = images[..., None]
        if images.shape[1:] != self.image_shape or images.dtype != np.uint8 or len(images) == 0:
            raise UsageError(
                f"images have shape {images.shape} and dtype {images.dtype}; the model takes uint8 [n, "
                f"{', '.join(map(str, self.image_shape))}] with n at least 1"
            )
        return self._probabilities(self.params, images)


def load_run(path: str | Path) -> FinishedRun:
    """Bring back a model that `jaxdp train` trained, or a student of `jaxdp pate`.

    Args:
        path: the run's folder.

    Returns:
        A `FinishedRun`, with the parameters of its newest checkpoint.

    Raises:
        UsageError: where the folder holds no run, or no checkpoint that can be read.

    Example:
        run = jaxdp.load_run("runs/mnist-cnn-20260101-120000")
        labels = run.predict(images).argmax(axis=1)
    """
    from ._checkpoint import CheckpointFolder
    from ._folder import RunFolder

    folder = RunFolder.existing(Path(path))
    config = folder.read_json("config.json")
    shape = tuple(config["model"]["image_shape"])
    of_pate = config.get("command") == "pate"
    model, like = _student(config, shape) if of_pate else _trained(config, shape)
    with CheckpointFolder(folder.checkpoints) as checkpoints:
        checkpoint, _ = checkpoints.load(like)
    if checkpoint is None:
        raise UsageError(
            f"{folder.path} has no checkpoint yet: go on with it by jaxdp {config.get('command', 'train')} --resume {folder.path}"
        )
    finished = (folder.path / "summary.json").exists()
    statement = folder.path / "statement.txt"
    return FinishedRun(
        path=folder.path,
        options=config["options"],
        summary=folder.read_json("summary.json") if finished else None,
        statement=statement.read_text() if finished and statement.exists() else None,
        params=checkpoint.state.params[1] if of_pate else checkpoint.state.params,
        step=checkpoint.state.step,
        metrics=folder.metrics(),
        image_shape=shape,
        _probabilities=model.probabilities,
    )


def _trained(config: dict[str, Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The model of a training run, and a state of the structure, shapes, dtypes and accounting that its checkpoints have."""
    from .._run import DPSGD
    from .._step import RunKeys, TrainState
    from ..accounting import Ledger
    from ..transforms import in_float32
    from ._options import TrainOptions
    from ._problem import classifier, optimizer

    options = from_dict(TrainOptions, config["options"])
    model = classifier(options.model, options.activation, config["model"]["num_classes"], shape)
    optimize = optimizer(options.optimizer, 1.0, options.momentum)
    described = config["plan"]["run"]
    run = DPSGD(**described) if described else None
    inner = in_float32(optimize) if run else optimize
    params = jax.eval_shape(model.init, jax.random.key(0))
    keys, spent_before = RunKeys.split_from(jax.random.key(1)), Ledger.from_dict(config["spent_before"])
    return model, TrainState(params, jax.eval_shape(inner.init, params), keys, 0, run=run, spent_before=spent_before)


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
