"""The accountant's questions: `jaxdp epsilon`, `noise`, `steps` and `batch-size`.

Each describes a run, asks every accountant that can account it, and shows the answers in a table or as JSON.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console
from rich.table import Table

from .. import _checks, accounting, dpsgd, sampling
from .._errors import UsageError
from ..runs._report import say
from ._effects import CUTTING, Effect, check_effects
from ._sampling import SamplingName, adjacency_of, cut_nearly_always

_MOST_STEPS = 2**24
_NAMES = {"rdp": "RDP (dp-accounting)", "pld": "PLD (dp-accounting)", "classic": "RDP, classic conversion"}
_EPOCHS = 15
_LENGTH = Effect(
    ("epochs",),
    lambda run: run.steps is None,
    lambda run: f"beside --steps={run.steps}, which is given instead",
    ", or --steps",
)


@dataclass(frozen=True, kw_only=True)
class SampledOptions:
    """The options that the accountant's questions have in common."""

    examples: int = 60_000
    """number of training examples; by default MNIST's"""
    delta: float = 1e-5
    """the delta of (epsilon, delta), below 1 / examples"""
    sampling: SamplingName = "poisson"
    """how batches are drawn: poisson; truncated_poisson, at most --truncated-batch-size of that; shuffle, each once an epoch"""
    truncated_batch_size: int | None = None
    """the most examples of a batch with --sampling truncated_poisson"""
    adjacency: Literal["add_or_remove_one", "replace_special", "replace_one"] | None = None
    """which data sets are neighbours; add_or_remove_one by default, and replace_special with --sampling shuffle"""
    clip_norm: float = 1.0
    """L2 norm to which each example's gradient is clipped; named in the statement, without influence on epsilon"""
    json: bool = False
    """print JSON"""
    effects: ClassVar[tuple[Effect, ...]] = (CUTTING,)


@dataclass(frozen=True, kw_only=True)
class _Sized(SampledOptions):
    batch_size: int = 256
    """expected number of examples a step"""


@dataclass(frozen=True, kw_only=True)
class _Timed(_Sized):
    epochs: int | None = None
    """passes over the data, of examples / batch size steps each, rounded (up with --sampling shuffle); 15 by default"""
    steps: int | None = None
    """number of steps, instead of epochs"""
    effects: ClassVar[tuple[Effect, ...]] = (CUTTING, _LENGTH)


@dataclass(frozen=True, kw_only=True)
class EpsilonOptions(_Timed):
    """The privacy of a DP-SGD run: epsilon by RDP, by PLD and by the tutorials' classic conversion."""

    noise_multiplier: Annotated[float, tyro.conf.arg(aliases=["--noise-mult"])]
    """standard deviation of the noise in units of the clip norm"""


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(_Timed):
    """The noise multiplier that a privacy budget asks for, by RDP, by PLD and by the tutorials' classic conversion."""

    epsilon: float
    """the budget"""


@dataclass(frozen=True, kw_only=True)
class StepsOptions(_Sized):
    """The most steps, up to 16,777,216, that a privacy budget allows, by RDP, by PLD and by the tutorials' classic conversion."""

    epsilon: float
    """the budget"""
    noise_multiplier: Annotated[float, tyro.conf.arg(aliases=["--noise-mult"])]
    """standard deviation of the noise in units of the clip norm"""


@dataclass(frozen=True, kw_only=True)
class BatchSizeOptions(SampledOptions):
    """The largest expected batch size that a privacy budget allows, by RDP, by PLD and by the tutorials' classic conversion."""

    epsilon: float
    """the budget"""
    noise_multiplier: Annotated[float, tyro.conf.arg(aliases=["--noise-mult"])]
    """standard deviation of the noise in units of the clip norm"""
    steps: int
    """number of steps"""


Question = EpsilonOptions | NoiseOptions | StepsOptions | BatchSizeOptions


def answer(options: Question) -> None:
    """Print the answer to a question; raises `UsageError` where there is none, or an option has no effect on it."""
    check_effects(options)
    if isinstance(options, EpsilonOptions):
        run = _run(options, options.noise_multiplier, options.batch_size, _steps(options))
        _print(options, "epsilon", run, lambda name: (run.epsilon(delta=options.delta, accountant=name), run))
    elif isinstance(options, NoiseOptions):
        run = _run(options, 1.0, options.batch_size, _steps(options))

        def noise(name: str) -> tuple[float, "dpsgd.DPSGD"]:
            found = run.with_noise_for(epsilon=options.epsilon, delta=options.delta, accountant=name)
            return found.noise_multiplier, found

        _print(options, "noise_multiplier", run, noise)
    elif isinstance(options, StepsOptions):
        run = _run(options, options.noise_multiplier, options.batch_size, _MOST_STEPS)

        def steps(name: str) -> tuple[int, "dpsgd.DPSGD"]:
            found = run.within(epsilon=options.epsilon, delta=options.delta, accountant=name)
            return found.steps, found

        _print(options, "steps", run, steps)
    else:
        run = _run(options, options.noise_multiplier, 1, options.steps)
        _print(options, "batch_size", run, lambda name: _largest_batch(options, name))


def _steps(options: EpsilonOptions | NoiseOptions) -> int:
    examples = _checks.count("--examples", options.examples, "give the number of training examples")
    batch_size = _checks.count("--batch-size", options.batch_size, "give the expected number of examples a step")
    epochs = _EPOCHS if options.epochs is None else options.epochs
    epochs = _checks.count("--epochs", epochs, "give the number of passes over the data")
    if options.steps is not None:
        return _checks.count("--steps", options.steps, "give the number of steps")
    return epochs * sampling.kind_of(options.sampling).steps_per_epoch(examples, batch_size)


