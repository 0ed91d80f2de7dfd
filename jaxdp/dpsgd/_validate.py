"""Layers of a flax or Equinox model that can't be trained privately, and their substitutes.

DP-SGD bounds what one example can do through its gradient. A layer that mixes the examples of a batch, or that remembers
something of them outside the parameters, goes past that bound.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import jax

from .._errors import UsageError

_SUBSTITUTES = {
    "BatchNorm": "LayerNorm, which normalises each example on its own, or GroupNorm, to which flax gives x[None] for x",
    "SpectralNorm": "WeightNorm, or jaxdp.models.WeightNormDense, which keep no estimate between steps",
}
_WHY = {
    "BatchNorm": "normalises by the mean and the variance of the whole batch, and stores them: an example reaches the gradients "
    "of others, and the stored statistics have no noise",
    "SpectralNorm": "stores an estimate that every step changes",
}
_WITHOUT_FIRST_AXIS = ("GroupNorm", "InstanceNorm")  # of flax
_STATE = "a variable that is a parameter, or none: what a step stores of its examples has no noise"
_FIRST_AXIS = (
    "takes the first axis for a batch's, which one example hasn't: call it on x[None], and take [0] of what comes out"
)
_STORED = (
    "normalises by stored statistics, as pretrained ones, and stores none while it is called so: they must not be of the private "
    "data, nor among the parameters that are trained"
)
_STREAM = (
    "draws from the stream {tag!r} of its own, which a loss can't advance, and a copy would draw the same for all examples: in "
    "the loss, merge one by nnx.merge(..., copy=True) and nnx.reseed(it, {tag}=rng{several}) with the example's own key, its "
    "argument rng="
)
_KEY = (
    "draws from the key that it is called with: in the loss, let that be the example's own, its argument rng=, since one that "
    "the loss closes over draws the same for all examples; and predict with eqx.nn.inference_mode(model)"
)


@dataclass(frozen=True)
class Obstacle:
    """A layer that can't be trained privately.

    Attributes:
        path: the layer's place in the model, as "Encoder_0/BatchNorm_1".
        kind: its class, or the collection of a variable that isn't a parameter.
        why: what is wrong with it.
        substitute: what to use in its place.
    """

    path: str
    kind: str
    why: str
    substitute: str

    def __str__(self) -> str:
        return f"{self.path} ({self.kind}) {self.why}: use {self.substitute}"


@dataclass(frozen=True)
class Validation:
    """The findings of `validate`; no obstacles, where the model can be trained privately.

    Attributes:
        obstacles: the layers that can't.
        hints: what the loss has to see to, in sentences.
    """

    obstacles: tuple[Obstacle, ...]
    hints: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise `UsageError` if there is any obstacle, naming each."""
        if self.obstacles:
            raise UsageError("the model can't be trained privately: " + "; ".join(map(str, self.obstacles)))

    def __str__(self) -> str:
        condition = ", if the loss sees to this:" if self.hints else ""
        none = f"nothing in the model stands against private training{condition}"
        return "\n".join((*(map(str, self.obstacles) if self.obstacles else [none]), *self.hints))


def validate(model: Any, *inputs: Any, **keywords: Any) -> Validation:
    """Look through a flax or Equinox model for what can't be trained privately. Nothing is computed.

    Args:
        model: a `flax.linen` module, an `nnx` one, or an `equinox.Module`.
        *inputs: of a `flax.linen` model, for one example: arrays, or `jax.ShapeDtypeStruct`; others need none.
        **keywords: of that model's call, such as `train=True`.

    Returns:
        A `Validation`, which prints as a list and whose `check()` raises.

    Raises:
        UsageError: for what is no module of these.

    Examples:
        >>> import flax.linen as nn, jax
        >>> model = nn.Sequential([nn.Dense(8), nn.BatchNorm(use_running_average=False), nn.Dense(2)])
        >>> [obstacle.path for obstacle in validate(model, jax.ShapeDtypeStruct((4,), "float32")).obstacles]
        ['layers_1']
    """
    import flax.linen as nn
    from flax import nnx

    if isinstance(model, nn.Module):
        obstacles, hints = _of_linen(model, inputs, keywords)
        return Validation(tuple(obstacles), tuple(hints))
    if isinstance(model, nnx.Module):
        return Validation(tuple(_of_nnx(model)), tuple(_hints_of_nnx(model)))
    if "equinox" in sys.modules and isinstance(model, sys.modules["equinox"].Module):
        return Validation(tuple(_of_equinox(model)), tuple(_hints_of_equinox(model)))
    raise UsageError(
        f"model is a {type(model).__name__}: give a flax.linen, nnx or Equinox module; of other frameworks the loss alone counts"
    )


