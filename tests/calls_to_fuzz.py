"""Every public function of jaxdp, with a call that is right and how its answer is told: what `fuzz_calls` makes wrong."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import DpEvent, GaussianDpEvent

import jaxdp
from jaxdp import accounting, audit, clipping, data, mechanisms, models, noise, pate, reading, sampling

HARNESS = ("make", "kind", "run_to_step")  # arguments of the functions below, and not of jaxdp's


@dataclasses.dataclass(frozen=True)
class Call:
    """A function, arguments with which it gives an answer, and whether something is that answer."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    right: Callable[[Any], bool]
    weight: float = 1.0


def is_finite(value: Any) -> bool:
    return type(value) is float and value >= 0


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def of(*kinds: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def array(dtype: Any = jnp.float32, *, finite: bool = True) -> Callable[[Any], bool]:
    def right(value: Any) -> bool:
        is_one = isinstance(value, jax.Array | np.ndarray) and value.dtype == dtype
        return is_one and not (finite and bool(np.isnan(np.asarray(value, np.float64)).any()))

    return right


def arrays(tree: Any) -> bool:
    return all(array()(leaf) for leaf in jax.tree.leaves(tree))


def loss(params: Any, x: Any, *shared: Any) -> Any:
    del shared
    return jnp.sum(jnp.square(params["w"] @ x))


def record_loss(params: Any, record: Any) -> Any:
    x, y = record
    return jnp.sum(jnp.square(params["w"] @ x - y))


def logits(params: Any, x: Any) -> Any:
    return params["w"] @ x


def predicted(inputs: Any) -> Any:
    return inputs + 0.0


def initial(key: Any) -> Any:
    del key
    return PARAMS


def gaussian(sigma: float) -> DpEvent:
    return GaussianDpEvent(sigma)


USERS = ("loss", "record_loss", "logits", "predicted", "initial", "gaussian")  # whose errors are their own


def key() -> Any:
    return jax.random.key(0)


PARAMS = {"w": np.ones((2, 3), np.float32)}
BATCH = np.ones((4, 3), np.float32)
VOTES = np.array([[9, 1, 0], [5, 3, 2], [0, 0, 10], [4, 4, 2]], np.int32)
RUN = {"num_examples": 50, "expected_batch_size": 10, "steps": 20, "clip_norm": 1.0, "noise_multiplier": 1.0}
DP = {"noise_multiplier": 1.0, "expected_batch_size": 4, "key": key()}
COST = {"delta": 1e-5, "accountant": "rdp", "adjacency": "add_or_remove_one"}
EVENT = accounting.poisson_event(noise_multiplier=1.0, sample_rate=0.1, steps=10)
LEDGER = accounting.Ledger().add(EVENT, "ten steps")
IMAGES = np.zeros((6, 2, 2, 1), np.uint8)
LABELS = np.array([0, 1, 0, 1, 0, 1], np.int32)
DATASET = data.Dataset("some", IMAGES, LABELS, IMAGES[:2], LABELS[:2], 2)
NOISY_MAX = pate.GaussianNoisyMax(sigma=4.0)
CSV = "id,a,b\nx,1,2\ny,3,4\nz,5,7\n"


def updated(make: Callable[..., Any], sums: Any, sensitivity: Any, **how: Any) -> Any:
    tx = make(**how)
    return tx.update(sums, tx.init(PARAMS), PARAMS, sensitivity=sensitivity)[0]


def clipped_then_noisy(grads: Any, params: Any, mask: Any, **how: Any) -> Any:
    tx = jaxdp.clip_and_privatize(**how)
    return tx.update(grads, tx.init(params), params, mask=mask)[0]


def drawn_by(kind: Any, step: Any, **how: Any) -> Any:
    return kind(**how).batch(step).mask


def stepped(run_to_step: Any, optimizer: Any, params: Any, examples: Any, step_key: Any, num_steps: Any) -> Any:
    step = run_to_step.make_step(loss, optimizer)
    return step.many(step.init(params, step_key), examples, num_steps=num_steps)[0]


def released(kind: Any, values: Any, release_key: Any, **how: Any) -> Any:
    return kind(**how)(values, key=release_key)


def synthesised(counts: Any, queries: Any, release_key: Any, **how: Any) -> Any:
    return mechanisms.MultiplicativeWeights(**how)(counts, queries, key=release_key)


def cost_of_run(delta: Any, accountant: Any, cost_steps: Any, **how: Any) -> Any:
    return jaxdp.DPSGD(**how).epsilon(delta=delta, accountant=accountant, steps=cost_steps)


def quantile_followed(norms: Any, mask: Any, clip_norm: Any, rule_key: Any, **how: Any) -> Any:
    rule = clipping.Quantile(**how)
    return rule.update(rule.init(clip_norm, rule_key), norms, mask).clip_norm


def with_file(function: Callable[..., Any], **rest: Any) -> Callable[..., Any]:
    """A function of a path, with the text that the file is to hold in its place."""

    def call(text: Any, **arguments: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "file.csv"
            if isinstance(text, str):
                path.write_text(text)
            return function(path if isinstance(text, str) else text, **arguments, **rest)

    return call


def lookalike(**how: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return data.write_lookalike(pathlib.Path(folder) / "like", **how)


def calls() -> Iterator[tuple[str, Call]]:
    """Every public function with a call that is right."""
    yield from _of_runs()
    yield from _of_accounting()
    yield from _of_reading()
    yield from _of_clipping()
    yield from _of_mechanisms()
    yield from _of_pate()
    yield from _of_audit()
    yield from _of_data()
    yield from _of_models()


def _of_runs() -> Iterator[tuple[str, Call]]:
    run = jaxdp.DPSGD(**RUN)
    yield "DPSGD", Call(jaxdp.DPSGD, {**RUN, "rule": clipping.Flat(), "microbatch_size": 4}, of(jaxdp.DPSGD))
    truncated = {"sampling": "truncated_poisson", "truncated_batch_size": 20, "unit": "user", "records_per_user": 3}
    yield "DPSGD truncated", Call(jaxdp.DPSGD, {**RUN, **truncated}, of(jaxdp.DPSGD))
    shuffled = {"sampling": "shuffle", "adjacency": "replace_special"}
    yield "DPSGD shuffled", Call(jaxdp.DPSGD, {**RUN, **shuffled}, of(jaxdp.DPSGD))
    values = {"sampling": sampling.Poisson(), "noise": noise.Gaussian()}
    yield "DPSGD of values", Call(jaxdp.DPSGD, {**RUN, **values}, of(jaxdp.DPSGD))
    yield (
        "TruncatedPoisson",
        Call(sampling.TruncatedPoisson, {"truncated_batch_size": 9}, of(sampling.TruncatedPoisson)),
    )
    yield "DPSGD.from_dict", Call(jaxdp.DPSGD.from_dict, {"description": run.to_dict(), "known": ()}, of(jaxdp.DPSGD))
    yield "DPSGD.epsilon", Call(cost_of_run, {**RUN, "delta": 1e-5, "accountant": "rdp", "cost_steps": 5}, is_finite)
    yield "DPSGD.spent", Call(run.spent, {"delta": 1e-5, "accountant": "rdp", "steps": 5}, of(accounting.Spent))
    budget = {"epsilon": 1.0, "delta": 1e-5, "accountant": "rdp", "ledger": LEDGER}
    yield "DPSGD.within", Call(run.within, {**budget, "epsilon": 5.0}, of(jaxdp.DPSGD), 0.3)
    yield "DPSGD.with_noise_for", Call(run.with_noise_for, {**budget, "epsilon": 5.0}, of(jaxdp.DPSGD), 0.3)
    yield (
        "DPSGD.statement",
        Call(run.statement, {"delta": 1e-5, "steps": 3, "spent_before": LEDGER, "accountant": "pld"}, of(str), 0.3),
    )
    yield "DPSGD.ledger", Call(run.ledger, {"steps": 3}, of(accounting.Ledger))
    yield "DPSGD.event_of", Call(run.event_of, {"steps": 3}, of(DpEvent))
    yield "DPSGD.sampler", Call(run.sampler, {"key": key(), "capacity": 20}, of(jaxdp.PoissonSampler))
    yield (
        "DPSGD.make_step",
        Call(run.make_step, {"loss_fn": loss, "optimizer": optax.sgd(0.1), "has_aux": False}, of(jaxdp.PrivateStep)),
    )
    steps = {
        "run_to_step": run,
        "optimizer": optax.sgd(0.1),
        "params": PARAMS,
        "examples": np.ones((50, 3), np.float32),
    }
    yield "PrivateStep", Call(stepped, {**steps, "step_key": key(), "num_steps": 1}, of(jaxdp.TrainState), 0.3)
    yield "privatize", Call(updated, {"make": jaxdp.privatize, "sums": PARAMS, "sensitivity": 1.0, **DP}, arrays)
    yield (
        "dp_sgd",
        Call(
            updated,
            {"make": jaxdp.dp_sgd, "learning_rate": 0.1, "momentum": 0.9, "sums": PARAMS, "sensitivity": 1.0, **DP},
            arrays,
        ),
    )
    yield "dp_adam", Call(jaxdp.dp_adam, {"learning_rate": 0.1, "b1": 0.9, **DP}, of(optax.GradientTransformation))
    yield "in_float32", Call(jaxdp.in_float32, {"optimizer": optax.sgd(0.1)}, of(optax.GradientTransformation))
    grads = {"w": np.ones((4, 2, 3), np.float32)}
    noisy = {"grads": grads, "params": PARAMS, "mask": np.ones(4, bool), "clip_norm": 1.0, **DP}
    yield "clip_and_privatize", Call(clipped_then_noisy, noisy, arrays, 0.5)
    sampler = {"key": key(), "num_examples": 20, "steps": 5, "step": 2}
    yield (
        "PoissonSampler",
        Call(drawn_by, {"kind": jaxdp.PoissonSampler, **sampler, "sampling_rate": 0.2, "capacity": 8}, array(bool)),
    )
    cut = {**sampler, "sampling_rate": 0.2, "truncated_batch_size": 4}
    yield "TruncatedPoissonSampler", Call(drawn_by, {"kind": jaxdp.TruncatedPoissonSampler, **cut}, array(bool))
    yield "ShuffledSampler", Call(drawn_by, {"kind": jaxdp.ShuffledSampler, **sampler, "batch_size": 4}, array(bool))
    yield "load_run", Call(jaxdp.load_run, {"path": "nowhere"}, lambda _: False, 0.3)
    memory = {"loss_fn": loss, "params": PARAMS, "batch": BATCH, "has_aux": False}
    yield (
        "step_memory",
        Call(jaxdp.step_memory, {**memory, "methods": ("vmap",), "microbatch_sizes": (2,)}, of(tuple), 0.3),
    )
    yield (
        "largest_microbatch",
        Call(jaxdp.largest_microbatch, {**memory, "budget_bytes": 1e9, "method": "vmap"}, is_count, 0.3),
    )


def _of_accounting() -> Iterator[tuple[str, Call]]:
    sgd = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10}
    yield "epsilon", Call(accounting.epsilon, {**sgd, **COST}, is_finite)
    yield "poisson_event", Call(accounting.poisson_event, sgd, of(DpEvent))
    cut = {**sgd, "num_examples": 100, "truncated_batch_size": 20}
    yield "truncated_poisson_event", Call(accounting.truncated_poisson_event, cut, of(DpEvent))
    yield "gaussian_event", Call(accounting.gaussian_event, {"noise_multiplier": 1.0, "times": 2}, of(DpEvent))
    yield "event_epsilon", Call(accounting.event_epsilon, {"event": EVENT, **COST}, of(accounting.Spent))
    yield (
        "epsilon_at_interval",
        Call(accounting.epsilon_at_interval, {"event": EVENT, **COST, "interval": 1e-3}, of(accounting.Spent)),
    )
    yield "accountants_of", Call(accounting.accountants_of, {"event": EVENT, "adjacency": "replace_one"}, of(tuple))
    yield "event_to_dict", Call(accounting.event_to_dict, {"event": EVENT}, of(dict))
    yield (
        "event_from_dict",
        Call(accounting.event_from_dict, {"description": accounting.event_to_dict(EVENT)}, of(DpEvent)),
    )
    yield "rounded_up", Call(accounting.rounded_up, {"epsilon": 1.0}, of(str))
    yield (
        "noise_multiplier",
        Call(accounting.noise_multiplier, {"epsilon": 2.0, "sample_rate": 0.1, "steps": 10, **COST}, is_finite),
    )
    few = {"epsilon": 2.0, "noise_multiplier": 1.0, "sample_rate": 0.1, **COST}
    yield "steps", Call(accounting.steps, few, is_count)
    size = {"epsilon": 2.0, "noise_multiplier": 1.0, "num_examples": 100, "steps": 10, **COST}
    yield "batch_size", Call(accounting.batch_size, size, is_count)
    budget = {"epsilon": 5.0, "delta": 1e-5, "accountant": "rdp", "ledger": LEDGER, "interval": 1e-3}
    yield "Budget", Call(accounting.Budget, budget, of(accounting.Budget))
    least = {"budget": accounting.Budget(epsilon=2.0, delta=1e-5), "event_of": gaussian}
    yield "least_noise", Call(accounting.least_noise, least, is_finite, 0.5)
    yield (
        "Ledger",
        Call(
            accounting.Ledger,
            {"entries": LEDGER.entries, "adjacency": "replace_one", "unit": "user"},
            of(accounting.Ledger),
        ),
    )
    yield (
        "LedgerEntry",
        Call(accounting.LedgerEntry, {"label": "one", "event": EVENT, "nonce": "a"}, of(accounting.LedgerEntry)),
    )
    yield "Ledger.add", Call(LEDGER.add, {"event": EVENT, "label": "one", "nonce": "a"}, of(accounting.Ledger))
    yield "Ledger.extend", Call(LEDGER.extend, {"other": LEDGER}, of(accounting.Ledger))
    yield "Ledger.total", Call(LEDGER.total, {"delta": 1e-5, "accountant": "rdp"}, of(accounting.Total))
    yield "Ledger.epsilon", Call(LEDGER.epsilon, {"delta": 1e-5, "accountant": "rdp"}, of(accounting.Spent))
    yield (
        "Ledger.from_dict",
        Call(accounting.Ledger.from_dict, {"description": LEDGER.to_dict()}, of(accounting.Ledger)),
    )
    yield (
        "RandomSearch",
        Call(accounting.RandomSearch, {"mean": 5, "distribution": "poisson"}, of(accounting.RandomSearch)),
    )
    search = accounting.RandomSearch(mean=5)
    yield "RandomSearch.event", Call(search.event, {"run": EVENT}, of(DpEvent))
    yield "RandomSearch.number_of_runs", Call(search.number_of_runs, {"rng": np.random.default_rng(0)}, is_count)
    about = {"run": jaxdp.DPSGD(**RUN), "delta": 1e-5, "steps": 3, "spent_before": LEDGER, "notes": ("A note.",)}
    yield "statement", Call(accounting.statement, about, of(str), 0.3)


def _of_reading() -> Iterator[tuple[str, Call]]:
    rows = lambda tree: all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree))
    source = {"records": IMAGES, "decode": None, "threads": 2, "ahead": 2}
    read = lambda indices, **how: reading.Source(**how).read(indices)
    yield "Source", Call(read, {**source, "indices": np.array([4, 0])}, rows)

    def all_in_order(records: Any, **part: Any) -> list[Any]:
        return list(reading.in_order(reading.Source(records), **part))

    yield "in_order", Call(all_in_order, {"records": IMAGES, "start": 1, "end": 4}, rows)

    def blocks(records: Any, **how: Any) -> list[reading.Block]:
        with reading.Reader(reading.Source(records), np.arange, **how) as reader:
            return list(reader.blocks(2))

    read_ahead = {"records": IMAGES, "block": 4, "most": 6, "first": 2, "steps": 2, "places": np.array([0, 2])}
    yield "Reader", Call(blocks, read_ahead, lambda found: rows([block.rows for block in found]))


