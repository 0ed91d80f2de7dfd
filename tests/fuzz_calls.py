"""Random calls of jaxdp's public functions: the outcome is a right answer or a `UsageError`, whatever went in.

A call that is right (`calls_to_fuzz` has one for each function) is made wrong in one to three of its arguments: NaN, infinities,
other types, text, None, bools, complex and narrow numbers, empty arrays, traced values. What comes out must be what the function
says it returns, or `UsageError`.

    python tests/fuzz_calls.py --calls 1000 --seed 0
"""

import argparse
import collections
import dataclasses
import fractions
import math
import pathlib
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import calls_to_fuzz
import jax
import jax.numpy as jnp
import numpy as np
import optax
from calls_to_fuzz import EVENT, HARNESS, LEDGER, NOISY_MAX, RUN, USERS, Call, calls, loss

import jaxdp
from jaxdp import clipping

COUNTS = (0, 200)
RANGES: dict[str, tuple[float, float]] = {
    "noise_multiplier": (0.5, 1e3),
    "sample_rate": (1e-4, 1.0),
    "sampling_rate": (1e-4, 1.0),
    "epsilon": (0.05, 20.0),
    "delta": (1e-12, 1.0),
    "mean": (1.0, 50.0),
    "gamma": (0.01, 2.0),
    "noise_eps": (0.01, 2.0),
    "budget_bytes": (1e5, 1e12),
    "shift": (0.0, 10.0),
    **dict.fromkeys(
        (
            *(
                "steps",
                "num_examples",
                "expected_batch_size",
                "batch_size",
                "capacity",
                "truncated_batch_size",
                "times",
                "num_steps",
            ),
            *(
                "records_per_user",
                "num_records",
                "categories",
                "num_teachers",
                "epochs",
                "at_once",
                "num_classes",
                "moments",
            ),
            *(
                "queries",
                "most_answers",
                "rows",
                "features",
                "targets",
                "test_rows",
                "columns",
                "asked",
                "answered",
                "step",
            ),
            *("microbatch_size", "interval", "order", "reports", "teachers", "seed"),
            *("threads", "ahead", "block", "most", "first"),
        ),
        COUNTS,
    ),
    "shape": (0, 8),
    "interval": (1e-4, 1e-2),
}


class Traced:
    """In an argument's place: the argument itself, as `jax.jit` would hand it over."""


def scalars(rng: np.random.Generator) -> Any:
    """One of the scalars that nobody meant."""
    pool: list[Any] = [
        *(
            math.nan,
            math.inf,
            -math.inf,
            0,
            0.0,
            -0.0,
            -1,
            -1.0,
            1,
            2,
            0.5,
            1.5,
            3,
            7.0,
            5e-324,
            1e-300,
            1e-30,
            1e30,
            1e300,
        ),
        *(2**31 - 1, 2**31, 2**32, 2**63, 10**400, -(10**400), fractions.Fraction(1, 3)),
        *(
            True,
            False,
            None,
            "",
            "1",
            "nan",
            "abc",
            b"1",
            1j,
            complex(math.nan, 0),
            Ellipsis,
            object(),
            int,
            len,
            range(3),
        ),
        *(
            np.int8(-1),
            np.int8(3),
            np.int8(100),
            np.uint8(200),
            np.int16(7),
            np.uint32(5),
            np.int64(2),
            np.uint64(2**63),
        ),
        *(np.float16(0.5), np.float32(1.5), np.float64(math.nan), np.float16(math.inf), np.bool_(True), np.str_("1")),
        *(
            np.longdouble(2),
            np.complex64(1),
            np.datetime64("2020-01-01"),
            np.timedelta64(1, "s"),
            np.array(2),
            np.array(2.5),
            np.array("1"),
        ),
        *(jnp.float32(0.5), jnp.int8(3), jnp.bfloat16(2), jnp.asarray(True)),
    ]
    return pool[rng.integers(len(pool))]


