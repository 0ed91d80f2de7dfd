"""Recipes: the numbers of a run where the user gives none. A recipe is only data, and what is typed wins over it.

Those of private runs on MNIST were chosen on 10,000 of its training examples, held back as `jaxdp train --holdout 10000` does,
never on the test set. What choosing them cost is accounted nowhere.
"""

from dataclasses import dataclass, replace
from typing import Any

from ..._errors import UsageError
from .._options import flag

_FILLED_IN = (  # beside the model and its learning rate
    *("epochs", "batch_size", "momentum", "schedule", "warmup", "ema", "augmentations"),
    *("clip_norm", "noise_multiplier", "target_epsilon", "accountant"),
)
_MNIST = (28, 28, 1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run is made of, but for its data; fields are named as the options are, and mean the same.

    Attributes:
        about: what it is good for, in a line.
        dp: whether it is of a private run.
        input_shape: of one input of the data that it was chosen on; None where it isn't theirs alone.
        sgd_lr: the learning rate of sgd; `adam_lr` that of adam.
    """

    about: str
    model: str
    dp: bool = True
    input_shape: tuple[int, ...] | None = None
    sgd_lr: float = 0.5
    adam_lr: float = 0.001
    epochs: int = 12
    batch_size: int = 1024
    momentum: float = 0.0
    schedule: str = "constant"
    warmup: int = 0
    ema: float = 0.0
    augmentations: int = 0
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    accountant: str | None = None

    def options(self, optimizer: str) -> dict[str, Any]:
        """The options that it fills in, by name, for an optimizer."""
        lr = self.sgd_lr if optimizer == "sgd" else self.adam_lr
        return {"lr": lr} | {name: getattr(self, name) for name in _FILLED_IN}


_CNN = Recipe(
    about="the tutorials' CNN",
    model="cnn",
    input_shape=_MNIST,
    sgd_lr=1.0,
    adam_lr=0.005,
    clip_norm=1.0,
)
_PLAIN_CNN = Recipe(about="the same without privacy", model="cnn", dp=False, sgd_lr=0.3, epochs=5, batch_size=128)
_SCATTERING = Recipe(
    about="the best that two minutes on two cores allow: a linear model on scattering features",
    model="scattering",
    input_shape=_MNIST,
    sgd_lr=1.0,
    momentum=0.9,
    epochs=40,
    batch_size=4096,
    clip_norm=0.1,
)
RECIPES = {
    "scattering": _SCATTERING,
    "scattering-3": replace(
        _SCATTERING, about="the same for epsilon 3 by PLD", sgd_lr=1.75, target_epsilon=3.0, accountant="pld"
    ),
    "scattering-0.3": replace(
        _SCATTERING, about="the same for epsilon 0.3 by PLD", sgd_lr=0.35, target_epsilon=0.3, accountant="pld"
    ),
    "cnn": _CNN,
    "cnn-augmented": replace(
        _CNN,
        about="the same network, better and slower: larger batches, momentum, averaged parameters, four distortions of an image",
        sgd_lr=2.0,
        batch_size=2048,
        momentum=0.9,
        ema=0.9,
        augmentations=4,
        clip_norm=0.1,
    ),
    "mlp": replace(_CNN, about="the tutorials' MLP", model="mlp"),
    "tutorial": Recipe(
        about="TF Privacy's walk-through: batches of 250, noise multiplier 1.3, 15 epochs",
        model="cnn",
        input_shape=_MNIST,
        sgd_lr=0.25,
        epochs=15,
        batch_size=250,
        clip_norm=1.5,
        noise_multiplier=1.3,
    ),
    "dense": Recipe(about="a dense network for tables", model="dense", clip_norm=1.0),
    "dense-numbers": Recipe(
        about="the same for targets that are numbers (--target-bounds)", model="dense", clip_norm=1.0, sgd_lr=0.05
    ),
    "scattering-plain": replace(_PLAIN_CNN, model="scattering", sgd_lr=0.1, epochs=10),
    "cnn-plain": _PLAIN_CNN,
    "mlp-plain": replace(_PLAIN_CNN, model="mlp", epochs=10),
    "dense-plain": replace(_PLAIN_CNN, model="dense", sgd_lr=0.05, epochs=12),
}
_OF_OTHERS = {  # of models that have none of their own, by privacy
    True: Recipe(about="usual values", model="", clip_norm=1.0),
    False: Recipe(about="usual values", model="", dp=False, sgd_lr=0.1, epochs=10, batch_size=128),
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UsageError: for one that is not known.
    """
    if name not in RECIPES:
        raise UsageError(f"--recipe={name} is not known: give one of {', '.join(RECIPES)}")
    return RECIPES[name]


def recipe_for(model: str, *, dp: bool) -> Recipe:
    """The first recipe of a model, with or without privacy; usual values for a model that has none."""
    return next((one for one in RECIPES.values() if (one.model, one.dp) == (model, dp)), _OF_OTHERS[dp])


def overruled(options: Any) -> list[str]:
    """What is typed and differs from the recipe that is named, in words."""
    if options.recipe is None:
        return []
    recipe = options.recipe_in_use
    own = {"dp": recipe.dp, "model": recipe.model} | recipe.options(options.optimizer)
    return [
        f"{flag(name)} {given} in place of {value}"
        for name, value in own.items()
        if value is not None and (given := getattr(options, name)) is not None and given != value
    ]


def check_shape(options: Any, shape: tuple[int, ...]) -> None:
    """Refuse a recipe that is named and was chosen on data of another shape."""
    if options.recipe is not None and (own := options.recipe_in_use.input_shape) not in (None, shape):
        raise UsageError(
            f"--recipe={options.recipe} was chosen on inputs of shape {own}, and one of {options.dataset} has {shape}: leave it "
            "out, and give --model and what else you want of it"
        )