def _of_clipping() -> Iterator[tuple[str, Call]]:
    made = {
        "loss_fn": loss,
        "clip_norm": 1.0,
        "rule": clipping.Flat(),
        "has_aux": False,
        "method": "auto",
        "strict": False,
    }
    yield "clipped_grad", Call(jaxdp.clipped_grad, {**made, "microbatch_size": 2}, of(clipping.ClippedGrad))

    def applied(params: Any, batch: Any, mask: Any, rng: Any, shared: Any, method: Any, clip_norm: Any) -> Any:
        grad_fn = jaxdp.clipped_grad(loss, clip_norm=clip_norm, method=method)
        return grad_fn(params, batch, shared, mask=mask, rng=rng, rule_state=None)

    given = {
        "params": PARAMS,
        "batch": BATCH,
        "mask": np.ones(4, bool),
        "rng": None,
        "shared": 2,
        "method": "vmap",
        "clip_norm": 1.0,
    }
    yield "clipped_grad(...)", Call(applied, given, of(clipping.ClippedGrads), 0.7)

    def explained(params: Any, batch: Any, shared: Any, rng: Any) -> Any:
        return jaxdp.clipped_grad(loss, clip_norm=1.0).explain(params, batch, shared, rng=rng)

    yield (
        "explain",
        Call(
            explained, {"params": PARAMS, "batch": BATCH, "shared": "text", "rng": None}, of(clipping.Explanation), 0.5
        ),
    )
    plain = lambda loss_fn, has_aux, params, batch: jaxdp.per_example_grads(loss_fn, has_aux=has_aux)(params, batch)
    yield (
        "per_example_grads",
        Call(plain, {"loss_fn": loss, "has_aux": False, "params": PARAMS, "batch": BATCH}, of(dict), 0.5),
    )
    yield "Shared", Call(lambda value: clipping.Shared(value), {"value": PARAMS}, of(clipping.Shared))
    yield "Normalised", Call(clipping.Normalised, {"stability": 0.01}, of(clipping.Normalised))
    quantile = {"quantile": 0.5, "learning_rate": 0.2, "count_noise": 3.0, "expected_batch_size": 4}
    yield "Quantile", Call(clipping.Quantile, quantile, of(clipping.Quantile))
    follow = {
        **quantile,
        "norms": np.ones(4, np.float32),
        "mask": np.ones(4, bool),
        "clip_norm": 1.0,
        "rule_key": key(),
    }
    yield "Quantile.update", Call(quantile_followed, follow, array(), 0.5)
    groups = lambda labels, weights, params: clipping.PerGroup(labels=labels, weights=weights).groups(params)
    yield "PerGroup", Call(groups, {"labels": {"w": "one"}, "weights": {"one": 1.0}, "params": PARAMS}, of(tuple))
    yield "check_batch", Call(clipping.check_batch, {"batch": BATCH}, is_count)
    yield "check_mask", Call(functools.partial(clipping.check_mask, size=2), {"mask": [True, False]}, array(bool))
    yield "check_params", Call(clipping.check_params, {"params": PARAMS}, of(type(None)))
    yield "standard_normal", Call(noise.standard_normal, {"key": key(), "shape": (3,)}, array())
    yield "standard_laplace", Call(noise.standard_laplace, {"key": key(), "shape": (3,)}, array())
    yield (
        "tree_normal",
        Call(lambda key, tree: jax.tree.leaves(noise.tree_normal(key, tree)), {"key": key(), "tree": PARAMS}, of(list)),
    )


