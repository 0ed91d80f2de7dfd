"""Tables from CSV files: what is read, what is refused, and that nothing is computed from the data in silence."""

import os
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp import data
from jaxdp.accounting import Ledger

FEATURES = "id,sex,age,dose\na,f,30,1.5\nb,m,40,\nc,f,50,2.5\n"
TARGETS = "id,ill\nc,1\na,0\nb,0\n"
CATEGORIES = {"sex": ("f", "m")}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def encoding(**changes: Any) -> data.Encoding:
    given = {"columns": ("sex", "age", "dose"), "categories": CATEGORIES, "missing": "middle"}
    return data.Encoding(**{**given, "bounds": data.same_bounds(0.0, 40.0, 2), **changes})


def test_numbers_are_clamped_and_scaled_and_categories_coded(tmp_path: Path) -> None:
    ids, features = encoding().read(written(tmp_path / "f.csv", FEATURES))
    assert ids == ("a", "b", "c")
    np.testing.assert_allclose(features, [[1, 0, 0.5, -0.925], [0, 1, 1, 0], [1, 0, 1, -0.875]], rtol=1e-6)
    assert features.dtype == np.float32


@pytest.mark.parametrize("content", [b"\x93NUMPY", FEATURES.encode("utf-16"), "id,x\né,1\n".encode("latin-1")])
def test_a_file_that_is_not_text_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.csv").write_bytes(content)
    with pytest.raises(jaxdp.UsageError, match=r"f\.csv is not CSV in UTF-8"):
        data.read_columns(tmp_path / "f.csv")


def test_targets_are_brought_into_the_order_of_the_features(tmp_path: Path) -> None:
    targets, names = data.read_targets(written(tmp_path / "t.csv", TARGETS), ("a", "b", "c"))
    np.testing.assert_array_equal(targets, [[0], [0], [1]])
    assert names == ("ill",)


def test_classes_and_numbers_are_brought_into_that_order_too(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "id,kind,size,weight\nc,small,1.5,-1\na,big,2,7\nb,small,-3,8\n")
    places, names = data.read_classes(path, ("a", "b", "c"), ("small", "middle", "big"), ["kind"])
    np.testing.assert_array_equal(places, [2, 0, 0])
    assert names == ("kind",)
    numbers, names = data.read_numbers(path, ("a", "b", "c"), ["weight", "size"])
    np.testing.assert_array_equal(numbers, [[7, 2], [8, -3], [-1, 1.5]])
    assert names == ("weight", "size")


def test_an_encoding_survives_json(tmp_path: Path) -> None:
    import json

    path = written(tmp_path / "f.csv", FEATURES)
    again = data.Encoding.from_dict(json.loads(json.dumps(encoding().to_dict())))
    np.testing.assert_array_equal(again.read(path)[1], encoding().read(path)[1])


def test_columns_are_chosen_by_name_or_by_number(tmp_path: Path) -> None:
    path = written(tmp_path / "f.csv", FEATURES)
    assert data.chosen_columns(path, None) == ("sex", "age", "dose")
    assert data.chosen_columns(path, written(tmp_path / "c.txt", "2\nsex\n")) == ("dose", "sex")


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ("id\na\n", "fewer than two columns"),
        ("id,sex,sex\n", "names a column twice"),
        ("id,sex,age,dose\n", "no rows"),
        ("id,sex,age,dose\na,f,30,1\na,f,31,2\n", "id 'a' twice"),
        ("id,sex,age,dose\na,f,30,1\na ,f,31,2\n", "line 3: the id 'a ' has blanks around it"),
        ("id,sex,age,dose\na,f,30\n", "line 2: 3 cells where the first line has 4"),
        ("id,sex,age,dose\na,f,30,1\nb,x,30,1\n", "line 3, column sex: 'x' is not among those declared (f, m)"),
        (
            "id,sex,age,dose\na,f,30,1\nb,m ,30,1\n",
            "'m ' is not among those declared (f, m): take the blanks around it",
        ),
        ("id,sex,age,dose\na,f,30,1\nb,m,old,1\n", "line 3, column age: 'old' is not a finite number"),
        ("id,sex,age,dose\na,f,30,1e999\n", "line 2, column dose: '1e999' is not a finite number"),
        ("id,sex,age\na,f,30\n", "no column dose"),
    ],
)
def test_a_file_of_features_that_cannot_be_read_is_refused_by_place(tmp_path: Path, features: str, said: str) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        encoding().read(written(tmp_path / "f.csv", features))
    assert said in str(error.value)