def _of_linen(model: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[list[Obstacle], list[str]]:
    """The obstacles, and the hints."""
    import flax.linen as nn

    layers: dict[tuple[str, ...], str] = {}
    by_stored: dict[tuple[str, ...], bool] = {}  # normalisations, and whether every call is by stored statistics

    def seen(next_call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module, path = context.module, tuple(context.module.path)
        layers.setdefault(path, _kind_of(module))
        if isinstance(module, nn.BatchNorm) and context.method_name == "__call__":
            stored = kwargs.get("use_running_average", args[1] if len(args) > 1 else None)
            stored = module.use_running_average if stored is None else stored
            by_stored[path] = stored is True and by_stored.get(path, True)
        return next_call(*args, **kwargs)

    def init(*inputs: Any) -> Any:
        names = ("params", "dropout", "default")
        keys = dict(zip(names, jax.random.split(jax.random.key(0), len(names)), strict=True))
        with nn.intercept_methods(seen):
            return model.init(keys, *inputs, **keywords)

    try:
        collections = jax.eval_shape(init, *inputs)
    except TypeError as error:
        if inputs:
            raise
        raise UsageError(
            f"the model can't be called without an input ({error}): give it one example's, as validate(model, x)"
        ) from error
    ours = [path for path, kind in layers.items() if kind in _WITHOUT_FIRST_AXIS]
    hints = [f"{'/'.join(path) or 'the model itself'} {_FIRST_AXIS}" for path in ours]
    stored = {path for path, always in by_stored.items() if always}
    hints += [f"{'/'.join(path) or 'the model itself'} {_STORED}" for path in sorted(stored)]
    return list(_in_linen(layers, collections, stored)), hints


def _kind_of(module: Any) -> str:
    """The name of its class, or of the known one that it is made of."""
    names = [each.__name__ for each in type(module).__mro__]
    return next((name for name in names if name in (*_SUBSTITUTES, *_WITHOUT_FIRST_AXIS)), names[0])


def _in_linen(layers: dict[tuple[str, ...], str], collections: Any, stored: set[tuple[str, ...]]) -> Iterator[Obstacle]:
    known = {path for path, kind in layers.items() if kind in _SUBSTITUTES}
    for path in sorted(known - stored):
        yield _obstacle(path, layers[path])
    for name, variables in collections.items():
        if name == "params":
            continue
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(variables)]
        named = [takewhile(lambda entry: isinstance(entry, jax.tree_util.DictKey), path) for path in paths]
        for owner in sorted({tuple(entry.key for entry in path)[:-1] for path in named}):
            if not any(owner[: len(path)] == path for path in known):
                kind = f"{layers.get(owner, 'module')} with variables in {name!r}"
                yield Obstacle("/".join(owner) or "the model itself", kind, "keeps state beside its parameters", _STATE)


def _of_nnx(model: Any) -> Iterator[Obstacle]:
    from flax import nnx

    for path, node in nnx.iter_graph(model):
        names = tuple(map(str, path))
        if isinstance(node, nnx.Module) and _kind_of(node) in _SUBSTITUTES:
            if not _is_by_stored_of_nnx(node):
                yield _obstacle(names, _kind_of(node))
        elif (
            isinstance(node, nnx.Variable)
            and not isinstance(node, nnx.Param | nnx.LoRAParam | nnx.RngState)
            and not _inside_known(model, path)
        ):
            yield Obstacle("/".join(names), type(node).__name__, "keeps state beside its parameters", _STATE)


def _hints_of_nnx(model: Any) -> Iterator[str]:
    from flax import nnx

    for path, node in nnx.iter_graph(model):
        if isinstance(node, nnx.RngStream):
            several = ', policy="match_shape"' if node.key.shape else ""  # of layers that nnx.vmap made
            told = _STREAM.format(tag=node.tag, several=several)
            yield f"{'/'.join(map(str, path[:-1])) or 'the model itself'} {told}"
        elif isinstance(node, nnx.Module) and _kind_of(node) in _WITHOUT_FIRST_AXIS:
            yield f"{'/'.join(map(str, path)) or 'the model itself'} {_FIRST_AXIS}"
        elif _is_by_stored_of_nnx(node):
            yield f"{'/'.join(map(str, path)) or 'the model itself'} {_STORED}"


def _is_by_stored_of_nnx(node: Any) -> bool:
    """Whether it is a normalisation that `model.eval()` has left with its statistics."""
    from flax import nnx

    return isinstance(node, nnx.BatchNorm) and node.use_running_average is True


def _hints_of_equinox(model: Any) -> Iterator[str]:
    nn = sys.modules["equinox"].nn
    is_told = lambda node: isinstance(node, nn.Dropout | nn.BatchNorm)
    for path, node in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_told):
        if is_told(node) and node.inference == isinstance(node, nn.BatchNorm):
            yield f"{'/'.join(_names(path)) or 'the model itself'} {_STORED if node.inference else _KEY}"


def _names(path: Any) -> tuple[str, ...]:
    """A place in an Equinox model."""
    return tuple(str(getattr(entry, "name", getattr(entry, "idx", entry))) for entry in path)


def _of_equinox(model: Any) -> Iterator[Obstacle]:
    nn = sys.modules["equinox"].nn
    is_found = lambda node: isinstance(node, nn.StateIndex) or _kind_of(node) in _SUBSTITUTES
    for path, node in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_found):
        names = _names(path)
        if _kind_of(node) in _SUBSTITUTES:
            if not (isinstance(node, nn.BatchNorm) and node.inference is True):
                yield _obstacle(names, _kind_of(node))
        elif is_found(node):
            yield Obstacle(
                "/".join(names) or "the model itself", "StateIndex", "keeps state beside its parameters", _STATE
            )


def _inside_known(model: Any, path: tuple[Any, ...]) -> bool:
    node: Any = model
    for entry in path[:-1]:
        node = node[entry] if isinstance(node, list | tuple | dict) else getattr(node, str(entry), None)
    return _kind_of(node) in _SUBSTITUTES


def _obstacle(path: tuple[str, ...], kind: str) -> Obstacle:
    return Obstacle("/".join(path) or "the model itself", kind, _WHY[kind], _SUBSTITUTES[kind])