def _of_mechanisms() -> Iterator[tuple[str, Call]]:
    values = {"values": np.ones((2, 3), np.float32), "release_key": key()}
    additive = {**values, "sensitivity": 1.0, "shape": (3,), "integers": False}
    yield "Laplace", Call(released, {"kind": mechanisms.Laplace, "epsilon": 1.0, **additive}, array(), 0.7)
    yield "Gaussian", Call(released, {"kind": mechanisms.Gaussian, "noise_multiplier": 1.0, **additive}, array(), 0.7)
    least = {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0, "shape": (), "integers": True}
    yield "Gaussian.calibrated", Call(mechanisms.Gaussian.calibrated, least, of(mechanisms.Gaussian))
    chosen = {"epsilon": 1.0, "sensitivity": 1.0, "monotonic": False, **values}
    yield "Exponential", Call(released, {"kind": mechanisms.Exponential, **chosen}, array(jnp.int32), 0.7)
    yield "ReportNoisyMax", Call(released, {"kind": mechanisms.ReportNoisyMax, **chosen}, array(jnp.int32), 0.7)
    answers = {"epsilon": 1.0, "categories": 3, "values": np.array([0, 1, 2], np.int32), "release_key": key()}
    yield (
        "RandomizedResponse",
        Call(released, {"kind": mechanisms.RandomizedResponse, **answers}, array(jnp.int32), 0.7),
    )
    response = mechanisms.RandomizedResponse(epsilon=1.0, categories=3)
    yield "RandomizedResponse.estimate", Call(response.estimate, {"reports": np.array([0, 1, 2])}, array(np.float64))
    yield "RandomizedResponse.standard_error", Call(response.standard_error, {"reports": 10}, is_finite)
    laplace = mechanisms.Laplace(epsilon=1.0, sensitivity=1.0, shape=(3,))
    yield "Laplace.event_of", Call(laplace.event_of, {"values": np.ones((2, 3))}, of(DpEvent))
    exponential = mechanisms.Exponential(epsilon=1.0, sensitivity=1.0)
    yield "Exponential.event_of", Call(exponential.event_of, {"scores": np.ones((2, 3))}, of(DpEvent))
    yield "Exponential.log_probabilities", Call(exponential.log_probabilities, {"scores": np.ones(3)}, array())
    mean = {
        "epsilon": 1.0,
        "lower": 0.0,
        "upper": 10.0,
        "num_records": 5,
        "shape": (),
        "values": np.arange(5.0),
        "release_key": key(),
    }
    yield "NoisyMean", Call(released, {"kind": mechanisms.NoisyMean, **mean}, array(np.float64), 0.7)
    histogram = {"epsilon": 1.0, "edges": (0.0, 2.0, 5.0), "values": np.arange(5.0), "release_key": key()}
    yield "NoisyHistogram", Call(released, {"kind": mechanisms.NoisyHistogram, **histogram}, array(), 0.7)
    weights = {"epsilon": 2.0, "rounds": 2, "num_records": 9, "passes": 2, "adjacency": "replace_one"}
    yield (
        "MultiplicativeWeights",
        Call(
            synthesised,
            {**weights, "counts": np.array([4, 5]), "queries": np.eye(2), "release_key": key()},
            array(np.float64),
            0.7,
        ),
    )
    table = mechanisms.CategoricalTable(sizes=(2, 3))
    yield "CategoricalTable", Call(mechanisms.CategoricalTable, {"sizes": (2, 3)}, of(mechanisms.CategoricalTable))
    yield "CategoricalTable.histogram", Call(table.histogram, {"rows": np.array([[0, 1], [1, 2]])}, array(np.int64))
    drawn = {"histogram": np.ones(6), "num_rows": 3, "key": key()}
    yield "CategoricalTable.sample", Call(table.sample, drawn, array(np.int32))


