"""The privacy of a run in plain English, for a lawyer and a researcher."""

import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .. import _checks
from ..clipping import ClipRule
from ..sampling import SampledRun
from ._adjacency import IN_WORDS
from ._epsilon import ACCOUNTANTS, Spent, accountants_of, event_epsilon, no_smaller, rounded_up
from ._ledger import Ledger

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SETTLED = (
    " This holds where it was settled beforehand that no more of {:,} steps would be made: a stop for what was seen on the way "
    "is paid for as all of them."
)


@runtime_checkable
class StatedRun(SampledRun, Protocol):
    """A run as a statement reads it; `jaxdp.DPSGD` is one."""

    @property
    def clip_norm(self) -> float: ...

    @property
    def rule(self) -> ClipRule: ...

    @property
    def sampling(self) -> Any: ...  # a `Sampling`; `DPSGD` takes its short name as well, which no protocol can say

    @property
    def noise_multiplier_of_sum(self) -> float: ...

    @property
    def unit_in_words(self) -> tuple[str, str]: ...

    def event_of(self, steps: int) -> "DpEvent": ...

    def ledger(self, steps: int) -> Ledger: ...

    def as_poisson(self) -> "StatedRun": ...


def statement(
    run: StatedRun,
    *,
    delta: float,
    steps: int | None = None,
    spent_before: Ledger | None = None,
    notes: tuple[str, ...] = (),
    accountant: str = "rdp",
) -> str:
    """One text that says what a run promises, to whom, under which assumptions, and what it does not promise.

    Args:
        run: the run.
        delta: the δ of (ε, δ), below 1 / num_examples.
        steps: how many of its steps have been made; all of them by default.
        spent_before: what else has touched the same data; the text then states the total too.
        notes: further caveats, a sentence each.
        accountant: whose ε is told first, where there are two.

    Returns:
        A few paragraphs of text, with ε by the RDP and the PLD accountant where both can account the run.

    Raises:
        UsageError: for a delta out of range, more steps than the run has, or a ledger under another adjacency
            or of another unit.
    """
    _checks.instance("run", run, StatedRun, "give a jaxdp.DPSGD")
    _checks.texts("notes", notes)
    _checks.one_of("accountant", accountant, ACCOUNTANTS)
    if spent_before is not None:
        _checks.instance("spent_before", spent_before, Ledger, "give a jaxdp.accounting.Ledger")
        Ledger(adjacency=run.adjacency, unit=run.unit).check_like(spent_before)  # also of a run that has made no step
    made = run.steps if steps is None else _checks.whole("steps", steps, "give a number of the run's steps")
    unit, several = run.unit_in_words
    before = spent_before or Ledger(adjacency=run.adjacency, unit=run.unit)
    return "\n\n".join(
        [
            _guarantee(run, delta, made, accountant, alone=not before.entries),
            *_ledger(run, delta, made, before),
            f"Unit and adjacency: {unit}; two data sets are neighbours if {IN_WORDS[run.adjacency].format(unit=run.unit)}. The "
            f"number of {several}, {run.num_examples:,}, is treated as public.",
            f"Mechanism: {made:,} steps of DP-SGD. {_sampling(run, delta, made)} The gradient of each {run.unit} was "
            f"{run.rule.in_words(run.clip_norm)}; {run.noise.in_words(run.noise_multiplier_of_sum)} was added to the sum, which "
            f"was then divided by {run.expected_batch_size:.15g}, a constant.{_SETTLED.format(run.steps) * (made < run.steps)}",
            "Protected: the parameters after every step, and whatever is computed from them without the training data.",
            "Not protected: losses, accuracies and gradient norms measured on the training data; choices of hyper-parameters "
            "made by looking at it, and choices among several trainings on it, by whatever they were compared, unless all are in "
            "the ledger; the random keys, with which the noise could be subtracted "
            "(keep them secret until the run is finished, then delete them), and with them the checkpoints of a run under way. "
            "JAX's random generators are not cryptographic, and floating-point noise is discrete; what it costs that the noise "
            "ends is taken from delta, but for a thousandth." + "".join(f" {note}" for note in notes),
        ]
    )