def _largest_batch(options: BatchSizeOptions, accountant: str) -> tuple[int, "dpsgd.DPSGD"]:
    budget = accounting.Budget(
        epsilon=options.epsilon,
        delta=options.delta,
        accountant=accountant,
        ledger=accounting.Ledger(adjacency=_run(options, options.noise_multiplier, 1, options.steps).adjacency),
    )
    run_of = lambda size: _run(options, options.noise_multiplier, size, options.steps)
    most = budget.most(lambda size: run_of(max(size, 1)).event_of(options.steps if size else 0), options.examples)
    if most == 0:
        raise UsageError(
            f"--epsilon={options.epsilon} doesn't allow batches of one example for {options.steps} steps at --noise-multiplier "
            f"{options.noise_multiplier:g}: take fewer steps, add noise, or allow a larger epsilon"
        )
    return most, run_of(most)


def _run(options: Question, noise_multiplier: float, batch_size: int, steps: int) -> "dpsgd.DPSGD":
    """The run that the options describe."""
    examples = _checks.count("--examples", options.examples, "give the number of training examples")
    return dpsgd.DPSGD(
        num_examples=examples,
        expected_batch_size=_checks.count("--batch-size", batch_size, "give the expected number of examples a step"),
        steps=_checks.count("--steps", steps, "give the number of steps"),
        clip_norm=options.clip_norm,
        noise_multiplier=noise_multiplier,
        sampling=options.sampling,
        truncated_batch_size=options.truncated_batch_size,
        adjacency=adjacency_of(options.adjacency, options.sampling),
    )


def _print(
    options: Question, quantity: str, run: "dpsgd.DPSGD", ask: "Callable[[str], tuple[Any, dpsgd.DPSGD]]"
) -> None:
    """Ask every accountant that can account the run; show the answers, and the statement of the first one's run."""
    from ..accounting._epsilon import no_smaller

    found, spent, refused = {}, {}, {}
    for name in accounting.accountants_of(run.event_of(1), run.adjacency):  # of fewer steps than the run's, it may be
        try:
            found[name] = ask(name)
            spent[name] = found[name][1].spent(delta=options.delta, accountant=name)
            if spent[name].epsilon == math.inf and found.keys() - {name}:
                raise accounting.NoFigureError(options.delta)
        except UsageError as error:  # what is wrong with the question, every accountant refuses
            found.pop(name, None)
            spent.pop(name, None)
            refused[name] = error
    if not found:
        raise next(iter(refused.values()))
    orders = {name: each.order for name, each in spent.items()}
    coarse = {name: each.interval for name, each in spent.items() if each.interval is not None}
    _, shown = next(iter(found.values()))
    statement = shown.statement(delta=options.delta)
    if warning := cut_nearly_always(shown):
        print(warning, file=sys.stderr)
    if options.json:
        described: dict[str, Any] = {
            "steps": shown.steps,
            "order": orders,
            "delta": options.delta,
            "sampling_rate": shown.sampling_rate,
            "adjacency": shown.adjacency,
            "event": accounting.event_to_dict(shown.event),
            "statement": statement,
        }
        described[quantity] = {name: value if value < math.inf else "infinite" for name, (value, _) in found.items()}
        if coarse or refused:
            described["upper_bounds_in_steps_of"] = coarse
            described["refused"] = {name: str(error) for name, error in refused.items()}
        print(json.dumps(described, indent=2))
        return
    console = Console()
    draw = f"{shown.expected_batch_size:,.15g} of {shown.num_examples:,} examples"
    table = Table(title=f"{shown.steps:,} steps, {draw} each, δ = {no_smaller(options.delta)}")
    for heading in ("accountant", quantity.replace("_", " "), "optimal order"):
        table.add_column(heading)
    for name in accounting.ACCOUNTANTS:
        if name not in found:
            table.add_row(_NAMES[name], _why_not(refused.get(name)), "")
            continue
        value, order = found[name][0], orders[name]
        table.add_row(
            _name(name, quantity, found)
            + (f", an upper bound in coarse steps of {coarse[name]:g}" if name in coarse else ""),
            _shown(quantity, value),
            "" if order is None else f"{order:g}",
        )
    console.print(table)
    console.print("For a run that is executed exactly so:\n")
    say(console, statement)


def _name(accountant: str, quantity: str, found: dict[str, tuple[Any, Any]]) -> str:
    """An accountant in the table; PLD is tighter than RDP, but of many steps of small losses."""
    name = _NAMES[accountant]
    if accountant != "pld" or "rdp" not in found:
        return name
    less_is_tighter = quantity in ("epsilon", "noise_multiplier")
    tighter, other = ("pld", "rdp") if less_is_tighter else ("rdp", "pld")
    return name.replace(")", ", tighter)") if found[tighter][0] < found[other][0] else name


def _shown(quantity: str, value: float) -> str:
    """Noise in five digits, and ε in six, that are enough of it."""
    if not isinstance(value, float):
        return f"{value:,}"
    return accounting.rounded_up(value, 5 if quantity == "noise_multiplier" else 6)


def _why_not(refusal: UsageError | None) -> str:
    if refusal is None:
        return "not for this run"
    if isinstance(refusal, accounting.TooLargeError):
        return "too much to compute"
    return "none at so small a delta" if isinstance(refusal, accounting.NoFigureError) else "none within the budget"