def _of_pate() -> Iterator[tuple[str, Call]]:
    predictions = np.array([[0, 1, 2], [0, 1, 1], [0, 2, 2]], np.int32)
    yield "vote_counts", Call(pate.vote_counts, {"predictions": predictions, "num_classes": 3}, array(jnp.int32))
    points = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    graph = {"public": points, "private": points[:3], "neighbours": 5, "dimensions": 3}
    yield "graph_coordinates", Call(pate.graph_coordinates, graph, arrays)
    spread = {"coordinates": points, "labels": np.arange(30) % 4 - 1, "confidence": 0.9}
    yield "spread_labels", Call(pate.spread_labels, spread, array(np.int32))
    noisy = {"votes": VOTES, "key": key()}
    confident = {"threshold": 5.0, "sigma_threshold": 2.0, "sigma_max": 2.0}
    yield "laplace_noisy_max", Call(pate.laplace_noisy_max, {**noisy, "gamma": 0.5}, array(jnp.int32))
    yield "gaussian_noisy_max", Call(pate.gaussian_noisy_max, {**noisy, "sigma": 2.0}, array(jnp.int32))
    yield "confident_noisy_max", Call(pate.confident_noisy_max, {**noisy, **confident}, of(pate.Labels))
    student = {"student_probs": np.full((4, 3), 1 / 3, np.float32), "student_confidence": 0.9}
    yield "interactive_noisy_max", Call(pate.interactive_noisy_max, {**noisy, **confident, **student}, of(pate.Labels))
    yield "aggregate", Call(pate.aggregate, {**noisy, "mechanism": NOISY_MAX, "student_probs": None}, of(pate.Labels))
    analysed = {"votes": VOTES, "mechanism": NOISY_MAX, "delta": 1e-5, "answered": None}
    yield "analyze", Call(pate.analyze, analysed, of(pate.Report))
    clean = {"votes": VOTES, "mechanism": NOISY_MAX, "sanitiser": pate.Sanitiser(), "rng": np.random.default_rng(0)}
    yield "analyze, sanitised", Call(pate.analyze, clean, of(pate.Report))
    yield "event_of", Call(pate.event_of, {"mechanism": NOISY_MAX, "asked": 5, "answered": 5}, of(DpEvent))
    yield (
        "forecast",
        Call(pate.forecast, {"votes": VOTES, "mechanism": NOISY_MAX, "queries": 9, "delta": 1e-5}, of(pate.Forecast)),
    )
    stop = {"answered": np.ones(9, bool), "mechanism": NOISY_MAX, "epsilon": 5.0, "delta": 1e-5, "most_answers": 5}
    yield "within_budget", Call(pate.within_budget, stop, is_count)
    moments = {
        "teacher_preds": predictions,
        "indices": np.array([0, 2]),
        "noise_eps": 0.1,
        "delta": 1e-5,
        "moments": 8,
        "num_classes": 3,
    }
    yield "perform_analysis", Call(pate.perform_analysis, moments, of(tuple))
    for kind, values in (
        (pate.LaplaceNoisyMax, {"gamma": 0.5}),
        (pate.GaussianNoisyMax, {"sigma": 2.0}),
        (pate.ConfidentNoisyMax, confident),
        (pate.InteractiveNoisyMax, {**confident, "student_confidence": 0.9}),
        (pate.Sanitiser, {"order": 8.0, "beta": 0.05, "noise": 6.0, "noise_of_sensitivity": 3.0, "failure": 1e-6}),
    ):
        yield kind.__name__, Call(kind, dict(values), of(kind))
    records = (np.ones((6, 3), np.float32), np.zeros((6, 2), np.float32))
    course = {"num_teachers": 2, "optimizer": optax.sgd(0.1), "epochs": 1, "batch_size": 2, "key": key(), "at_once": 1}
    taught = {"loss_fn": record_loss, "init_fn": initial, "data": records, **course}
    yield "train_teachers", Call(pate.train_teachers, taught, of(pate.Teachers), 0.2)
    learnt = {"logits_fn": logits, "init_fn": initial, "inputs": np.ones((4, 3), np.float32)}
    how = {
        "labels": np.array([0, 1, -1, 1]),
        "optimizer": optax.sgd(0.1),
        "steps": 1,
        "key": key(),
        "method": "supervised",
        "batch_size": 2,
    }
    same = {"mildly": lambda key, x: x, "strongly": lambda key, x: x}
    yield "train_student", Call(pate.train_student, {**learnt, **how, **same}, of(dict), 0.2)
    ensemble = pate.Teachers({"w": np.ones((2, 2, 3), np.float32)}, np.array([[0], [1]], np.int32))
    inputs = {"logits_fn": logits, "inputs": np.ones((4, 3), np.float32)}
    yield "Teachers.predict", Call(ensemble.predict, inputs, array(np.int32), 0.3)


