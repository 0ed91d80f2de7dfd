"""A run's folder, read back: the model, and what is known of how it came about."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Num

from .. import _checks
from .._errors import UsageError
from .._types import Params
from ..data import Encoding
from ._checkpoint import CheckpointFolder, load_model
from ._folder import RunFolder, as_written


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A run as its folder has it, finished or under way.

    Attributes:
        path: the folder.
        options: the options as given, as plain values.
        summary: the results (of private/summary.json, or what is published of them where that can't be read); None while the
            run is unfinished.
        statement: the privacy statement; None for a run without privacy, or unfinished.
        params: the model's parameters.
        step: after how many steps they are.
        metrics: one dict an epoch; none where private/ can't be read.
        input_shape: height, width and channels of the images the model takes, the number of a table's features, or the shape of
            one input of another kind.
        input_dtype: the inputs' type: "uint8" for images, "float32" for a table's features.
        encoding: how a table's features are encoded; None for images.
        id_name: what a table's first column is called; None for images.
        target_names: a table's targets; None for images.
        classes: what a table's one target can be, in the order of the probabilities; None where it isn't one of classes.
        task: what predictions are, by its name in `jaxdp.data.TASKS`: "classes", "targets" or "numbers".
    """

    path: Path
    options: dict[str, Any]
    summary: dict[str, Any] | None
    statement: str | None
    params: Params
    step: int
    metrics: list[dict[str, Any]]
    input_shape: tuple[int, ...]
    input_dtype: str
    _probabilities: Any
    encoding: Encoding | None = None
    id_name: str | None = None
    target_names: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    task: str = "classes"

    def __repr__(self) -> str:
        """Where it is, and what came of it; not its parameters."""
        shown = {"path": str(self.path), "step": self.step, "summary": self.summary}
        return f"FinishedRun({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def predict(self, inputs: Num[np.ndarray, "n ..."]) -> Float[np.ndarray, "n classes"]:
        """Class probabilities of images; of a table's features targets' or classes' probabilities, or numbers in their unit.

        Args:
            inputs: images, uint8 [n, height, width, channels], or [n, height, width] for one channel; or features as
                `encoding.read` gives them, float32 [n, features].

        Returns:
            float32 [n, classes], or [n, targets]; of numbers, estimates within the bounds that were declared.

        Raises:
            UsageError: for inputs of another shape or dtype than the model was trained on.
        """
        inputs = np.asarray(inputs)
        dtype = np.dtype(self.input_dtype)
        if inputs.ndim == len(self.input_shape) == 3 and self.input_shape[-1] == 1:
            inputs = inputs[..., None]
        if inputs.shape[1:] != self.input_shape or inputs.dtype != dtype or len(inputs) == 0:
            raise UsageError(
                f"inputs have shape {inputs.shape} and dtype {inputs.dtype}; the model takes {dtype} [n, "
                f"{', '.join(map(str, self.input_shape))}] with n at least 1"
            )
        _checks.held("inputs", inputs)
        return self._probabilities(self.params, inputs)


def load_run(path: str | Path) -> FinishedRun:
    """Bring back a model that `jaxdp train` trained, or a student of `jaxdp pate`.

    Args:
        path: the run's folder.

    Returns:
        A `FinishedRun`, with the final model's parameters, or those of the newest checkpoint while the run is under way. To
        those who can't read private/ it has no metrics, and of the results those that are published.

    Raises:
        UsageError: where the folder holds no run, no checkpoint that can be read, or a model of one's own that isn't in
            `jaxdp.models.MODELS` here: nothing is imported by a name that a file holds.

    Examples:
        run = jaxdp.load_run("runs/mnist-cnn-20260101-120000")
        labels = run.predict(images).argmax(axis=1)
    """
    from ..models import classifier_of  # which imports flax

    folder = RunFolder.existing(_checks.path("path", path))
    config = folder.read_json("config.json")
    with as_written(folder.path / "config.json"):
        described = config.get("model", {})
        table = "encoding" in described
        model = classifier_of(config["network"])
        shape, dtype = tuple(config["network"]["input_shape"]), config["network"]["input_dtype"]
        encoding = Encoding.from_dict(described["encoding"]) if table else None
        target_names = tuple(described["targets"]) if table else None
        classes = tuple(described["classes"]) if "classes" in described else None
    params, step = _newest(folder, config, jax.eval_shape(model.init, jax.random.key(0)))
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
        input_dtype=dtype,
        _probabilities=model.predict,
        encoding=encoding,
        id_name=described.get("id"),
        target_names=target_names,
        classes=classes,
        task=config["network"]["task"]["kind"],
    )


def _newest(folder: RunFolder, config: dict[str, Any], like: Any) -> tuple[Any, int]:
    """(parameters, step) of the final model, or of the newest checkpoint while the run is under way."""
    for private in (False, True):
        model = load_model(folder.model(private=private), like)
        if model is not None:
            return model
    if folder.checkpoints.exists():
        with CheckpointFolder(folder.checkpoints) as checkpoints:
            found = checkpoints.load_model(like)
        if found is not None:
            return found
    if folder.is_finished:
        raise UsageError(
            f"{folder.path} holds no model: it is of a search that drew no run, or its model was taken away"
        )
    raise UsageError(
        f"{folder.path} has no checkpoint yet: go on with it by jaxdp {config.get('command', 'train')} --resume {folder.path}"
    )
