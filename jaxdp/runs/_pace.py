"""When a run saves within an epoch and when it stops: the same in all of its processes, after the same step.

A process alone goes by its own clock and by the signals that it has heard. Of several, the first one's clock counts and the
signals of any; they tell each other after a number of calls that takes about a second, which the first one measures, so that
telling costs nothing beside the steps.
"""

import json
import time

from .._interrupts import Interrupted, asked_to_stop
from .._processes import gathered, several

_SECONDS_BETWEEN_TALKS = 1.0


class Pace:
    """Asked by the loop between two calls, in every process between the same two."""

    def __init__(self, seconds_between_saves: float) -> None:
        self._between = seconds_between_saves
        self._saved_at = self._talked_at = time.monotonic()
        self._calls = self._left = 1  # from one talk to the next, and until it

    def saved(self) -> None:
        """A checkpoint has been written."""
        self._saved_at = time.monotonic()

    def due(self) -> tuple[bool, bool]:
        """Whether to save now, and whether to stop then."""
        if several():
            self._left -= 1
            return self._talk() if self._left == 0 else (False, False)
        stop = asked_to_stop()
        return stop or self._time_to_save(), stop

    def stop_here(self) -> None:
        """A place at which everything is saved: raises `Interrupted`, in every process, where there has been a signal in any."""
        if self._talk()[1] if several() else asked_to_stop():
            raise Interrupted

    def _time_to_save(self) -> bool:
        return time.monotonic() - self._saved_at > self._between

    def _talk(self) -> tuple[bool, bool]:
        """What all processes say together."""
        taken = max(time.monotonic() - self._talked_at, 1e-3)
        calls = round(min(self._calls * _SECONDS_BETWEEN_TALKS / taken, 2 * self._calls))
        said = [
            json.loads(each) for each in gathered(json.dumps([asked_to_stop(), self._time_to_save(), calls]).encode())
        ]
        self._talked_at = time.monotonic()
        stop, (_, save, calls) = any(each[0] for each in said), said[0]
        self._calls = self._left = max(1, calls)
        return stop or save, stop