def _of_models() -> Iterator[tuple[str, Call]]:
    image = np.zeros((8, 8, 1), np.float32)
    moved = {"key": key(), "image": image, "turn": 0.2, "scale": 0.1, "shift": 1.0}
    yield "distorted", Call(models.distorted, moved, array(finite=False))
    yield "erased", Call(models.erased, {"key": key(), "image": image, "side": 3}, of(jax.Array))
    how = {"loss_fn": record_loss, "multiplicity": 2, "turn": 0.1, "scale": 0.1, "shift": 1.0}
    yield "augmented", Call(models.augmented, how, callable)
    yield "scattering", Call(models.scattering, {"images": image[..., 0], "scales": 2}, array(), 0.3)
    yield "scattering_features", Call(models.scattering_features, {"images": image, "scales": 2}, array(), 0.3)
    yield "scattering_channels", Call(models.scattering_channels, {"scales": 2}, is_count)
    asked = {"name": "dense", "task": data.Classes(2), "input_shape": (3,), "input_dtype": "float32"}
    architecture = {"hidden": (2,), "dropout": 0.1, "activation": "relu", "weight_norm": False, "dtype": "float32"}
    yield "classifier", Call(models.classifier, {**asked, **architecture}, of(models.Classifier), 0.3)
    made = models.classifier(**asked, **architecture)
    yield "classifier_of", Call(models.classifier_of, {"described": made.described}, of(models.Classifier), 0.3)
    yield "options_of", Call(models.options_of, {"name": "dense"}, of(dict))
    yield "suits", Call(models.suits, {"name": "dense", "kind": "features"}, of(bool))
    yield "sees_pixels", Call(models.sees_pixels, {"name": "cnn"}, of(bool))
    yield "check_model", Call(models.check_model, {"name": "cnn"}, lambda value: value is None)
    yield "models_for", Call(models.models_for, {"kind": "images"}, of(str))


