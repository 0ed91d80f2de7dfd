"""The loop over epochs: steps are dispatched ahead of the device, and the host only reads what has been computed.

The data stay on the device, or on disk. While one step runs the next ones are already queued, so the device never waits for the
host; metrics are read as they become ready, which drives the progress display, and everything is read at the end of an epoch.
Between two calls is where a run that is asked to stop stops, with a checkpoint of all it has made; of several processes all do so
there.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from .._errors import UsageError
from .._interrupts import Interrupted
from .._platform import default_platform
from .._processes import several
from ..dpsgd._state import StepMetrics, TrainState
from ..reading import Source
from ._pace import Pace

_AHEAD = 8  # calls queued on the device before the host waits for the oldest
_SECONDS_BETWEEN_CHECKPOINTS = 60.0


@runtime_checkable
class Step(Protocol):
    """The loop's view of a step; that of `DPSGD.make_step` has it, and those of plain training and of PATE's student."""

    def many(self, state: TrainState, data: Any, *, num_steps: int) -> tuple[TrainState, StepMetrics]:
        """Make several steps."""
        ...


@dataclass
class Totals:
    """Sums over the examples of an epoch so far."""

    examples: float = 0.0
    loss: float = 0.0
    clipped: float = 0.0
    correct: float = 0.0

    def add(self, metrics: StepMetrics) -> None:
        """Add the steps of one call; an empty draw has no loss to add."""
        examples = np.asarray(metrics.examples, np.float64)
        drawn = examples > 0
        self.examples += float(examples.sum())
        for name, mean in (("loss", metrics.loss), ("clipped", metrics.clipped), ("correct", metrics.aux)):
            total = float((np.asarray(mean, np.float64)[drawn] * examples[drawn]).sum())
            setattr(self, name, getattr(self, name) + total)

    def mean(self, name: str) -> float:
        """The mean over the epoch's examples; NaN where none was drawn."""
        return getattr(self, name) / self.examples if self.examples else float("nan")


@dataclass
class Loop:
    """Runs a training run from one state to its end, telling what happens as it does.

    Attributes:
        step: makes the steps.
        data: on the device, or a source, of which steps are made one by one.
        steps_per_epoch: steps of an epoch.
        steps: steps of the run.
        on_steps: called as results arrive, with the number of steps made and the epoch's totals.
        save: called with the state and the totals, within an epoch when a minute has passed since the last time, and before
            the run stops.
        before_epoch: the state to go on with at the beginning of an epoch, or where one is gone on with.
    """

    step: Step
    data: Any
    steps_per_epoch: int
    steps: int
    on_steps: Callable[[int, Totals], None]
    save: Callable[[TrainState, Totals], None]
    before_epoch: Callable[[TrainState], TrainState] = lambda state: state
    first_step_seconds: float | None = None
    training_seconds: float = 0.0
    steps_timed: int = 0
    seconds_waited: float = 0.0
    last_epoch: tuple[float, float] = (0.0, 0.0)  # seconds waited of seconds of training
    _pace: Pace = field(default_factory=lambda: Pace(_SECONDS_BETWEEN_CHECKPOINTS))

    @property
    def milliseconds_per_step(self) -> float | None:
        """Mean time of a step after the first; None before the second."""
        return 1e3 * self.training_seconds / self.steps_timed if self.steps_timed else None

    @property
    def steps_per_second(self) -> float | None:
        """Steps a second, the first one apart; None before the second."""
        return self.steps_timed / self.training_seconds if self.steps_timed else None

    def epochs(self, state: TrainState, totals: Totals) -> Iterator[tuple[int, TrainState, Totals]]:
        """Yield (epoch counted from 1, state, totals) at the end of each epoch that `state` has not finished yet."""
        while state.step < self.steps:
            self._pace.stop_here()  # what there is has been saved
            epoch = state.step // self.steps_per_epoch + 1
            state = self.before_epoch(state)
            state = self._finish_epoch(state, totals, min(epoch * self.steps_per_epoch, self.steps))
            yield epoch, state, totals
            totals = Totals()
            self._pace.saved()

    def _finish_epoch(self, state: TrainState, totals: Totals, end: int) -> TrainState:
        per_call = 1 if isinstance(self.data, Source) else steps_per_call(self.steps_per_epoch)
        waiting: deque[StepMetrics] = deque()
        started, timed_from, waited = time.perf_counter(), state.step, self._waited()
        while state.step < end or waiting:
            if state.step < end and len(waiting) < _AHEAD:
                try:
                    state, metrics = self.step.many(state, self.data, num_steps=min(per_call, end - state.step))
                except UsageError:
                    if (
                        isinstance(self.data, Source) and not several()
                    ):  # a record can't be read: the state is as it was
                        self._save(state, waiting, totals)
                    raise
                waiting.append(metrics)
                if self.first_step_seconds is None:
                    jax.block_until_ready(metrics)
                    self.first_step_seconds = time.perf_counter() - started
                    started, timed_from, waited = time.perf_counter(), state.step, self._waited()
            else:
                totals.add(jax.device_get(waiting.popleft()))
                self.on_steps(state.step - sum(len(m.loss) for m in waiting), totals)
            save, stop = self._pace.due() if state.step < end else (False, False)
            if save:
                self._save(state, waiting, totals)
            if stop:
                raise Interrupted
        jax.block_until_ready(state.params)
        seconds, waited = time.perf_counter() - started, self._waited() - waited
        self.training_seconds += seconds
        self.steps_timed += state.step - timed_from
        self.seconds_waited += waited
        self.last_epoch = (waited, seconds)
        return state

    def _save(self, state: TrainState, waiting: deque[StepMetrics], totals: Totals) -> None:
        while waiting:
            totals.add(jax.device_get(waiting.popleft()))
        self.save(state, totals)
        self._pace.saved()

    def _waited(self) -> float:
        """Seconds that the step has waited for records so far."""
        return getattr(self.step, "waited", 0.0)


def steps_per_call(steps_per_epoch: int) -> int:
    """How many steps to compile into one program, as the platform says: a divisor of the epoch, so that one serves all calls."""
    most = min(default_platform().steps_per_call, steps_per_epoch)
    return max(steps for steps in range(1, most + 1) if steps_per_epoch % steps == 0)
