"""The check before the first step: honest losses pass it, and wrong rules are refused by the parameter's name."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from models_to_clip import MODELS
from of_several import together

import jaxdp
from jaxdp._platform import GPU
from jaxdp.clipping import Flat, Normalised, PerGroup, Quantile, _inputs, takes_rng
from jaxdp.clipping.ghost import _sum, rules
from jaxdp.clipping.ghost._rounded import norm_by_gram_matrices, norm_of_formed, norm_of_single_row
from jaxdp.clipping.ghost.rules import Dense, OneHot, OuterProducts, Rule
from jaxdp.data import Classes
from jaxdp.dpsgd import _compiling, _self_check, _step
from jaxdp.jaxprs._jaxpr import DOT_GENERAL, clamps_indices
from jaxdp.models import classifier


def a_step(
    loss: Callable[..., Any],
    num_examples: int,
    *,
    self_check: bool = True,
    has_aux: bool = False,
    precision: str = "auto",
    **how: Any,
) -> Any:
    """A step of which the check alone is made."""
    usual = {"expected_batch_size": 2, "steps": 9, "clip_norm": 1.0, "noise_multiplier": 1.0}
    run = jaxdp.DPSGD(num_examples=num_examples, **{**usual, **how})
    step = run.make_step(loss, optax.sgd(0.1), has_aux=has_aux, self_check=self_check, precision=precision)
    metrics = jaxdp.StepMetrics(jnp.zeros(1, jnp.int32), jnp.zeros(1), jnp.zeros(1), None)
    nothing = lambda carry, *rest, num_steps, spread: (carry, metrics)
    step._compiled = jax.jit(nothing, static_argnames=("num_steps", "spread"))
    return step


def first_step(loss: Callable[..., Any], params: Any, data: Any, *shared: Any, **how: Any) -> Any:
    step = a_step(loss, len(jax.tree.leaves(data)[0]), **how)
    return step(step.init(params, jax.random.key(0)), data, *shared)


def looked_up(params: Any, ids: Any) -> Any:
    return 1e3 * jnp.sum(params["scale"] * jnp.take(params["table"], ids, axis=0))


def tables(rows: int) -> Any:
    return {"scale": jnp.ones(()), "table": jnp.zeros((rows, 4))}


def rule_of(name: str) -> Rule:
    return next(rule for rule in rules.RULES if rule.name == name)


def with_changes(patch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    patch.setattr(rules, "RULES", [replace(rule, **changes) if rule.name == name else rule for rule in rules.RULES])


def index_compared_in_its_own_type(patch: pytest.MonkeyPatch) -> None:
    def outer_products(eqn: Any, operand: int, how: Any, others: Any, cotangent: Any) -> Any:
        numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
        index, size = others[0].reshape(-1), table[0]
        narrow = jnp.asarray(np.array(size).astype(index.dtype))
        inside = jnp.ones(index.shape, bool) if clamps_indices(eqn) else (index >= 0) & (index < narrow)
        index = jnp.clip(index, 0, narrow - 1) if clamps_indices(eqn) else index
        assert numbers.collapsed_slice_dims == (0,)
        entry = jnp.where(inside, index.astype(jnp.int32), -1)[None]
        return OuterProducts(OneHot(entry), Dense(cotangent.reshape(1, how.rows, how.right)))

    covers = lambda eqn, operand: eqn.primitive.name == "gather" and operand == 0
    with_changes(patch, "lookup", outer_products=outer_products, covers=covers)


def products_of_any_type(patch: pytest.MonkeyPatch) -> None:
    with_changes(patch, "dot_general", covers=lambda eqn, operand: eqn.primitive is DOT_GENERAL)
    patch.setattr(Rule, "takes", lambda self, eqn, operand: True)


def rows_scaled(patch: pytest.MonkeyPatch) -> None:
    outer_products = rule_of("dot_general").outer_products

    def scaled(eqn: Any, operand: int, how: Any, others: Any, cotangent: Any) -> Any:
        left, right = outer_products(eqn, operand, how, others, cotangent)
        return OuterProducts(Dense(0.5 * left.rows) if how.right > 1 else left, right)

    with_changes(patch, "dot_general", outer_products=scaled)


def not_clipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flat, "factors", lambda self, upper, clip_norm: jnp.ones_like(upper))


spectrum = lambda p, x: jnp.sum(jnp.abs(jnp.fft.rfft(x) @ p["mix"].astype(jnp.complex64)) ** 2) + p["b"]
dense = lambda p, x: jnp.vdot(p["v"], jnp.tanh(x.reshape(3, 8) @ p["w"]).sum(0))
weights = {"v": jnp.ones(5), "w": jnp.ones((8, 5)) * 0.1}


@pytest.mark.slow_but("complex")
@pytest.mark.parametrize(
    ("fault", "loss", "params", "data", "message"),
    [
        (
            index_compared_in_its_own_type,
            looked_up,
            tables(256),
            np.zeros((6, 3), np.uint8),
            r"params\['table'\].*lookup",
        ),
        (
            index_compared_in_its_own_type,
            looked_up,
            tables(128),
            np.zeros((6, 3), np.int8),
            r"params\['table'\].*lookup",
        ),
        (
            products_of_any_type,
            spectrum,
            {"b": jnp.ones(()), "mix": jnp.ones((5, 3))},
            np.ones((6, 8)),
            r"params\['mix'\]",
        ),
        (
            rows_scaled,
            dense,
            weights,
            np.ones((6, 24), np.float32),
            r"gradient of params\['w'\].*contribute.*dot_general",
        ),
        (not_clipped, dense, weights, np.ones((6, 24), np.float32), "contribute"),
    ],
    ids=["uint8", "int8", "complex", "scaled", "not clipped"],
)
@pytest.mark.filterwarnings("ignore:Casting from complex")  # which is what that fault does
def test_a_wrong_rule_is_refused_by_the_parameters_name_and_how_it_is_dealt_with(
    fault: Callable[..., None], loss: Any, params: Any, data: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(jaxdp.UsageError, match=r"(?s)self_check: on random examples.*" + message):
        first_step(loss, params, data)
    first_step(loss, params, data, self_check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [Normalised(), Flat(), PerGroup(), Quantile(count_noise=3.0)],
)
def test_honest_rules_pass_under_every_clip_rule_at_an_initialisation_by_zeros(rule: Any) -> None:
    first_step(dense, jax.tree.map(jnp.zeros_like, weights), np.ones((6, 24), np.float32), rule=rule, clip_norm=0.1)


def norms_halved(patch: pytest.MonkeyPatch) -> None:
    """Of what is rounded, and of nothing else."""
    for norm in (norm_of_single_row, norm_by_gram_matrices, norm_of_formed):
        halved = lambda *args, norm=norm: jax.tree.map(lambda part: part / 2, norm(*args))
        patch.setattr(_sum, norm.__name__, halved)


@pytest.mark.slow
def test_the_program_that_rounds_is_checked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.ones((6, 24), np.float32)
    first_step(dense, weights, data, precision="bfloat16")
    norms_halved(monkeypatch)
    first_step(dense, weights, data, precision="float32")
    with pytest.raises(jaxdp.UsageError, match=r"(?s)self_check: on random examples.*contribute"):
        first_step(dense, weights, data, precision="bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS)[::2])
def test_no_honest_model_is_refused_where_factors_are_rounded(name: str) -> None:
    loss, params, batch = MODELS[name]()
    first_step(loss, params, batch, precision="bfloat16")


HALVES = ("bfloat16", "float16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in sorted(MODELS)]
    + [(name, HALVES[i % 2]) for i, name in enumerate(sorted(MODELS)[::3])],
)
def test_no_honest_model_is_refused(name: str, dtype: str) -> None:
    loss, params, batch = MODELS[name]()
    cast = lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    params, batch = jax.tree.map(cast, (params, batch))
    first_step(loss, params, batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_the_models_that_commands_train_pass(name: str) -> None:
    model = classifier(name, Classes(10), input_shape=(28, 28, 1), input_dtype=np.uint8, activation="tanh")
    data = np.zeros((6, 28, 28, 1), np.uint8), np.zeros(6, np.uint8)
    assert takes_rng(model.loss) == (name == "mlp")
    first_step(model.loss, model.init(jax.random.key(0)), data, has_aux=True)


def seen_by_the_check(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    batches: list[Any] = []
    monkeypatch.setattr(_self_check._Check, "compare", lambda self, params, batch, oracle: batches.append(batch))
    return batches


@pytest.mark.slow
def test_random_integers_are_small_and_large_but_for_those_at_which_the_loss_is_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loss(p: Any, example: Any) -> Any:
        text, label = example
        logits = p["out"] @ jnp.sum(jnp.take(p["table"], text, axis=0), axis=0)
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    batches = seen_by_the_check(monkeypatch)
    params = {"table": jnp.ones((256, 2)), "out": jnp.ones((10, 2))}
    first_step(loss, params, (np.zeros((6, 40), np.uint8), np.zeros(6, np.uint8)))
    texts = np.concatenate([np.ravel(text) for text, _ in batches])
    labels = np.concatenate([label for _, label in batches])
    assert (texts.dtype, labels.dtype) == (np.uint8, np.uint8)
    assert texts.min() == 0
    assert texts.max() == 255
    assert (texts < 4).sum() > 20
    assert 2 <= labels.max() < 10


@pytest.mark.parametrize("dtype", ["bool", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16"])
def test_random_values_have_the_datas_type_and_reach_its_ends(dtype: str) -> None:
    like = jnp.zeros((5, 300), dtype)
    rows = _self_check._random(np.random.default_rng(0), _self_check._FLOATS[0], like, None)
    assert (rows.dtype, rows.shape) == (dtype, (2, 300))
    if jnp.issubdtype(dtype, jnp.integer):
        values = np.asarray(rows).astype(np.int64)
        assert values.max() == jnp.iinfo(dtype).max
        assert (np.abs(values) <= 1).any()
        assert (values < 0).any() == (jnp.iinfo(dtype).min < 0)


@pytest.mark.slow
def test_the_step_is_compiled_once_while_it_is_checked_but_on_a_cpu(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_compiling, "default_platform", lambda: GPU)
    data = jnp.ones((4, 3))
    run = jaxdp.DPSGD(num_examples=4, expected_batch_size=2, steps=9, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(lambda p, x: jnp.sum(p * x), optax.sgd(0.1))
    state = step.init(jnp.ones(3), jax.random.key(0))
    with caplog.at_level("DEBUG", logger="jax"):
        for _ in range(2):
            state, _ = step(state, data)
    compiled = [line for line in caplog.records if "Finished XLA compilation of jit(_scan)" in line.getMessage()]
    assert len(compiled) == 1
    assert compiled[0].threadName != "MainThread"


@pytest.mark.parametrize("beside", [False, True])
def test_without_a_thread_to_be_had_it_is_compiled_at_once(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiling, "is_beside", lambda: beside)
    lowered = jax.jit(lambda x: 2 * x).lower(1.0)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        begun = _compiling.begin_to_compile(lowered)
    assert begun.done()
    assert begun.result()(3.0) == 6
    assert _compiling.begin_to_compile(lowered).result()(4.0) == 8


def test_a_step_that_cannot_be_compiled_fails_as_it_would_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(lowered: Any) -> Any:
        begun = Future[Any]()
        begun.set_exception(RuntimeError("the compiler's"))
        return begun

    monkeypatch.setattr(_step, "is_beside", lambda: True)
    monkeypatch.setattr(_step, "begin_to_compile", failing)
    state, _ = first_step(lambda p, x: jnp.sum(p * x), jnp.ones(3), jnp.ones((4, 3)))
    assert state.step == 1  # it was compiled again by the call, which has errors of its own


def test_the_check_is_made_once_for_each_kind_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(_step, "self_check", lambda *arguments: checked.append(arguments))
    step, records = a_step(lambda w, x: jnp.sum(w * x), 6), np.zeros((6, 3), np.float32)
    counts = []
    for data in (records, records + 1, records.astype(np.int32), records):
        for key in (1, 2):  # another state is no other program
            step(step.init(jnp.ones(3), jax.random.key(key)), data)
            counts.append(len(checked))
    assert counts == [1, 1, 1, 1, 2, 2, 2, 2]


@jax.custom_batching.custom_vmap
def centred(x: Any) -> Any:
    return x


@centred.def_vmap
def _(axis_size: int, in_batched: Any, x: Any) -> Any:
    return x * jnp.sign(x.sum()), True


@pytest.mark.parametrize(("differs", "ok"), [(lambda p: p[0] == 1, True), (lambda p: p[0] > 0, False)])
def test_what_differs_at_the_parameters_alone_is_a_jump_of_the_gradient(
    differs: Callable[..., Any], ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = _self_check._Check._apart

    def apart(self: Any, params: Any, *rest: Any) -> Any:
        return (np.array([0]), "is elsewhere") if differs(params) else honest(self, params, *rest)

    monkeypatch.setattr(_self_check._Check, "_apart", apart)
    first = lambda: first_step(lambda p, x: jnp.tanh(p @ x), jnp.ones(3), jnp.ones((20, 3)))
    if ok:
        first()
        return
    with pytest.raises(jaxdp.UsageError, match="is elsewhere"):
        first()


@pytest.mark.slow
def test_what_one_example_contributes_beyond_the_sensitivity_is_no_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    not_clipped(monkeypatch)
    monkeypatch.setattr(_self_check._Check, "_apart", lambda *arguments: None)
    with pytest.raises(jaxdp.UsageError, match="contribute"):
        first_step(dense, weights, np.ones((6, 24), np.float32))


@pytest.mark.parametrize("self_check", [True, False])
def test_examples_that_see_each_other_by_a_batching_rule_are_refused(self_check: bool) -> None:
    data = jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)), jnp.float32)
    loss = lambda p, x: jnp.tanh(p @ centred(x))
    run = jaxdp.DPSGD(num_examples=20, expected_batch_size=2, steps=9, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(loss, optax.sgd(0.1), self_check=self_check)
    with pytest.raises(jaxdp.UsageError, match="batching rule of its own"):
        step(step.init(jnp.ones(3), jax.random.key(0)), data)
    for method in ("auto", "vmap"):
        with pytest.raises(jaxdp.UsageError, match="batching rule of its own"):
            jaxdp.clipped_grad(loss, clip_norm=1.0, method=method)(jnp.ones(3), data)


@pytest.mark.slow_but("float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_example_that_changes_anothers_gradient_is_found_however_coarse_the_arithmetic(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_inputs, "refuse_what_sees_others", lambda *arguments: None)
    monkeypatch.setattr(_self_check._Check, "_apart", lambda *arguments: None)

    def loss(p: Any, x: Any) -> Any:
        hidden = x.astype(dtype) @ p["a"].astype(dtype)
        seen = jax.lax.stop_gradient(hidden)
        hidden = jax.nn.relu(hidden - 0.01 * (seen - centred(seen)))
        return jnp.tanh(jnp.sum(hidden.astype(jnp.float32) * p["b"]))

    rng = np.random.default_rng(0)
    params = {"a": jnp.asarray(rng.normal(size=(16, 64)), jnp.float32), "b": jnp.full(64, 0.1)}
    with pytest.raises(jaxdp.UsageError, match="changed by another example of the batch"):
        first_step(loss, params, rng.normal(size=(20, 16)).astype(np.float32))


@pytest.mark.parametrize("self_check", [True, False])
def test_a_callback_that_sees_several_examples_is_refused(self_check: bool) -> None:
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    host = lambda x: np.asarray(x) - np.mean(x)
    loss = lambda p, x: p @ jax.pure_callback(host, shape, x, vmap_method="broadcast_all")
    in_a_rule = jax.custom_vjp(lambda p, x: p @ x)
    in_a_rule.defvjp(
        lambda p, x: (p @ x, (p, x)),
        lambda kept, g: (g * jax.pure_callback(host, shape, kept[1], vmap_method="broadcast_all"), g * kept[0]),
    )
    for each in (loss, in_a_rule):
        run = jaxdp.DPSGD(num_examples=20, expected_batch_size=2, steps=9, clip_norm=1.0, noise_multiplier=1.0)
        step = run.make_step(each, optax.sgd(0.1), self_check=self_check)
        with pytest.raises(jaxdp.UsageError, match="the loss calls back into Python"):
            step(step.init(jnp.ones(3), jax.random.key(0)), jnp.ones((20, 3)))


@pytest.mark.slow
def test_what_leaves_the_range_of_norms_is_told_apart_from_a_wrong_rule() -> None:
    loss = lambda w, x: 1e-25 * jnp.sum((x * 1e25) @ w)
    run = jaxdp.DPSGD(num_examples=6, expected_batch_size=2, steps=9, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(loss, optax.sgd(0.1), precision="bfloat16")
    with pytest.raises(
        jaxdp.UsageError, match=r"is zero, and its norm .*contribute nothing.*precision=\"float32\""
    ) as caught:
        step(step.init(jnp.ones((3, 2)), jax.random.key(0)), jnp.ones((6, 4, 3)))
    assert "wrong" not in str(caught.value)
    first_step(loss, jnp.ones((3, 2)), np.ones((6, 4, 3), np.float32))


def test_what_cannot_be_checked_is_refused_and_the_switch_is_named() -> None:
    loss = lambda w, x: jnp.sum(jnp.log(-1 - w * jnp.abs(x)))
    with pytest.raises(jaxdp.UsageError, match="no finite gradient on any random example.*self_check=False"):
        first_step(loss, jnp.ones(3), np.ones((6, 3), np.float32))


@pytest.mark.slow
def test_a_loss_is_checked_with_keys_and_what_is_shared_and_never_on_the_data() -> None:
    def loss(p: Any, x: Any, mix: Any, *, rng: Any) -> Any:
        return jnp.sum(jnp.tanh(mix @ p["w"]) * x * jax.random.bernoulli(rng, 0.5, x.shape)) + p["b"]

    first_step(loss, {"b": jnp.ones(()), "w": jnp.ones((6, 3))}, np.full((6, 3), np.nan), jaxdp.Shared(jnp.eye(6)[:3]))


@pytest.mark.slow
def test_a_state_that_came_from_elsewhere_in_numpys_arrays_is_checked_as_any_other() -> None:
    run = jaxdp.DPSGD(num_examples=20, expected_batch_size=2, steps=9, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(lambda w, x: jnp.sum(jnp.tanh(x @ w)), optax.sgd(0.1))
    state = step.init(jnp.ones(3), jax.random.key(0))
    after, _ = step(state._replace(params=np.ones(3, np.float32)), np.ones((20, 3), np.float32))
    assert int(after.step) == 1


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_scalar_is_told_in_words_before_it_is_checked() -> None:
    run = jaxdp.DPSGD(num_examples=40, expected_batch_size=8, steps=6, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(lambda w, x: (x @ w)[None], optax.sgd(0.1))
    with pytest.raises(jaxdp.UsageError, match=r"must be a floating-point scalar; it has shape \(1,\)"):
        step(step.init(jnp.ones(3), jax.random.key(0)), jnp.ones((40, 3)))


DIVIDED = """
import jax, jax.numpy as jnp, numpy as np, optax, jaxdp
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
put = lambda leaf, *axes: jax.device_put(leaf, jax.NamedSharding(mesh, jax.P(*axes)))
data = np.ones((40, 8), np.float32), np.arange(40, dtype=np.int32) % 4
run = jaxdp.DPSGD(num_examples=40, expected_batch_size=8, steps=6, clip_norm=1.0, noise_multiplier=1.0)
step = run.make_step(lambda w, example: -jax.nn.log_softmax(example[0] @ w)[example[1]], optax.sgd(0.1))
step(step.init(put(jnp.ones((8, 4)), None, "b"), jax.random.key(7)), tuple(put(leaf, "a") for leaf in data))
print("made")
"""


@pytest.mark.slow
def test_classes_that_lie_on_several_devices_are_no_fault() -> None:
    """Beyond their end XLA reads zeros for a plain gradient, and the last class elsewhere: no label of the data's lies there."""
    (end,) = together([["-c", DIVIDED]], devices=4)
    assert end.out.splitlines()[-1:] == ["made"], end.err