def containers(rng: np.random.Generator) -> Any:
    """One of the arrays, keys and collections that nobody meant."""
    pool: list[Callable[[], Any]] = [
        *(
            list,
            lambda: (),
            dict,
            lambda: set(),
            lambda: [1.0, 2.0],
            lambda: (1,),
            lambda: [[1], [1, 2]],
            lambda: ["a"],
        ),
        *(
            lambda: {"a": 1},
            lambda: {1: "a"},
            lambda: [None],
            lambda: (math.nan,),
            lambda: iter([1]),
            lambda: {"w": None},
        ),
        *(
            lambda: np.zeros(0),
            lambda: np.zeros((0, 3)),
            lambda: np.zeros((2, 0)),
            lambda: np.array([math.nan, 1.0]),
            lambda: np.ones((2, 2)),
        ),
        *(
            lambda: np.array(["a", "b"]),
            lambda: np.array([None, 1]),
            lambda: np.array([1 + 1j]),
            lambda: np.array([b"x"]),
        ),
        *(
            lambda: np.array([1, 2], "datetime64[D]"),
            lambda: np.zeros(3, [("a", int)]),
            lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
        ),
        *(
            lambda: jnp.zeros((0, 3)),
            lambda: jnp.ones(3, jnp.bfloat16),
            lambda: jnp.ones(2, jnp.int8),
            lambda: jnp.ones((2, 3, 4)),
        ),
        *(lambda: jax.random.key(0), lambda: jax.random.split(jax.random.key(0)), lambda: jax.random.PRNGKey(0)),
        *(lambda: jax.ShapeDtypeStruct((2, 3), jnp.float32), lambda: jax.ShapeDtypeStruct((), "float32")),
        *(
            lambda: optax.sgd(0.1),
            lambda: jaxdp.DPSGD(**RUN),
            lambda: LEDGER,
            lambda: EVENT,
            lambda: NOISY_MAX,
            lambda: clipping.Flat(),
        ),
        *(
            lambda: pathlib.Path("nowhere"),
            lambda: "nowhere",
            lambda: "line\x00",
            lambda: np.random.default_rng(0),
            lambda: loss,
        ),
    ]
    return pool[rng.integers(len(pool))]()


def altered(value: Any, rng: np.random.Generator) -> Any:
    """An array like the right one, but for one thing."""
    given = np.asarray(value)
    kinds: list[Callable[[], Any]] = [
        *(
            lambda kind=kind: given.astype(kind)
            for kind in ("int8", "uint8", "uint64", "float16", "float64", "longdouble", "complex64", "bool", "object")
        ),
        *(lambda kind=kind: given.astype(kind) for kind in ("str", "S4")),
        lambda: jnp.asarray(given).astype(jnp.bfloat16),
        lambda: jnp.asarray(given).astype(jnp.float8_e4m3fn),
        lambda: np.where(np.arange(given.size).reshape(given.shape) == 0, math.nan, given),
        lambda: np.where(np.arange(given.size).reshape(given.shape) == 0, math.inf, given),
        *(
            lambda: -given,
            lambda: given[:0],
            lambda: given[..., :0],
            lambda: given[None],
            lambda: given[0],
            lambda: given.T,
        ),
        *(
            lambda: given.tolist(),
            lambda: [given],
            lambda: given.astype(np.float64) * 1e300,
            lambda: given[::-1],
            lambda: given + 0.5,
        ),
        *(
            lambda: given.astype(">i4"),
            lambda: np.asfortranarray(given),
            lambda: jnp.asarray(given),
            lambda: {"w": given},
        ),
    ]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return kinds[rng.integers(len(kinds))]()


def within_range(name: str, value: Any) -> bool:
    """Whether a number is of a size that this program asks about; what is no number, or out of all bounds, always is."""
    if name not in RANGES:
        return True
    lowest, highest = RANGES[name]
    for part in value if isinstance(value, list | tuple | range) else [value]:
        try:
            number = (
                math.nan if isinstance(part, np.ndarray | np.complexfloating) and np.iscomplexobj(part) else float(part)
            )
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number) and number > 0 and not lowest <= number <= highest:
            return False
    return True