def _of_audit() -> Iterator[tuple[str, Call]]:
    scored = {"scores": np.arange(8.0), "members": np.arange(8) > 3}
    bound = {**scored, "delta": 1e-5, "significance": 0.05, "thresholds": audit.Bonferroni(4)}
    yield "epsilon_one_run", Call(audit.epsilon_one_run, bound, is_finite)
    yield "epsilon_one_run_f_dp", Call(audit.epsilon_one_run_f_dp, bound, is_finite)
    normal = {"scores": np.sin(np.arange(60.0)), "members": np.arange(60) % 2 > 0, "delta": 1e-5, "significance": 0.05}
    yield "epsilon_one_run_gaussian", Call(audit.epsilon_one_run_gaussian, normal, is_finite)
    counts = {"canaries": 9, "guesses": 8, "correct": 7, "delta": 1e-5}
    yield "epsilon_one_run_from_counts", Call(audit.epsilon_one_run_from_counts, counts, is_finite)
    yield "one_run_p_value", Call(audit.one_run_p_value, {**counts, "epsilon": 1.0}, is_finite)
    rates = {
        "true_positives": 7,
        "positives": 8,
        "false_positives": 1,
        "negatives": 9,
        "delta": 1e-5,
        "significance": 0.1,
    }
    yield "epsilon_clopper_pearson", Call(audit.epsilon_clopper_pearson, rates, is_finite)
    yield "attack_auroc", Call(audit.attack_auroc, scored, is_finite)
    yield "tpr_at_fpr", Call(audit.tpr_at_fpr, {**scored, "fpr": 0.5}, is_finite)
    secret = {"loss": 0.5, "candidates": np.arange(1.0, 20.0)}
    yield "exposure_by_rank", Call(audit.exposure_by_rank, secret, is_finite)
    yield "exposure_by_extrapolation", Call(audit.exposure_by_extrapolation, secret, is_finite, 0.3)
    claim = {**scored, "delta": 1e-5, "claimed_epsilon": 1.0, "significance": 0.1}
    yield "report", Call(audit.report, claim, of(audit.Report))
    yield "Report.in_words", Call(audit.report(**claim).in_words, {"attack": "By loss."}, of(str))
    said = {"logits": np.arange(12.0).reshape(4, 3), "labels": np.array([0, 1, 2, 0])}
    for function in (audit.loss_scores, audit.modified_entropy_scores, audit.confidence):
        yield function.__name__, Call(function, said, of(np.ndarray))
    yield "entropy_scores", Call(audit.entropy_scores, {"logits": said["logits"]}, of(np.ndarray))
    asked = {"predict": predicted, "inputs": said["logits"], "labels": said["labels"]}
    yield "scores_of", Call(audit.scores_of, {**asked, "attack": "loss", "rows": 3}, of(np.ndarray))
    members = np.array([[True, False], [False, True], [True, False], [False, True]])
    lira = {"target": np.arange(2.0), "shadows": np.arange(8.0).reshape(4, 2) ** 2, "members": members}
    yield "lira_scores", Call(audit.lira_scores, {**lira, "offline": False, "fix_variance": True}, of(np.ndarray))
    course = {"optimizer": optax.sgd(0.1), "epochs": 1, "batch_size": 2, "num_shadows": 4, "at_once": 2}
    records = (np.ones((8, 3), np.float32), np.zeros((8, 2), np.float32))
    trained = {"loss_fn": record_loss, "init_fn": initial, "data": records, "key": key()}
    training = {**course, **trained, "candidates": np.arange(6)}
    yield "train_shadows", Call(audit.train_shadows, training, of(audit.Shadows), 0.3)
    shadows = audit.train_shadows(**training)
    asked = {"logits_fn": logits, "inputs": np.ones((4, 3), np.float32)}
    yield "Shadows.logits", Call(shadows.logits, asked, array(finite=False), 0.3)
    crowd = jaxdp.DPSGD(**{**RUN, "num_examples": 30})
    among = {"run": crowd, "loss_fn": loss, "optimizer": optax.sgd(0.1), "params": PARAMS, "data": BATCH, "key": key()}
    yield "gradient_canaries", Call(audit.gradient_canaries, among, of(audit.GradientCanaries), 0.3)
    yield "Bonferroni", Call(audit.Bonferroni, {"number": 3}, of(audit.Bonferroni))
    yield "Split", Call(audit.Split, {"fraction": 0.5, "seed": 0}, of(audit.Split))
    yield "Corners", Call(audit.Corners, {}, of(audit.Corners))