def test_what_is_missing_is_refused_unless_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(jaxdp.UsageError, match="1 missing numbers, the first at id b, column dose"):
        encoding(missing="refuse").read(written(tmp_path / "f.csv", FEATURES))
    with pytest.raises(jaxdp.UsageError, match="can't be read"):
        encoding().read(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("id,ill\na,0\nb,0\nd,1\n", "1 ids of the features are missing there (c), and 1 are there alone (d)"),
        ("id,ill\na,0\nb,2\nc,1\n", "id b, column ill: 2 is not a binary target"),
        ("id,ill\na,0\nb,\nc,1\n", "id b, column ill: nan is not a binary target"),
        ("id,i,j,k,l\na,0,0,0,0\nb,0,0,0,0\nc,1,1,1,1\n", "4 targets and 3 rows"),
    ],
)
def test_targets_that_do_not_fit_are_refused(tmp_path: Path, targets: str, said: str) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        data.read_targets(written(tmp_path / "t.csv", targets), ("a", "b", "c"))
    assert said in str(error.value)


def test_a_quotation_mark_that_is_not_closed_takes_no_rows_with_it(tmp_path: Path) -> None:
    path = written(tmp_path / "f.csv", 'id,a\nx,1\n"y,2\nz,3\n"u,4\nv,5\n')
    with pytest.raises(jaxdp.UsageError, match="a quotation mark that begins a cell needs one at its end"):
        data.read_columns(path)


def test_bounds_between_which_float32_tells_few_values_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(jaxdp.UsageError, match="too close together for float32.* less a constant"):
        data.same_bounds(1_700_000_000, 1_700_000_100, 1)
    path = written(tmp_path / "b.csv", "name,lower,upper\na,0,1\nt,1700000000,1700000100\n")
    with pytest.raises(jaxdp.UsageError, match="t lies from 1700000000.* too close together"):
        data.read_bounds(path, ("a", "t"))


def test_numbers_beyond_float32_are_at_the_end_of_their_bounds_without_a_word(tmp_path: Path) -> None:
    read = data.read_columns(written(tmp_path / "f.csv", "id,a\nx,1e39\ny,-1e39\n"))
    np.testing.assert_array_equal(data.same_bounds(-1, 1, 1).scaled(read.values), [[1], [-1]])


def test_constant_columns_are_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "f.csv", "id,a,b,c\nx,1,2,\ny,1,3,\n")
    with pytest.raises(jaxdp.UsageError, match=r"2 columns hold one value alone \(a, c\)"):
        data.refuse_constant(data.read_columns(path), path)


@pytest.mark.parametrize(
    ("listed", "said"), [("age\nage", "twice"), ("7", "'7'"), ("height", "'height'"), ("", "nothing")]
)
def test_columns_that_are_not_there_are_refused(tmp_path: Path, listed: str, said: str) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        data.chosen_columns(written(tmp_path / "f.csv", FEATURES), written(tmp_path / "c.txt", listed))
    assert said in str(error.value)


