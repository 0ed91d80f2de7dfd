"""Users as the unit: who a record belongs to decides sampling and clipping."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp.data import group_by_user, loss_of_user

USERS = np.array(["c", "a", "b", "a", "a", "c", "a"])
RECORDS = np.arange(7.0, dtype=np.float32)[:, None] * np.ones(2, np.float32)


def test_a_row_holds_one_users_records_and_never_more_than_allowed() -> None:
    grouped, mask = group_by_user(RECORDS, USERS, records_per_user=3, rng=np.random.default_rng(0))
    assert grouped.shape == (3, 3, 2)
    assert mask.sum(1).tolist() == [3, 1, 2]
    for user, rows, used in zip("abc", grouped, mask, strict=True):
        owned = np.flatnonzero(user == USERS)
        kept = rows[used][:, 0]
        assert set(kept) <= set(owned)
        assert len(set(kept)) == min(3, len(owned))
        assert set(rows[~used][:, 0]) <= {rows[0, 0]}


def test_which_records_are_kept_is_random() -> None:
    kept = {
        tuple(sorted(group_by_user(RECORDS, USERS, records_per_user=2, rng=np.random.default_rng(seed))[0][0, :, 0]))
        for seed in range(50)
    }
    assert len(kept) == 6  # all pairs of user a's four records


@pytest.mark.slow
def test_a_users_gradient_is_the_mean_over_their_records_clipped_as_one() -> None:
    grouped, mask = group_by_user(RECORDS, USERS, records_per_user=4, rng=np.random.default_rng(0))
    loss = lambda w, x: jnp.vdot(w, x)
    run = jaxdp.DPSGD(
        num_examples=3,
        expected_batch_size=3,
        steps=1,
        clip_norm=2.0,
        noise_multiplier=0.0,
        unit="user",
        records_per_user=4,
    )
    out = run.clipped_grad(loss_of_user(loss))(
        jnp.zeros(2), (jnp.asarray(grouped), jnp.asarray(mask)), mask=jnp.ones(len(grouped), bool)
    )
    means = np.array([RECORDS[user == USERS].mean(0) for user in "abc"])
    lengths = np.linalg.norm(means, axis=1)
    np.testing.assert_allclose(out.norms, lengths, rtol=1e-5)
    np.testing.assert_allclose(out.grads, (means * np.minimum(1, 2.0 / lengths)[:, None]).sum(0), rtol=1e-5)


def test_a_run_over_users_trains() -> None:
    grouped, mask = group_by_user(RECORDS, USERS, records_per_user=2, rng=np.random.default_rng(0))
    run = jaxdp.DPSGD(
        num_examples=3,
        expected_batch_size=2,
        steps=2,
        clip_norm=1.0,
        noise_multiplier=1.0,
        unit="user",
        records_per_user=2,
    )
    step = run.make_step(loss_of_user(lambda w, x: jnp.sum((w - x) ** 2)), optax.sgd(0.1), self_check=False)
    state = step.init(jnp.zeros(2), jax.random.key(0))
    state, _ = step(state, (jnp.asarray(grouped), jnp.asarray(mask)))
    assert np.isfinite(state.params).all()
    for wrong in (
        jnp.ones((3, 2)),
        (jnp.asarray(grouped), jnp.ones(3, bool)),
        (jnp.asarray(grouped), jnp.ones((3, 3), bool)),
        (jnp.asarray(mask), jnp.asarray(grouped)),
        (jnp.asarray(grouped), jnp.ones((3, 2))),
    ):
        with pytest.raises(jaxdp.UsageError, match=r"a record would be taken for a user.*group_by_user.*loss_of_user"):
            step(state, wrong)


@pytest.mark.slow
def test_each_record_of_a_user_gets_a_key_of_its_own() -> None:
    grouped, mask = group_by_user(RECORDS, USERS, records_per_user=4, rng=np.random.default_rng(0))
    users = jnp.asarray(grouped), jnp.asarray(mask)
    mean_loss = loss_of_user(lambda w, x, shift, *, rng: jnp.sum(w) * (jax.random.uniform(rng) + shift))
    draws = jax.vmap(jax.random.uniform)(jax.random.split(jax.random.key(3), 4))
    for records in (1, 2, 4):
        user = jax.tree.map(lambda array: array[0], users)[0], jnp.arange(4) < records
        np.testing.assert_allclose(
            mean_loss(jnp.ones(1), user, 2.0, rng=jax.random.key(3)), draws[:records].mean() + 2.0, rtol=1e-6
        )
    run = jaxdp.DPSGD(
        num_examples=3,
        expected_batch_size=2,
        steps=1,
        clip_norm=1.0,
        noise_multiplier=1.0,
        unit="user",
        records_per_user=4,
    )
    step = run.make_step(
        loss_of_user(lambda w, x, *, rng: jnp.sum((w - x) ** 2 * jax.random.bernoulli(rng, 0.5, x.shape))),
        optax.sgd(0.1),
    )
    state, _ = step(step.init(jnp.zeros(2), jax.random.key(0)), users)
    assert np.isfinite(state.params).all()


def test_records_and_users_of_different_numbers_are_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="disagree"):
        group_by_user(RECORDS[:3], USERS, records_per_user=2, rng=np.random.default_rng(0))


def test_who_joins_changes_nobody_elses_row() -> None:
    """Else adding a user would change many rows, and the guarantee would not be one user's."""
    users = np.repeat(np.arange(30), 10)
    values = np.arange(300.0)
    joined_users, joined_values = np.append([99], users), np.append([-1.0], values)
    before, _ = group_by_user(values, users, records_per_user=3, rng=np.random.default_rng(0))
    after, _ = group_by_user(joined_values, joined_users, records_per_user=3, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(before, after[:-1])


@pytest.mark.parametrize("joins", [500, 2.5, -1, "u500", b"500"])
def test_who_joins_changes_no_choice_by_the_type_of_their_name(joins: Any) -> None:
    """NumPy finds one type for all names: beside "u500" 0 is "0", beside 2.5 it is 0.0."""
    users, values = list(range(30)) * 10, np.arange(300.0)
    if isinstance(joins, bytes):
        users = [str(user).encode() for user in users]
    chosen = []
    for more in ([], [joins]):
        grouped, mask = group_by_user(
            np.append(values, [-1.0] * len(more)),
            np.asarray(users + more),
            records_per_user=3,
            rng=np.random.default_rng(0),
        )
        chosen.append({frozenset(row[own].tolist()) for row, own in zip(grouped, mask, strict=True)})
    assert chosen[1] - chosen[0] == {frozenset([-1.0])}


def test_whole_floats_that_become_text_are_the_users_that_they_were() -> None:
    users, values = [float(user) for user in range(30)] * 10, np.arange(300.0)
    grouped = lambda users, values: group_by_user(values, users, records_per_user=3, rng=np.random.default_rng(0))[0]
    alone, beside = grouped(np.asarray(users), values), grouped(np.asarray([*users, "z"]), np.append(values, -1.0))
    assert {frozenset(row) for row in beside.tolist()} - {frozenset(row) for row in alone.tolist()} == {
        frozenset([-1.0])
    }


def test_names_that_lose_digits_are_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="as float64, in which numbers so large lose digits.*in an integer type"):
        group_by_user(RECORDS, np.asarray([2**63, *range(6)]), records_per_user=2, rng=np.random.default_rng(0))