def wrong(name: str, value: Any, rng: np.random.Generator) -> Any:
    """Something in the place of an argument."""
    while True:
        kind = rng.random()
        if isinstance(value, np.ndarray) and kind < 0.5:
            try:
                found = altered(value, rng)
            except (TypeError, ValueError):
                continue
        elif kind < 0.7:
            found = scalars(rng)
        elif kind < 0.92 or not isinstance(value, int | float | np.ndarray | jax.Array) or isinstance(value, bool):
            found = containers(rng)
        elif not isinstance(value, np.ndarray) or value.dtype.kind != "U":
            return Traced()
        else:
            continue
        if within_range(name, found):
            return found


@dataclasses.dataclass(frozen=True)
class Failure:
    """A call whose outcome was neither a right answer nor a `UsageError`."""

    number: int
    name: str
    given: dict[str, Any]
    outcome: str

    def __str__(self) -> str:
        given = ", ".join(f"{name}={repr(value)[:120]}" for name, value in self.given.items()).replace("\n", " ")
        return f"{self.number}: {self.name}({given})\n    {self.outcome}"


ANSWERED, REFUSED, OTHERS, TRACED = "answered", "refused", "the caller's own error", "traced"
RIGHT = (ANSWERED, REFUSED, OTHERS, TRACED)


def outcome_of(call: Call, given: dict[str, Any]) -> str:
    """One of `RIGHT` where the outcome is as it should be; what it was, otherwise."""
    traced = [name for name, value in given.items() if isinstance(value, Traced)]
    arguments = call.arguments | given
    try:
        if not traced:
            out = call.function(**arguments)
            return ANSWERED if call.right(out) else f"returned {repr(out)[:300]}"

        def run(values: Any) -> None:
            call.function(**arguments | values)

        jax.eval_shape(run, {name: call.arguments[name] for name in traced})
    except jaxdp.UsageError as error:
        return REFUSED if len(str(error)) > 20 else f"said no more than {str(error)!r}"
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        of_users = any(frame.filename == calls_to_fuzz.__file__ and frame.name in USERS for frame in frames)
        if of_users or any(callable(value) for value in given.values()):
            return OTHERS
        ours = [frame for frame in reversed(frames) if "/jaxdp/" in frame.filename]
        where = " < ".join(f"{frame.filename.rsplit('/jaxdp/', 1)[-1]}:{frame.lineno}" for frame in ours[:3])
        return f"{type(error).__name__} at {where}: {str(error)[:200]}".replace("\n", " ")
    return TRACED


def fuzz(
    number: int, seed: int, only: str = "", tally: collections.Counter[tuple[str, str]] | None = None
) -> list[Failure]:
    """The failures among `number` random calls; call i depends on the seed and i alone. `tally` counts outcomes by function."""
    known = [(name, call) for name, call in calls() if only in name]
    weights = np.array([call.weight for _, call in known])
    failures = []
    for i in range(number):
        rng = np.random.default_rng((seed, i))
        name, call = known[rng.choice(len(known), p=weights / weights.sum())]
        theirs = [argument for argument in call.arguments if argument not in HARNESS]
        chosen = rng.choice(theirs, size=min(len(theirs), int(rng.choice([1, 1, 1, 2, 3]))), replace=False)
        given = {str(argument): wrong(str(argument), call.arguments[argument], rng) for argument in chosen}
        with warnings.catch_warnings(), jax.debug_key_reuse(False):  # the calls that are right share their keys
            warnings.simplefilter("ignore")
            found = outcome_of(call, given)
        if tally is not None:
            tally[name, found if found in RIGHT else "WRONG"] += 1
        if found not in RIGHT:
            failures.append(Failure(i, name, given, found))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="functions whose name has this in it")
    options = parser.parse_args()
    tally: collections.Counter[tuple[str, str]] = collections.Counter()
    failures = fuzz(options.calls, options.seed, options.only, tally)
    columns = (*RIGHT, "WRONG")
    print(f"{'function':40s}" + "".join(f"{column:>24s}" for column in columns))
    for name in sorted({name for name, _ in tally}):
        print(f"{name:40s}" + "".join(f"{tally[name, column]:24d}" for column in columns))
    print("\n".join(map(str, failures)))
    by_name = collections.Counter(failure.name for failure in failures)
    print(f"{options.calls} calls, seed {options.seed}: {len(failures)} failures {dict(by_name)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
