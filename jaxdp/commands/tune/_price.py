"""What a search costs: the noise of each run and of its score, and the event of the whole.

Batch sizes differ in what they cost, and each gets the noise with which its runs cost no more than those of the largest one, at
every order of the RDP accountant. So one event stands for a run, whatever its batch size.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ... import _checks
from ..._errors import UsageError
from ...accounting import Budget, Ledger, event_epsilon, gaussian_event, least_noise
from ...accounting._epsilon import accountants_of
from ...accounting._orders import curve_of, least_noise_under, ruled_out_above
from ...dpsgd._run import DPSGD
from ._options import TuneOptions

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SCORE = 5.0  # its noise, in units of what a run's comes to in all
_ROOM = 2.0  # orders up to so many times the best are kept


@dataclass(frozen=True)
class Price:
    """What a search costs, known before its first run.

    Attributes:
        num_examples: to train on.
        noise: the noise multiplier, by batch size.
        score_noise: of the number by which models are compared.
        event: of the whole search.
    """

    num_examples: int
    noise: dict[int, float]
    score_noise: float
    event: "DpEvent"


def price(options: TuneOptions, num_examples: int, spent_before: Ledger) -> Price:
    """The least noise with which a search stays within the budget.

    Args:
        options: of the search.
        num_examples: to train on.
        spent_before: on the same data.

    Raises:
        UsageError: where no noise does, or the RDP accountant can't account what was spent before.
    """
    from dp_accounting import ComposedDpEvent

    _checks.delta(options.delta, num_examples)
    search = options.search
    adjacency = options.relation
    none = Ledger(adjacency=adjacency)
    none.check_like(spent_before)
    spent = spent_before if spent_before.entries else none
    if "rdp" not in accountants_of(spent.event, adjacency):
        labels = "; ".join(entry.label for entry in spent.entries)
        raise UsageError(
            f"--ledger={options.ledger} has uses that the RDP accountant can't account ({labels}), and a search has no other "
            "accountant: choose hyper-parameters on other data, and give them to jaxdp train"
        )
    budget = Budget(epsilon=options.budget, delta=options.delta, accountant="rdp", ledger=spent)
    sizes = options.sizes(num_examples)
    largest = max(sizes)
    runs = {size: _described(options, num_examples, size, adjacency) for size in sizes}
    event_of = lambda size, sigma: replace(runs[size], noise_multiplier=sigma).event
    alone = least_noise(budget, lambda sigma: search.event(event_of(largest, sigma)))
    order = event_epsilon(
        search.event(event_of(largest, alone)), delta=options.delta, accountant="rdp", adjacency=adjacency
    ).order
    assert order is not None
    score_noise = options.score_noise or _score_noise(event_of(largest, alone), order, adjacency)
    score = gaussian_event(noise_multiplier=score_noise)
    ruled_out = [ruled_out_above(_ROOM * order)] if len(sizes) > 1 else []
    bound = lambda sigma: ComposedDpEvent([event_of(largest, sigma), score, *ruled_out])
    try:
        noise = {largest: least_noise(budget, lambda sigma: search.event(bound(sigma)))}
    except UsageError as error:
        if options.score_noise is None:
            raise
        raise UsageError(
            f"--score-noise={options.score_noise:g}: such scores alone cost more than the budget, whatever noise the runs have: "
            f"give more of it (left out, it is {_score_noise(event_of(largest, alone), order, adjacency):g}), or a larger budget"
        ) from error
    costliest = bound(noise[largest])
    for size in sizes:
        if size != largest:
            scored = lambda sigma, size=size: ComposedDpEvent([event_of(size, sigma), score])
            found = least_noise_under(costliest, scored, delta=options.delta, runs=options.runs, adjacency=adjacency)
            if found is None:
                raise UsageError(
                    f"batches of {size} among --batch-sizes {' '.join(map(str, sizes))}: the RDP accountant can't tell that they "
                    f"cost no more than those of {largest}; where one has about half of the {num_examples} examples, it is at a "
                    f"loss. Give smaller --batch-sizes, or one by --batch-size"
                )
            noise[size] = found
    return Price(num_examples, noise, score_noise, search.event(costliest))


def event_of_run(options: TuneOptions, price: Price, batch_size: int) -> "DpEvent":
    """The event of one run of that batch size, as it was priced."""
    adjacency = options.relation
    run = _described(options, price.num_examples, batch_size, adjacency)
    return replace(run, noise_multiplier=price.noise[batch_size]).event


def _described(options: TuneOptions, num_examples: int, batch_size: int, adjacency: str) -> DPSGD:
    """A run of that batch size, but for its noise and clip norm, which play no part in what it costs."""
    sizes: dict[str, Any] = {"num_examples": num_examples, "expected_batch_size": batch_size}
    one = DPSGD(**sizes, steps=1, clip_norm=1.0, noise_multiplier=1.0, adjacency=adjacency)
    return replace(one, steps=options.epochs_of_each * one.sampling.steps_per_epoch(num_examples, batch_size))


def _score_noise(run: "DpEvent", order: float, adjacency: str) -> float:
    """Noise that hides a record five times as well as the whole run does, by the run's RDP at that order."""
    orders, rdp = curve_of(run, adjacency)
    at_order = float(rdp[orders <= order][-1])
    return float(f"{_SCORE * math.sqrt(order / (2 * at_order)):.3g}")
