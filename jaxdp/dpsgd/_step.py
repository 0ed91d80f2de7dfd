"""The whole private step, compiled once: draw → gather → clip → sum → noise → optimizer.

The draw is an index array over all examples whose drawn part comes first; the step walks it in microbatches, gathers each
one's rows and adds its clipped gradients up. How many microbatches it walks follows the number drawn, so that no draw
can be too large, no drawn example is left out, and padding costs less than one microbatch.
"""

from collections.abc import Callable
from concurrent.futures import wait
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from .. import _checks
from .._errors import UsageError
from .._mesh import automatic, check_mesh_that_is_set, computing_on, explaining
from .._spread import Spread, spread_of
from .._types import LossFn, Params
from ..accounting import Ledger
from ..clipping import DrawSums, Summing, check_batch, check_params, takes_rng
from ..clipping._inputs import check_users, of_records
from ..noise._keys import Domain, nonce_of, own_key
from ..reading import Source
from ..transforms import check_numbers, check_suitable, check_transform, in_float32
from ._agreement import Agreement, agree_on_step, are_the_same
from ._compiling import begin_to_compile, is_beside, jit_to_run_often
from ._description import Run
from ._from_source import FromSource, samples
from ._noise_of_step import NoiseOfStep
from ._self_check import self_check, signature
from ._state import (
    RunKeys,
    StepMetrics,
    TrainState,
    as_accounted,
    check_accounted,
    check_draws_go_on,
    check_noise_is_new,
)
from ._step_inputs import check_state, difference, refuse_traced, refuse_what_is_taken

_DATA = "give arrays [num_examples, ...], or jaxdp.reading.Source(records) for records that are read as they are drawn"

_ONE_ROW = (
    ". Each example is in one row, whole: what is derived of one (augmentations, views, pairs) the loss derives itself, and "
    "rows of one person are put together by jaxdp.data.group_by_user"
)


