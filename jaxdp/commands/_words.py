"""How options are told on the command line: types in words, a default that is left open as such, other libraries' names."""

import types
from dataclasses import replace
from typing import Any, Union, get_args

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from .._errors import UsageError

IN_WORDS = ConstructorRegistry()
_NUMBERS = {int: ("INTEGER", "a whole number, such as 12"), float: ("NUMBER", "a number, such as 0.5")}
_OPEN = "unset"
_ELSEWHERE = {  # names that other libraries and papers have, by the option that is meant
    "noise_multiplier": ("noise", "sigma", "noise_scale", "noise_stddev"),
    "clip_norm": ("max_grad_norm", "l2_clip", "clip", "clipping_norm", "max_norm", "grad_clip"),
    "lr": ("learning_rate", "eta", "step_size"),
    "epsilon": ("eps", "target_epsilon", "budget"),
    "target_epsilon": ("epsilon", "eps", "budget"),
    "batch_size": ("expected_batch_size", "batch", "lot_size", "logical_batch_size"),
    "microbatch_size": ("microbatches", "num_microbatches", "max_physical_batch_size", "physical_batch_size"),
    "delta": ("target_delta",),
    "epochs": ("num_epochs", "epoch"),
    "steps": ("num_steps", "iterations"),
    "examples": ("num_examples", "n", "sample_size", "dataset_size"),
    "hidden": ("hidden_sizes", "layers"),
    "output": ("out", "output_dir", "save_dir", "logdir"),
    "teachers": ("num_teachers", "nb_teachers"),
    "device": ("platform", "backend"),
    "ema": ("ema_decay",),
    "seed": ("random_seed", "rng"),
}


@IN_WORDS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kind: Any = info.type
    if kind not in _NUMBERS:
        return None
    metavar, words = _NUMBERS[kind]

    def read(given: list[str]) -> Any:
        try:
            return kind(given[0])
        except ValueError as error:
            raise ValueError(f"{given[0]!r} is not {words}") from error

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: (
            isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        ),
        str_from_instance=lambda value: [f"{value:g}" if kind is float and abs(value) < 1e6 else str(value)],
    )


@IN_WORDS.primitive_rule
def _maybe(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
    """A value that may be left open is read and shown as if it had to be given: nobody types None."""
    kinds = get_args(info.type)
    if info.type_origin not in (Union, types.UnionType) or type(None) not in kinds or len(kinds) != 2:
        return None
    [kind] = (kind for kind in kinds if kind is not type(None))
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    if isinstance(spec, UnsupportedTypeAnnotationError):
        return spec
    return replace(
        spec,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: [_OPEN] if value is None else spec.str_from_instance(value),
    )


def check_names(given: list[str], known: set[str]) -> None:
    """Name the right option for one that is another library's.

    Args:
        given: what was typed.
        known: the command's options.

    Raises:
        UsageError: with both names.
    """
    for typed in given:
        name = typed.partition("=")[0].removeprefix("--").replace("-", "_")
        if not typed.startswith("--") or name in known:
            continue
        for right, others in _ELSEWHERE.items():
            if right in known and name in others:
                raise UsageError(f"{typed.partition('=')[0]} is --{right.replace('_', '-')} here: give that")