def _of_data() -> Iterator[tuple[str, Call]]:
    yield "hold_back", Call(data.hold_back, {"data": DATASET, "size": 2}, of(data.Dataset))
    yield (
        "fingerprint",
        Call(
            lambda first, second: data.fingerprint(first, second, secret=b"secret"),
            {"first": IMAGES, "second": LABELS},
            of(str),
        ),
    )
    yield "same_bounds", Call(data.same_bounds, {"lower": -1.0, "upper": 1.0, "columns": 3}, of(data.Bounds))
    rows = np.linspace(-9, 9, 4000).reshape(-1, 2)
    guessed = {"values": rows, "noise_multiplier": 1.0, "key": key()}
    yield "estimated_bounds", Call(data.estimated_bounds, guessed, of(tuple), 0.5)
    bounds = lambda lower, upper, values: data.Bounds(lower, upper).scaled(values)
    ends = {"lower": np.zeros(2), "upper": np.ones(2), "values": rows[:5]}
    yield "Bounds.scaled", Call(bounds, ends, array(np.float32, finite=False))
    owned = {
        "records": np.arange(5.0),
        "users": np.array(list("abaab")),
        "records_per_user": 2,
        "rng": np.random.default_rng(0),
    }
    yield "group_by_user", Call(data.group_by_user, owned, of(tuple))
    yield "loss_of_user", Call(data.loss_of_user, {"loss_fn": loss}, lambda value: callable(value))
    yield "load", Call(data.load, {"name": "nowhere", "data_dir": pathlib.Path("nowhere")}, lambda _: False)
    yield (
        "load_labelled",
        Call(data.load_labelled, {"name": "nowhere", "data_dir": pathlib.Path("nowhere")}, lambda _: False),
    )
    yield "Classes", Call(data.Classes, {"count": 3}, of(data.Classes))
    yield "Targets", Call(data.Targets, {"count": 3}, of(data.Targets))
    yield "Numbers", Call(data.Numbers, {"count": 3, "lower": 0.0, "upper": 9.0}, of(data.Numbers))
    yield "load_tfds", Call(data.load_tfds, {"name": "nowhere", "data_dir": pathlib.Path("nowhere")}, lambda _: False)
    yield "load_mnist", Call(data.load_mnist, {"directory": pathlib.Path("nowhere")}, of(data.Dataset), 0.2)
    yield (
        "read_columns",
        Call(
            with_file(data.read_columns),
            {"text": CSV, "chosen": ["a"], "categories": {"a": ["1", "3", "5"]}},
            of(data.Columns),
        ),
    )
    yield (
        "read_bounds",
        Call(with_file(data.read_bounds), {"text": "name,lower,upper\na,0,1\n", "names": ("a",)}, of(data.Bounds)),
    )
    yield "read_targets", Call(with_file(data.read_targets), {"text": "id,t\nx,1\ny,0\n", "ids": ("x", "y")}, of(tuple))
    text = {"text": "id,t\nx,1\ny,0\n", "ids": ("x", "y")}
    yield "read_classes", Call(with_file(data.read_classes), {**text, "classes": ("0", "1")}, of(tuple))
    yield "read_numbers", Call(with_file(data.read_numbers), text, of(tuple))
    yield "declared_classes", Call(data.declared_classes, {"declared": "a,b"}, of(tuple))
    yield "chosen_columns", Call(with_file(data.chosen_columns), {"text": CSV, "listed": None}, of(tuple))
    yield "declared_categories", Call(data.declared_categories, {"declared": ["a=1,2"], "columns": ["a"]}, of(dict))
    like = {"rows": 5, "features": 8, "targets": 2, "test_rows": 2, "seed": 0}
    yield "write_lookalike", Call(lookalike, like, of(type(None)), 0.5)