def test_bounds_of_each_column_come_from_a_file(tmp_path: Path) -> None:
    bounds = data.read_bounds(written(tmp_path / "b.csv", "name,lower,upper\ndose,0,4\nage,0,100\n"), ("age", "dose"))
    np.testing.assert_array_equal(bounds.upper, [100, 4])
    for text, said in (
        ("name,lower,upper\nage,0,1\n", "no bounds for dose"),
        ("name,low\nage,1\n", "begins with 'name,low', without lower, upper: its first line must be name,lower,upper"),
        ("", "its first line must be name,lower,upper"),
        ("name,lower,upper\nage,0\n", "has a line without two numbers"),
        ("name,lower,upper\nage,0,much\n", "has a line without two numbers"),
        ("name,lower,upper\nage,2,1\ndose,0,1\n", "age lies from 2.0 to 1.0"),
    ):
        with pytest.raises(jaxdp.UsageError) as error:
            data.read_bounds(written(tmp_path / "b.csv", text), ("age", "dose"))
        assert said in str(error.value)
    with pytest.raises(jaxdp.UsageError, match="finite, the lower one first"):
        data.same_bounds(1.0, -1.0, 2)


def test_bounds_with_decimal_commas_or_a_column_twice_are_refused(tmp_path: Path) -> None:
    for text, said in (
        ("name,lower,upper\nage,0,5,100,5\ndose,0,4\n", "the line of age has more cells than the first line"),
        ("name,lower,upper\nage,0,100\nage,0,50\ndose,0,4\n", "names age twice"),
    ):
        with pytest.raises(jaxdp.UsageError, match=said):
            data.read_bounds(written(tmp_path / "b.csv", text), ("age", "dose"))


def test_estimated_bounds_hold_the_data_and_are_charged_for() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5000, 8)) * 2.0 ** np.arange(-3, 5)
    values[0] = 1e6  # one record's own value says nothing
    bounds, event = data.estimated_bounds(values, 5.0, jax.random.key(0))
    inside = (np.abs(values) <= bounds.upper).mean(axis=0)
    assert (inside > 0.97).all()
    assert (bounds.upper < 8 * values[1:].std(axis=0)).all()
    cost = Ledger().add(event, "bounds").epsilon(delta=1e-5).epsilon
    assert cost == pytest.approx(
        Ledger().add(jaxdp.accounting.gaussian_event(noise_multiplier=5.0), "").epsilon(delta=1e-5).epsilon
    )
    with pytest.raises(jaxdp.UsageError, match="too much to tell magnitudes"):
        data.estimated_bounds(values[:100], 5.0, jax.random.key(0))


def test_lookalike_files_have_the_competitions_form(tmp_path: Path) -> None:
    data.write_lookalike(tmp_path, rows=60, features=16, targets=5, test_rows=10)
    columns = data.chosen_columns(tmp_path / "train_features.csv", None)
    assert columns[:4] == ("cp_type", "cp_time", "cp_dose", "g-0")
    assert len(columns) == 19
    from jaxdp.commands.train._options import MOA_CATEGORIES

    categories = data.declared_categories(MOA_CATEGORIES, columns)
    raw = data.read_columns(tmp_path / "train_features.csv", columns, categories)
    assert raw.values.shape == (60, 16 + 2 + 3 + 2)
    targets, names = data.read_targets(tmp_path / "train_targets_scored.csv", raw.ids)
    assert targets.shape == (60, 5)
    assert names[0] == "target_0"
    with pytest.raises(jaxdp.UsageError, match="no more targets than rows"):
        data.write_lookalike(tmp_path, rows=3, targets=5)


def test_categories_are_declared_as_column_and_values() -> None:
    assert data.declared_categories(["sex=f,m", "other=a,b"], ["sex", "age"]) == {"sex": ("f", "m")}
    with pytest.raises(jaxdp.UsageError, match="column=value,value"):
        data.declared_categories(["sex"], ["sex"])
    with pytest.raises(jaxdp.UsageError, match="has an empty category: write a word"):
        data.declared_categories(["sex=f,m,"], ["sex"])
    with pytest.raises(jaxdp.UsageError, match="declares the column sex twice"):
        data.declared_categories(["sex=f,m", "sex=x,y"], ["sex"])


