"""What a run has between two steps, and what a step tells of itself."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Key, UInt32

from .._errors import UsageError
from .._types import Params
from ..accounting import Ledger
from ..clipping import QuantileState
from ..noise import GaussianState
from ..noise._keys import Domain, nonce_in_hex, own_key
from ._description import Run


class RunKeys(NamedTuple):
    """Three scalar keys, one for each kind of randomness.

    A step's own keys for its draw and its losses are derived from them and its number; the states of the noise and of the clip
    rule are made from `noise`, and then carried from step to step.
    """

    sampling: Key[Array, ""]
    noise: Key[Array, ""]
    loss: Key[Array, ""]

    @classmethod
    def split_from(cls, key: Key[Array, ""]) -> "RunKeys":
        """The three keys of a run."""
        return cls(*jax.random.split(own_key(key, Domain.RUN), 3))


class TrainState(NamedTuple):
    """The state of a run between two steps: everything that it needs to go on.

    Go on from a state once. The noise of a step follows from `noise_state`: a copy of a state, stepped again on other data or
    other parameters, gets the same noise, whatever its `keys`, and the difference of both outputs has none. That can't be seen (a
    run that is resumed does the same, on the same data). `step.continue_from(state, key)` goes on with noise of its own.

    Attributes:
        params: the parameters.
        opt_state: the optimizer's state, float32.
        keys: for the draws, the noise and the losses' randomness of all steps.
        step: how many steps have been made; a plain int, so that a run can't be overdrawn unseen.
        rule_state: the clip rule's state, for rules that have one.
        run: what the steps are accounted as; a step of another run refuses the state.
        spent_before: what earlier runs on the same data have cost.
        nonce: uint32 [4]. A name for the noise, from which its key can't be found; it outlives the keys' erasure.
        noise_state: the noise's state. It holds a key, as `rule_state` may: whoever erases `keys` erases these, too.
        accounted: uint32 [2, 8]. A hash of `run` and one of `spent_before`, which aren't arrays: a checkpoint that keeps arrays
            alone comes back with those of the state that it is read into, and is refused where they are others.
    """

    params: Params
    opt_state: Any
    keys: RunKeys
    step: int
    rule_state: Any = None
    run: Run | None = None
    spent_before: Ledger = Ledger()
    nonce: UInt32[Array, "4"] | None = None
    noise_state: Any = None
    accounted: UInt32[Array, "2 8"] | None = None

    @property
    def ledger(self) -> Ledger:
        """All that has been spent on the way to this state: by earlier runs, and by this one's steps so far.

        This one's entry names its noise by `nonce`: no ledger takes two runs that drew the same.

        Raises:
            UsageError: where `run` or `spent_before` isn't what the steps were made under.
        """
        if self.run is None:
            return self.spent_before
        check_accounted(self, self.run)
        nonce = None if self.nonce is None else nonce_in_hex(self.nonce)
        return self.spent_before.extend(self.run.ledger(int(self.step), nonce=nonce))


def as_accounted(run: Any, spent_before: Ledger) -> UInt32[np.ndarray, "2 8"]:
    """`TrainState.accounted`, the same in every process."""
    costs = (
        run.ledger(run.steps).to_dict() if run.noise_multiplier > 0 else None
    )  # whatever its parts show of themselves
    hashes = [hashlib.sha256(in_same_words(told).encode()).digest() for told in ((run, costs), spent_before.to_dict())]
    return np.frombuffer(b"".join(hashes), ">u4").astype(np.uint32).reshape(2, 8)


def check_accounted(state: TrainState, run: Run) -> None:
    """Refuse a state whose steps were made under another run, or after another ledger, than it says now."""
    if np.shape(state.accounted) != (2, 8):  # None among others
        raise UsageError("the state doesn't say what it is accounted as: begin with state = step.init(params, key)")
    of_run, of_ledger = np.asarray(state.accounted) == as_accounted(run, state.spent_before)
    if not of_run.all():
        raise UsageError(
            f"the state was saved by a run described otherwise than the one that it was read into, {run}: its steps so far would "
            "be accounted as this one's. Read it into the init of its own run's step, and go on under this one with "
            "step.continue_from(state, key), which keeps a ledger of both"
        )
    if not of_ledger.all():
        raise UsageError(
            "state.spent_before isn't the ledger that the state was saved with, which isn't among its arrays: keep "
            "state.spent_before.to_dict() beside them, and read them into step.init(params, key, "
            "spent_before=jaxdp.accounting.Ledger.from_dict(kept))"
        )
    if (count := _drawn(state.noise_state)) is not None and count > state.step:
        raise UsageError(
            f"state.step={state.step}, and the state's noise was drawn for {count} steps: a plain number isn't "
            "among the arrays, and steps would be accounted as fewer and their draws repeated. Keep it beside them, and set it "
            "with state._replace(step=kept)"
        )


def check_draws_go_on(state: TrainState) -> None:
    """Refuse a state that has fewer draws than steps, as one put together: the steps to come would repeat them."""
    for name in ("noise_state", "rule_state"):
        part = getattr(state, name)
        count = _drawn(part) if isinstance(part, GaussianState | QuantileState) else None
        if count is not None and count < state.step:
            raise UsageError(
                f"state.step={state.step}, and its {name} has drawn for {count} steps: those to come would have the noise of "
                f"those before once more. Keep the whole state, state.{name} with the parameters; or begin a run of the steps "
                "that are left, with another key and spent_before=state.ledger"
            )


def check_noise_is_new(state: TrainState) -> None:
    """Refuse a state whose noise an earlier run has drawn, by the ledger that it begins after."""
    if state.run is not None and state.spent_before.entries and state.nonce is not None:
        state.spent_before.extend(state.run.ledger(1, nonce=nonce_in_hex(state.nonce)))


def _drawn(part: Any) -> int | None:
    """For how many steps a state has drawn; None where it doesn't count, or is gone."""
    step = getattr(part, "step", None)
    if isinstance(step, jax.Array) and step.is_deleted():
        return None
    counts = isinstance(step, jax.Array | np.ndarray | np.generic | int) and np.shape(step) == ()
    return int(np.asarray(step)) if counts else None


def _in_same_words(value: Any) -> Any:
    """Lists and dictionaries of strings and numbers, each number as a float."""
    if is_dataclass(value) and not isinstance(value, type):
        compared = {field.name: _in_same_words(getattr(value, field.name)) for field in fields(value) if field.compare}
        return [type(value).__qualname__, compared]
    if isinstance(value, Mapping):
        return sorted(([in_same_words(key), _in_same_words(part)] for key, part in value.items()), key=repr)
    if isinstance(value, set | frozenset):
        return sorted((_in_same_words(part) for part in value), key=repr)
    if isinstance(value, tuple | list):
        return [_in_same_words(part) for part in value]
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, np.ndarray | jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return [str(value.dtype), np.asarray(value).tolist()]
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # a function's place in a process


def in_same_words(value: Any) -> str:
    """In words that are the same for equal values, and in every process."""
    return repr(_in_same_words(value))


class StepMetrics(NamedTuple):
    """A step's view of the training data; not covered by the run's epsilon.

    Attributes:
        examples: int32 scalar. How many examples were drawn.
        loss: float32 scalar. Their mean loss; NaN for an empty draw.
        clipped: float32 scalar. The fraction whose gradient was longer than the clip norm, or not finite.
        aux: pytree of float32. The mean of the loss's auxiliary data; None without.
    """

    examples: Int32[Array, "*steps"]
    loss: Float[Array, "*steps"]
    clipped: Float[Array, "*steps"]
    aux: Any