@pytest.mark.parametrize("absent", [np.nan, "", "nan", "None", "NaT", "<NA>", None])
def test_records_of_nobody_are_not_one_users(absent: Any) -> None:
    named = np.array([absent, *"abcdef"], object).astype(str)  # as pandas' missing values become text
    with pytest.raises(jaxdp.UsageError, match=r"users hold .*text for what is missing: .*leave out records of nobody"):
        group_by_user(RECORDS, named, records_per_user=2, rng=np.random.default_rng(0))


def test_a_loop_of_ones_own_takes_no_record_for_a_user() -> None:
    run = jaxdp.DPSGD(
        num_examples=3,
        expected_batch_size=2,
        steps=3,
        clip_norm=1.0,
        noise_multiplier=1.0,
        unit="user",
        records_per_user=2,
    )
    grouped = group_by_user(RECORDS, USERS, records_per_user=2, rng=np.random.default_rng(0))
    mask = np.ones(len(grouped[1]), bool)
    loss = lambda params, record: jnp.sum(params * record)
    run.clipped_grad(loss_of_user(loss))(jnp.float32(1), grouped, mask=mask)
    for batch in (grouped[0], (grouped[0], mask), (grouped[0], grouped[1][:, :1]), (grouped[0], grouped[1] * 1)):
        with pytest.raises(jaxdp.UsageError, match=r"a record would be taken for a user.*group_by_user.*loss_of_user"):
            run.clipped_grad(loss)(jnp.float32(1), batch, mask=mask)


@pytest.mark.parametrize(
    "users", [np.zeros(6), np.array([0.0, np.nan, 1, 1, 1, 1, 1]), np.array([0j, np.nan, 1, 1, 1, 1, 1])]
)
def test_users_that_cannot_be_told_apart_are_refused(users: np.ndarray) -> None:
    with pytest.raises(jaxdp.UsageError, match="users"):
        group_by_user(RECORDS, users, records_per_user=2, rng=np.random.default_rng(0))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("users", "found"),
    [
        ([1.0, 1.0, "1", "x"], r"hold '1' and '1.0', which may be one user"),
        (["1", "1 ", "x", "y"], r"hold '1' and '1 '"),
        (["k\0", "k", "x", "y"], r"hold 'k\\x00', of which NumPy drops the end"),
        ([b"k\0", b"k", b"x", b"y"], r"hold b'k\\x00'"),
        (["Ren\u00e9", "Rene\u0301", "x", "y"], r"which may be one user"),
        (["1.0", "1.00", "x", "y"], r"hold '1.0' and '1.00'"),
        ([" ", " ", "x", "y"], r"hold '', text for what is missing"),
        (["NaN ", "x", "y", "y"], r"hold 'nan', text for what is missing"),
    ],
)
def test_a_user_whose_name_is_written_in_two_ways_is_not_two_and_two_are_not_one(users: list[Any], found: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=found):
        group_by_user(np.arange(4.0), users, records_per_user=2, rng=np.random.default_rng(0))


def test_names_need_not_be_valid_unicode() -> None:
    rng = np.random.default_rng(0)
    records, _ = group_by_user(np.arange(3.0), np.array(["a\ud800", "b", "c"]), records_per_user=1, rng=rng)
    assert sorted(records[:, 0].tolist()) == [0, 1, 2]