class PrivateStep:
    """The step that `DPSGD.make_step` returns: `init` makes a state, a call makes one step, `many` makes several in one program.

    The arrays of a state are donated: after `state, metrics = step(state, data)` the old state is gone.
    """

    def __init__(
        self,
        run: Run,
        loss_fn: LossFn,
        optimizer: optax.GradientTransformation,
        *,
        has_aux: bool,
        precision: str,
        self_check: bool,
    ) -> None:
        if hasattr(loss_fn, "init") and hasattr(loss_fn, "update") and callable(optimizer):
            raise UsageError("loss_fn is an optimizer: the loss comes first, make_step(loss_fn, optimizer)")
        check_transform(optimizer)
        self.run = run
        self._grad_fn = run.clipped_grad(loss_fn, has_aux=has_aux, precision=precision)
        self._optimizer = in_float32(optimizer)
        self._takes_rng = takes_rng(loss_fn)
        self._checks_itself = self_check
        self._checked: set[Any] = set()
        self._agreement = Agreement()
        self._accounted: tuple[Any, ...] | None = None  # of the last state; None since init
        self._from_source = FromSource(run, self._grad_fn, self._update, takes_rng=self._takes_rng)

    @cached_property
    def _compiled(self) -> Any:
        return jit_to_run_often(self._scan, static_argnames=("num_steps", "spread"), donate_argnames="carry")

    def init(self, params: Params, key: Key[Array, ""], *, spent_before: Ledger | None = None) -> TrainState:
        """The state before the first step.

        Args:
            params: pytree of floating-point arrays; copied, since steps donate theirs.
            key: scalar key; whoever knows it can subtract the noise. `jaxdp.key_from_entropy()` makes one.
            spent_before: what earlier runs on the same data have cost, which `state.ledger` goes on with.

        Returns:
            A `TrainState`.

        Raises:
            UsageError: for parameters that aren't floating-point arrays with values or hold NaN, what isn't a scalar key, and an
                optimizer that accumulates gradients (`optax.MultiSteps`, wherever in it), has `jaxdp.privatize` in it, wants more
                than the noisy mean and the parameters (`optax.lbfgs`: a loss would be a further look at the data), or computes
                with NaN; and for a ledger of another adjacency or unit.
        """
        check_params(params)
        _checks.key(key)
        if spent_before is not None:
            _checks.instance("spent_before", spent_before, Ledger, "give a jaxdp.accounting.Ledger")
        check_mesh_that_is_set({"params": params})
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                raise UsageError(
                    f"params{jax.tree_util.keystr(path)} is a shape without values: give arrays, or under jax.eval_shape call "
                    "init within the function that it is given"
                )
            if _checks.has_nan(leaf):
                raise UsageError(
                    f"params{jax.tree_util.keystr(path)} holds NaN: nothing can be learnt from there; give numbers"
                )
        params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        check_suitable(self._optimizer, params)
        opt_state = self._optimizer.init(params)
        check_numbers(opt_state)
        # Steps donate it, and some optimizers keep the parameters, or one array twice.
        opt_state = jax.tree.map(lambda x: jnp.array(x, copy=True) if isinstance(x, jax.Array) else x, opt_state)
        return self._start(params, opt_state, RunKeys.split_from(key), spent_before or Ledger())

    def continue_from(self, state: TrainState, key: Key[Array, ""]) -> TrainState:
        """Go on under this run from where another one stopped: with other noise, say, or another batch size.

        What the other run spent goes into `state.ledger`, whose `total` is what the parameters have cost; `run.statement` says it
        with `spent_before=state.spent_before`. This one's steps and noise begin anew.

        Args:
            state: of a step with the same optimizer; its arrays are used, so it is gone after the next step.
            key: scalar key of this run alone, such as `jaxdp.key_from_entropy()`: noise drawn twice hides nothing.

        Returns:
            A `TrainState` before this run's first step.

        Raises:
            UsageError: for a state without a run, another adjacency, or another optimizer's state.
        """
        check_state(state, "continue_from")
        if state.run is None:
            raise UsageError("continue_from: the state is of no run; begin with step.init(params, key)")
        _checks.key(key)
        self._check_optimizer(state)
        spent = state.ledger
        own = jax.random.fold_in(own_key(key, Domain.NEXT_RUN), len(spent.entries))
        fresh = RunKeys.split_from(own)
        return self._start(state.params, state.opt_state, fresh, spent)

    def _start(self, params: Params, opt_state: Any, keys: RunKeys, spent_before: Ledger) -> TrainState:
        self.run.ledger(0).check_like(spent_before)
        rule_state = self._grad_fn.rule.init(self.run.clip_norm, keys.noise)
        noise_state = self.run.privatize(keys.noise).init(params)
        self._accounted = None
        nonce, accounted = nonce_of(keys.noise), jnp.asarray(as_accounted(self.run, spent_before))
        return TrainState(params, opt_state, keys, 0, rule_state, self.run, spent_before, nonce, noise_state, accounted)

    def close(self) -> None:
        """End what reads ahead of the steps over a source. The last step of a run does it by itself."""
        self._from_source.close()

    @property
    def waited(self) -> float:
        """Seconds that steps over a source have waited for its records; 0 where they were read in time."""
        return self._from_source.waited

    def __call__(self, state: TrainState, data: Any, *shared: Any) -> tuple[TrainState, StepMetrics]:
        """One step.

        Args:
            state: from `init` or the step before, which takes its arrays; a copy that steps again, on other data, gets the same
                noise, which then hides neither: see `TrainState`.
            data: pytree of arrays [num_examples, ...], inputs and labels together, the same at every step; put them on the
                device once, by `jax.device_put`, since NumPy's are copied there at every step. Or a `jaxdp.reading.Source` of
                records that don't fit in memory, of which those drawn are read ahead of the steps: the same parameters come out,
                to the bit.
            *shared: handed to the loss after the example, as they are; `jaxdp.Shared(value)` where an axis has the length
                num_examples. Each new value of what is no array, such as a Python number, is compiled anew: give
                `jnp.float32(x)` where it changes from step to step.

        Returns:
            The next state, and `StepMetrics` of scalars.

        Raises:
            UsageError: for data of another size than the run's, data in `shared`, more steps than the run has, a state that is
                none or whose step was made, anything traced, what `jaxdp.clipped_grad` refuses, and before the first step what
                the self-check finds (`DPSGD.make_step`).
        """
        state, metrics = self.many(state, data, *shared, num_steps=1)
        return state, jax.tree.map(lambda leaf: leaf[0], metrics)

    def many(self, state: TrainState, data: Any, *shared: Any, num_steps: int) -> tuple[TrainState, StepMetrics]:
        """`num_steps` steps in one compiled program; the metrics are stacked [num_steps]. Else as a call.

        Over a `Source` they are made one by one. Where a record can't be read, the state of a call of one step can be gone on
        from; one of several steps may be gone.
        """
        num_steps = _checks.count("num_steps", num_steps, "give how many steps to make")
        check_state(state, "step")
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            raise UsageError(
                "jax_disable_jit is set, and a step is one compiled program, which takes the arrays of its state: unset it, and "
                "look into the loss by itself, loss(params, example)"
            )
        refuse_traced("data and what is shared", (data, shared, jnp.zeros(())))  # which is traced within any trace
        if state.run != self.run:
            raise UsageError(
                f"the state is of another run than this step's: {difference(state.run, self.run)}. Its epsilon would be false; "
                "step.continue_from(state, key) goes on under the new run and keeps a ledger of both"
            )
        self._check_accounted(state)
        if state.noise_state is None:
            raise UsageError("step: the state has no noise_state: begin with state = step.init(params, key)")
        made = int(state.step) + num_steps
        if made > self.run.steps:
            raise UsageError(
                f"step {state.step} + {num_steps} exceeds the run's steps={self.run.steps}: further steps would cost more "
                "than run.epsilon says; describe a longer run with jaxdp.DPSGD(steps=...)"
            )
        size = len(data) if isinstance(data, Source) else check_batch(data, _DATA)
        if size != self.run.num_examples:
            raise UsageError(
                f"data has {size} examples and the run was described with num_examples={self.run.num_examples}: its "
                "sampling rate, and so its epsilon, would be false; describe the run with the number of examples it trains on"
                + (of_records(data) or (_ONE_ROW if size > self.run.num_examples else ""))
            )
        most = getattr(self.run, "records_per_user", None)
        if most is not None:
            of_one = isinstance(data, Source)
            check_users(data.like if of_one else data, (most,) if of_one else (size, most))
        if shared and (
            num_steps > 1 or not isinstance(data, Source)
        ):  # one step over a source takes nothing before it is made
            refuse_what_is_taken((state.params, state.opt_state, state.rule_state), shared)
        shared = self._grad_fn.check_shared(shared, None, "step(state, (X, Y))")
        arrays = () if isinstance(data, Source) else data
        check_mesh_that_is_set({"state": state, "data": arrays})
        carry = (state.params, state.opt_state, state.rule_state, state.noise_state)
        spread = spread_of(carry, state.params, arrays)
        given = jax.tree.leaves(carry)
        with explaining(None if spread is None else spread.mesh):
            if spread is not None:
                carry = spread.place(carry)
            if isinstance(data, Source):
                carry, metrics = self._over_source(state, carry, data, shared, spread, num_steps)
            else:
                carry, metrics = self._over_arrays(state, carry, data, shared, spread, num_steps)
        for leaf in given:  # what was put on the mesh is gone as well: another step would draw the same noise
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.delete()
        params, opt_state, rule_state, noise_state = carry
        changed = {"params": params, "opt_state": opt_state, "rule_state": rule_state, "noise_state": noise_state}
        if spread is not None and spread.processes > 1:
            self._agreement.left((carry, state.keys, arrays))
        after = state._replace(**changed, step=made)
        self._accounted = _accounted(after)
        return after, metrics

    def _over_arrays(
        self, state: TrainState, carry: Any, data: Any, shared: Any, spread: Spread | None, num_steps: int
    ) -> tuple[tuple[Any, ...], StepMetrics]:
        others = (state.keys, jnp.int32(state.step), shared)
        keys, first, theirs = others if spread is None else spread.everywhere(others)
        args = (carry, keys, first, data, theirs)
        lower = lambda: self._compiled.lower(*args, num_steps=num_steps, spread=spread)
        of_several = spread is not None and spread.processes > 1
        if not self._is_checked(state, data, shared):
            beside = [begin_to_compile(lower())] if is_beside() and not of_several else []
            self._check_gradients(state, data, shared, spread)
            wait(beside)  # the call takes what was compiled; where that failed, it fails itself
        self._agree(state, carry, data, shared, spread, num_steps, lambda: lower().as_text())
        return self._compiled(*args, num_steps=num_steps, spread=spread)

    def _over_source(
        self, state: TrainState, carry: Any, source: Source, shared: Any, spread: Spread | None, num_steps: int
    ) -> tuple[tuple[Any, ...], StepMetrics]:
        if not self._is_checked(state, source, shared):
            self._check_gradients(state, source, shared, spread)
        metrics = []
        for number in range(state.step, state.step + num_steps):
            agree = partial(self._agree, state, carry, source, shared, spread, 1) if number == state.step else _agreed
            carry, of_step = self._from_source.step(carry, state.keys, number, source, shared, spread, agree)
            metrics.append(of_step)
        return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *metrics)

    def _check_accounted(self, state: TrainState) -> None:
        """That the state is of what it says, unless it goes on from the last one that was."""
        if self._accounted is not None and are_the_same(_accounted(state), self._accounted):
            return
        check_accounted(state, self.run)
        check_draws_go_on(state)
        check_noise_is_new(state)
        self._check_optimizer(state)

    def _check_optimizer(self, state: TrainState) -> None:
        like = jax.eval_shape(self._optimizer.init, state.params)
        if jax.tree.structure(like) != jax.tree.structure(state.opt_state):
            raise UsageError(
                "the state is of another optimizer: make the step with the same one. A learning rate that will change is a "
                "schedule from the start, or one of optax.inject_hyperparams"
            )

    def _agree(
        self,
        state: TrainState,
        carry: Any,
        data: Any,
        shared: Any,
        spread: Spread | None,
        num_steps: int,
        text: Callable[[], str],
    ) -> None:
        """That all processes make this step, before the first one, and where it doesn't go on from the one before."""
        if spread is None or spread.processes == 1:
            return
        arrays = () if isinstance(data, Source) else data
        program = (num_steps, *signature(carry, arrays, shared))
        seen = lambda: samples(data) if isinstance(data, Source) else data
        compare = lambda: agree_on_step(self.run, state, seen(), shared, text())
        self._agreement.check(program, (carry, state.keys, arrays), shared, compare)

    def _check_gradients(self, state: TrainState, data: Any, shared: tuple[Any, ...], spread: Spread | None) -> None:
        """The self-check of arguments of these shapes and types."""
        key = state.keys.loss if self._takes_rng else None
        params, shapes = state.params, _shapes(data)
        checked = signature(params, shapes, shared)
        if spread is not None:  # of several processes, each checks by itself
            as_checked = spread.here if spread.processes > 1 else spread.automatic
            params, shared, key = as_checked((params, shared, key))
        with nullcontext() if spread is None else computing_on(automatic(spread.mesh)):
            self_check(self._grad_fn, params, shapes, shared, key)
        self._checked.add(checked)

    def _is_checked(self, state: TrainState, data: Any, shared: tuple[Any, ...]) -> bool:
        """Whether it was made of arguments of these shapes and types, or isn't wanted."""
        return not self._checks_itself or signature(state.params, _shapes(data), shared) in self._checked

    def _scan(
        self, carry: tuple[Any, ...], *args: Any, num_steps: int, spread: Spread | None
    ) -> tuple[tuple[Any, ...], StepMetrics]:
        steps = partial(self._steps, num_steps, spread)
        return steps(carry, *args) if spread is None else spread.run(steps, carry, *args)

    def _steps(
        self,
        num_steps: int,
        spread: Spread | None,
        carry: tuple[Any, ...],
        keys: RunKeys,
        first: Any,
        data: Any,
        shared: Any,
    ) -> tuple[tuple[Any, ...], StepMetrics]:
        one_step = partial(self._one_step, keys, data, shared, spread)
        if num_steps == 1:  # outside a loop, where a CPU has fewer things to wait for
            carry, metrics = one_step(carry, first)
            return carry, jax.tree.map(lambda leaf: leaf[None], metrics)
        return jax.lax.scan(one_step, carry, first + jnp.arange(num_steps, dtype=jnp.int32))

    def _one_step(
        self, keys: RunKeys, data: Any, shared: Any, spread: Spread | None, carry: tuple[Any, ...], step: Any
    ) -> tuple[tuple[Any, ...], StepMetrics]:
        params, _, rule_state, noise_state = carry
        sampler = self.run.sampler(keys.sampling)
        loss_key = jax.random.fold_in(keys.loss, step)
        draw = sampler.draw(step)
        # Microbatches fill a draw of the usual size: few draws need a further, mostly empty one.
        summing = Summing(self._grad_fn, spread, sampler.usual_size)
        rng = loss_key if self._takes_rng else None
        noise = NoiseOfStep.of(self.run, spread, params)
        change = noise.before(noise_state)
        sums = summing.of_draw(params, data, draw, shared, rng=rng, rule_state=rule_state, change=change)
        return self._update(keys, sums, draw.size, carry, noise)

    def _update(
        self, keys: RunKeys, sums: DrawSums, size: Any, carry: tuple[Any, ...], noise: NoiseOfStep
    ) -> tuple[tuple[Any, ...], StepMetrics]:
        """From a draw's sums to the next carry."""
        params, opt_state, _, noise_state = carry
        means, noise_state = noise.behind(sums, noise_state, keys.noise)
        updates, opt_state = self._optimizer.update(means, opt_state, params)
        totals = (sums.losses, sums.clipped, sums.aux)
        metrics = StepMetrics(size, *jax.tree.map(lambda total: total / size.astype(jnp.float32), totals))
        return (optax.apply_updates(params, updates), opt_state, sums.rule_state, noise_state), metrics


def _accounted(state: TrainState) -> tuple[Any, ...]:
    """What tells how a state is accounted: the same objects again in a state that goes on from the one before."""
    drawn = (getattr(part, "step", None) for part in (state.noise_state, state.rule_state))
    return state.accounted, state.spent_before, state.step, *drawn


def _shapes(data: Any) -> Any:
    """Arrays of the data's shapes and types: one example of a source's."""
    if not isinstance(data, Source):
        return data
    return jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), data.like)


def _agreed(text: Callable[[], str]) -> None:
    """Steps that follow from one that was agreed on."""
    del text