def test_bounds_are_estimated_on_the_host_alone() -> None:
    with pytest.raises(jaxdp.UsageError, match="key is traced by jax"):
        jax.eval_shape(lambda key: data.estimated_bounds(np.ones((900, 1)), 1.0, key)[0].lower, jax.random.key(0))


@pytest.mark.parametrize(
    ("first", "row", "names"),
    [
        ("id,a,b", "1,2,3", ("a", "b")),
        ("id;a;b", "1;2;3", ("a", "b")),
        ("id\ta\tb", "1\t2\t3", ("a", "b")),
        ('id;"a,x";b', "1;2;3", ("a,x", "b")),
        ("id,a;x,b", "1,2,3", ("a;x", "b")),
        ('id,"genes (a; b; c; d)",y', "1,2,3", ("genes (a; b; c; d)", "y")),
        ("id,answers: a;b;c;d", "1,2", ("answers: a;b;c;d",)),
        ("id," + ",".join(f"gene_{i:05d}" for i in range(15_000)), "1" + ",2" * 15_000, None),
    ],
)
def test_what_divides_the_columns_is_seen_from_their_names(
    first: str, row: str, names: tuple[str, ...] | None, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(f"{first}\n{row}\n")
    found = data.read_columns(tmp_path / "t.csv").names
    assert found == names if names else len(found) == 15_000


def test_spaces_behind_the_commas_belong_to_no_cell(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id, sex, "age, in years"\nx, f, 1\ny, m, \n')
    read = data.read_columns(tmp_path / "t.csv", categories={"sex": ("f", "m")})
    assert (read.ids, read.names) == (("x", "y"), ("sex=f", "sex=m", "age, in years"))
    np.testing.assert_array_equal(read.values, [[1, 0, 1], [0, 1, np.nan]])


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("id;a\nx;1\n"))
    writer.start()
    assert data.read_columns(tmp_path / "pipe").names == ("a",)
    writer.join()


def test_a_target_that_is_a_word_is_answered_with_0_or_1(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a\nx,yes\ny,no\n")
    with pytest.raises(jaxdp.UsageError, match="'yes' is not a finite number: a binary target is 0 or 1"):
        data.read_targets(tmp_path / "t.csv", ("x", "y"))


def test_a_decimal_comma_is_answered_with_a_point(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id;a\nx;1,5\n")
    with pytest.raises(jaxdp.UsageError, match=r"'1,5' is not a finite number \(write 1.5, with a point\)"):
        data.read_columns(tmp_path / "t.csv")


@pytest.mark.parametrize(("columns", "said"), [([], "names no target"), (["a", "a"], "names a twice")])
def test_targets_are_some_and_each_once(columns: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a,b\nx,1,0\ny,0,1\n")
    with pytest.raises(jaxdp.UsageError, match=said):
        data.read_targets(tmp_path / "t.csv", ("x", "y"), columns)


def test_a_category_is_declared_once() -> None:
    with pytest.raises(jaxdp.UsageError, match="name a value twice"):
        data.read_columns(Path("x.csv"), ("sex",), {"sex": ("f", "m", "f")})


@pytest.mark.parametrize("cell", ["10_1", "1_000", "3_5e2"])
def test_codes_with_underscores_are_no_numbers(cell: str, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(f"id,code\nx,1\ny,{cell}\n")
    with pytest.raises(jaxdp.UsageError, match=rf"line 3, column code: '{cell}' is not a finite number"):
        data.read_columns(tmp_path / "f.csv")
    (tmp_path / "bounds.csv").write_text(f"name,lower,upper\ncode,0,{cell}\n")
    with pytest.raises(jaxdp.UsageError, match="a line without two numbers"):
        data.read_bounds(tmp_path / "bounds.csv", ("code",))