def _guarantee(run: StatedRun, delta: float, made: int, first: str, *, alone: bool) -> str:
    spent = _figures(run, delta, made)
    quoted = "either may be quoted" + ("" if alone else " of this training, not of all that its data were used for")
    if len(spent) == 2:
        rdp, pld = spent["rdp"], spent["pld"]
        if first == "pld":
            return (
                f"This training satisfies {_pair(pld)}-differential privacy by the PLD accountant of Google's dp-accounting, and "
                f"{_pair(rdp)} by its RDP accountant (optimal order {rdp.order:g}). Both hold; {quoted}."
            )
        tighter = ", which is tighter" if pld.epsilon < rdp.epsilon else ""
        return (
            f"This training satisfies {_pair(rdp)}-differential privacy by the RDP accountant of Google's dp-accounting (optimal "
            f"order {rdp.order:g}), and {_pair(pld)} by its PLD accountant{tighter}. Both hold; {quoted}."
        )
    if "rdp" in spent:
        able = "pld" in accountants_of(run.event_of(made), run.adjacency)
        why = "has none at so small a delta" if able else "would take too long for this run"
        return (
            f"This training satisfies {_pair(spent['rdp'])}-differential privacy by the RDP accountant of Google's dp-accounting "
            f"(optimal order {spent['rdp'].order:g}). Its PLD accountant {why}."
        )
    return (
        f"This training satisfies {_pair(spent['pld'])}-differential privacy by the PLD accountant of Google's dp-accounting. "
        "Its RDP accountant has no figure for this sampling under this adjacency."
    )


def _figures(run: StatedRun, delta: float, made: int) -> dict[str, Spent]:
    """The run's ε by RDP and by PLD, where there is one; PLD leaves about 1e-15 of δ to losses without an end."""
    event = run.event_of(made)
    names = [name for name in accountants_of(event, run.adjacency) if name != "classic"]
    of = lambda name: event_epsilon(event, delta=delta, accountant=name, adjacency=run.adjacency)
    figures = {name: of(name) for name in names or ["pld"]}
    return {name: spent for name, spent in figures.items() if spent.epsilon < math.inf} or figures


def _ledger(run: StatedRun, delta: float, made: int, before: Ledger) -> list[str]:
    if not before.entries:
        return []
    total = before.extend(run.ledger(made)).total(delta=delta)
    labels = "; ".join(entry.label for entry in before.entries)
    alone = max((each.epsilon for each in _figures(run, delta, made).values()), default=0.0)
    why = f" It is less than the {rounded_up(alone)} for this training alone because it is by another, tighter accountant."
    return [
        f"The same data was used before, by: {labels}. Together with this training that satisfies ({rounded_up(total.epsilon)}, "
        f"{no_smaller(delta)})-differential privacy: {total.in_words()}." + (why if total.epsilon < alone else "")
    ]


def _sampling(run: StatedRun, delta: float, made: int) -> str:
    text = run.sampling.in_words(run)
    if run.sampling.amplified or made == 0 or run.adjacency == "replace_one":
        return text + "."
    poisson = run.as_poisson()
    other = event_epsilon(poisson.event_of(made), delta=delta, adjacency=poisson.adjacency)
    return text + (
        "; that is why epsilon is so large. With Poisson sampling, the same batch size, noise and steps would cost "
        f"{_pair(other)} by the RDP accountant."
    )


def _pair(spent: Spent) -> str:
    coarse = "" if spent.interval is None else f" (an upper bound, in coarse steps of {spent.interval:g})"
    return f"({rounded_up(spent.epsilon)}, {no_smaller(spent.delta)}){coarse}"
