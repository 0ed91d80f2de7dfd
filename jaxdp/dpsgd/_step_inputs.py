"""What a step is given and refuses: no state, one whose arrays are gone, anything traced."""

from dataclasses import fields
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .. import _checks
from .._errors import UsageError
from ._description import Run
from ._state import TrainState

_RESTORED = "of a checkpoint, restore it into a state: checkpointer.restore(path, step.init(params, key))"


def check_state(state: Any, name: str) -> None:
    """Refuse what is no state, one whose arrays a step has taken, and one that is traced."""
    if not isinstance(state, TrainState):
        restored = f"; {_RESTORED}" if isinstance(state, dict) else ""
        raise UsageError(
            f"{name}: state is a {type(state).__name__}: begin with state = step.init(params, key){restored}"
        )
    refuse_traced("the state", state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise UsageError(
                f"{name}: the arrays of the state are gone (state{jax.tree_util.keystr(path)}): a step takes them for its "
                "own. Go on with the state that it returned, as in state, metrics = step(state, data); to keep one, copy it "
                "before"
            )
    if isinstance(state.step, np.ndarray):
        raise UsageError(f"{name}: state.step is an array and no plain number: {_RESTORED}")
    _checks.step(f"{name}: state.step", state.step)


def refuse_what_is_taken(carry: Any, shared: Any) -> None:
    """Refuse arrays of the state among what is shared: a step takes the state's arrays, and leaves others in their place."""
    own = {id(leaf) for leaf in jax.tree.leaves(carry) if isinstance(leaf, jax.Array)}
    if any(id(leaf) in own for leaf in jax.tree.leaves(shared)):
        raise UsageError(
            "what is shared holds arrays of the state itself, which the step takes: give it copies, such as "
            "jax.tree.map(jnp.copy, state.params)"
        )


def refuse_traced(name: str, tree: Any) -> None:
    """Refuse a tree with a traced value: a step counts on the host."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise UsageError(
            f"step: {name}: traced by jax. A step is compiled already, and counts what it spends on the host. Call it outside of "
            "jax.jit, jax.vmap and jax.lax.scan; step.many(state, data, num_steps=...) makes several in one program"
        )


def difference(theirs: Run | None, ours: Any) -> str:
    """What one run has otherwise than another, in words."""
    if theirs is None:
        return "it has none; begin with step.init(params, key)"
    compared = [field.name for field in fields(ours) if field.compare]
    names = [name for name in compared if getattr(theirs, name) != getattr(ours, name)]
    return "; ".join(f"{name}: {getattr(theirs, name)}, {getattr(ours, name)}" for name in names)
