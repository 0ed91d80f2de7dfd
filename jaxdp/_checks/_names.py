"""Names of arguments: one that is misspelt, or another library's, is answered with the one that is meant."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from .._errors import UsageError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

_CLIP_NORM = ("clip_norm", "max_grad_norm", "l2_norm_clip", "l2_clip", "clip", "clipping_norm", "max_norm", "grad_clip")
_SAME = (  # names that jaxdp, other libraries and papers have for one thing; of those known, the first is meant
    ("noise_multiplier", "noise", "noise_mult", "sigma", "std", "stddev", "noise_scale", "noise_std", "noise_stddev"),
    _CLIP_NORM,
    ("lr", "learning_rate", "eta", "step_size"),
    ("epsilon", "target_epsilon", "eps", "budget"),
    ("batch_size", "expected_batch_size", "batch", "lot_size", "logical_batch_size"),
    ("microbatch_size", "microbatches", "max_physical_batch_size", "physical_batch_size"),
    ("delta", "target_delta"),
    ("epochs", "num_epochs", "epoch"),
    ("steps", "num_steps", "iterations"),
    ("examples", "num_examples", "n", "sample_size", "dataset_size"),
    ("sample_rate", "sampling_rate", "sampling_probability", "q"),
    ("hidden", "hidden_sizes", "layers"),
    ("output", "out", "output_dir", "save_dir", "logdir"),
    ("teachers", "num_teachers", "nb_teachers"),
    ("device", "platform", "backend"),
    ("ema", "ema_decay"),
    ("seed", "key", "random_seed", "rng"),
    ("ledger", "spent_before"),
    ("labels", "groups", "param_labels"),
)


_WITHOUT = {  # names of what has no argument here, with what to do
    "num_microbatches": "each example is clipped by itself here, as with num_microbatches = batch size elsewhere: leave it out "
    "(microbatch_size bounds memory alone)",
    **dict.fromkeys(
        _CLIP_NORM, "give clip_norm to jaxdp.DPSGD, or to jaxdp.clipped_grad, whose clipped sums get noise here"
    ),
    **dict.fromkeys(
        ("batch_argnums", "argnums"),
        "a loss takes (params, example, ...): the gradient is that of its first argument, and the second is given one by one",
    ),
    "keep_batch_dim": "an example is given without an axis of the batch, which a model that wants one gets by x[None]",
    "normalize_by": "give expected_batch_size to jaxdp.privatize, which divides the noisy sum",
    "epochs": "give steps, which are epochs * num_examples / expected_batch_size, rounded",
    "target_epsilon": "give any noise_multiplier, such as 1.0, and then take run.with_noise_for(epsilon=..., delta=...)",
    "delta": "give it where epsilon is asked for, as in run.epsilon(delta=...)",
    "sample_rate": "give expected_batch_size, which is the rate times num_examples",
    "sampling_rate": "give expected_batch_size, which is the rate times num_examples",
    **dict.fromkeys(
        ("grad_sample_mode", "method"),
        'leave it out: norms without per-example gradients are the usual way here (jaxdp.clipped_grad has method="vmap")',
    ),
    "clipping": "clipping by layer or by a quantile of the norms is a rule: give rule=jaxdp.clipping.PerGroup() or "
    "rule=jaxdp.clipping.Quantile()",
    **dict.fromkeys(("secure_mode", "seed"), "all randomness is by keys: of a run by the one that step.init is given"),
    **dict.fromkeys(("lr", "learning_rate"), "give it to the optimizer, such as optax.sgd(0.1)"),
}


def without(name: str) -> str | None:
    """What to do about a name of others that has no counterpart; None for one that has, or is unknown."""
    return _WITHOUT.get(name)


def meant(name: str, known: Collection[str]) -> str | None:
    """The known name of the thing that others call `name`; None where there is none."""
    return next((right for same in _SAME if name in same for right in same if right in known), None)


def names_explained(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, which answers an argument that it doesn't have, or has by its name alone, with the name that is meant."""
    parameters = inspect.signature(function).parameters
    passes_on = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    known = [name for name, each in parameters.items() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    by_name = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    most = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values())  # arguments by position
    called = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def explained(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if len(args) > most and by_name:
            raise UsageError(f"{called} takes these arguments by their names alone: {', '.join(by_name)}")
        for name in kwargs:
            if name in known:
                continue
            free = [each for each in known if each not in kwargs]
            # what is passed on is for others to know
            near = [] if passes_on else difflib.get_close_matches(name, free, n=1)
            right = meant(name, free)
            if right is None and (given := meant(name, known)):
                raise UsageError(f"{called} has no argument {name}: that is {given} here, which is given, too")
            if right is None and (instead := without(name)):
                raise UsageError(f"{called} has no argument {name}: {instead}")
            if right := right or next(iter(near), None):
                raise UsageError(f"{called} has no argument {name}: did you mean {right}?")
        return function(*args, **kwargs)

    return explained


def fields_explained(kind: type[_T]) -> type[_T]:
    """The class, of which `names_explained` is true when it is made."""
    kind.__init__ = names_explained(kind.__init__)
    return kind
