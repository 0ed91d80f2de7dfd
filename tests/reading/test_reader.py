"""What a reader gives is the draws' records, whole and in order, wherever it begins; and it ends when it is told to."""

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxdp
from jaxdp import data
from jaxdp.reading import Block, Reader, Source

N = 23
VALUES = np.random.default_rng(0).integers(1, 256, (N, 3), np.uint8)
PAIRS = list(zip(VALUES, range(1, N + 1), strict=True))
DRAWS = [np.random.default_rng(step).permutation(N)[: 2 + step * 5 % N] for step in range(8)]


def draw_of(step: int) -> np.ndarray:
    return DRAWS[step]


def expected(draw: list[int], block: int, places: list[int]) -> list[Block]:
    """A loop over the rows, for sources of `PAIRS`."""
    blocks = []
    for start in range(0, len(draw), block):
        values, labels = np.zeros((len(places), 3), np.uint8), np.zeros(len(places), np.int32)
        for row, place in enumerate(places):
            if start + place < len(draw):
                values[row], labels[row] = PAIRS[draw[start + place]]
        blocks.append(Block((values, labels), start))
    return blocks


def assert_same(found: list[Block], wanted: list[Block]) -> None:
    assert [block.start for block in found] == [block.start for block in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert [leaf.dtype for leaf in one.rows] == [leaf.dtype for leaf in other.rows]
        jax.tree.map(np.testing.assert_array_equal, one.rows, other.rows)


@st.composite
def readings(draw: Any) -> dict[str, Any]:
    block = draw(st.integers(1, 6))
    places = draw(st.none() | st.sets(st.integers(0, block - 1), min_size=1).map(sorted))
    draws = draw(st.lists(st.lists(st.integers(0, N - 1), max_size=40), max_size=6))
    sizes = {name: draw(st.integers(1, most)) for name, most in (("most", 12), ("threads", 4), ("ahead", 9))}
    return {"block": block, "places": places, "draws": draws, "first": draw(st.integers(0, len(draws))), **sizes}


@pytest.mark.parametrize(
    "records", [PAIRS, (VALUES, np.arange(1, N + 1))], ids=["read one by one", "read as rows of arrays"]
)
@settings(deadline=None, max_examples=40)
@given(reading=readings())
def test_all_that_is_drawn_is_read_and_nothing_else(records: Any, reading: dict[str, Any]) -> None:
    block, places, draws, first = (reading[name] for name in ("block", "places", "draws", "first"))
    with Reader(
        Source(records, threads=reading["threads"], ahead=reading["ahead"]),
        lambda step: np.array(draws[step], int),
        block=block,
        most=reading["most"],
        first=first,
        steps=len(draws) - first,
        places=None if places is None else np.array(places),
    ) as reader:
        for step in range(first, len(draws)):
            wanted = expected(draws[step], block, list(range(block)) if places is None else places)
            assert_same(list(reader.blocks(step)), wanted)


@pytest.mark.slow
def test_a_draw_far_beyond_the_usual_is_read_whole() -> None:
    draw = np.random.default_rng(0).integers(0, N, 5000)
    with Reader(Source(PAIRS), lambda _: draw, block=8, most=10, first=0, steps=2) as reader:
        for step in range(2):
            assert_same(list(reader.blocks(step)), expected(draw.tolist(), 8, list(range(8))))


def test_draws_of_jax_are_read_as_numbers() -> None:
    draw = lambda step: jax.random.permutation(jax.random.key(step), N)
    with Reader(Source(PAIRS), draw, block=8, most=N, first=0, steps=3) as reader:
        for step in range(3):
            assert_same(list(reader.blocks(step)), expected(draw(step).tolist(), 8, list(range(8))))


def test_threads_read_a_tfds_data_source_at_once(tfds_dir: Path) -> None:
    import tensorflow_datasets as tfds

    prepared = tfds.builder_from_directory(tfds_dir / "mnist" / "3.0.1").as_data_source("train")
    source = Source(prepared, lambda record: (record["image"], record["label"]), threads=8)
    arrays = data.load("mnist", tfds_dir)
    draws = np.random.default_rng(0).integers(0, len(source), (6, 24))
    with Reader(source, lambda step: draws[step], block=8, most=32, first=0, steps=6) as reader:
        for step, draw in enumerate(draws):
            for block in reader.blocks(step):
                images, labels = block.rows
                indices = draw[block.start : block.start + 8]
                np.testing.assert_array_equal(images, arrays.train_images[indices])
                np.testing.assert_array_equal(labels, arrays.train_labels[indices])


def test_each_step_is_drawn_once_and_only_a_few_steps_ahead() -> None:
    drawn: list[int] = []

    def draw(step: int) -> np.ndarray:
        drawn.append(step)
        return np.arange(4)

    with Reader(Source(PAIRS, threads=3, ahead=8), draw, block=2, most=8, first=1, steps=30) as reader:
        for step in range(1, 31):
            blocks = list(reader.blocks(step))
            assert len(blocks) == 2
            assert max(drawn) <= step + 3
    assert sorted(drawn) == list(range(1, 31))


def test_a_draw_is_made_in_a_thread_that_reads() -> None:
    threads: set[threading.Thread] = set()

    def draw(_: int) -> np.ndarray:
        threads.add(threading.current_thread())
        return np.arange(3)

    with Reader(Source(PAIRS), draw, block=2, most=3, first=0, steps=3) as reader:
        assert len(list(reader.blocks(0))) == 2
    assert threading.current_thread() not in threads


def test_reading_goes_on_at_a_step_as_if_it_had_never_stopped() -> None:
    source, sizes = Source(PAIRS), {"block": 4, "most": 12}
    with Reader(source, draw_of, first=0, steps=8, **sizes) as whole:
        all_blocks = [list(whole.blocks(step)) for step in range(6)]
        state = whole._iterator.get_state()
    with Reader(source, draw_of, first=6, steps=2, **sizes) as resumed:
        assert resumed._iterator.get_state() == state
    with Reader(source, draw_of, first=3, steps=5, **sizes) as resumed:
        for step in range(3, 6):
            assert_same(list(resumed.blocks(step)), all_blocks[step])
        assert resumed._iterator.get_state() == state


def test_the_blocks_of_a_step_may_be_counted_instead_of_being_read_to_their_end() -> None:
    with Reader(Source(PAIRS), draw_of, block=4, most=40, first=0, steps=8) as reader:
        for step in range(8):
            blocks = reader.blocks(step)
            found = [next(blocks) for _ in range(-(-len(DRAWS[step]) // 4))]
            assert_same(found, expected(DRAWS[step].tolist(), 4, [0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([1], "step=1 is asked for, and step 2 is next"),
        ([3], "step=3 is asked for, and step 2 is next"),
        ([2, 2], "step=2 is asked for, and step 3 is next"),
        ([2, 3, 4, 5], "step=5 is asked for, and there are 5 steps"),
        ([2, -1], "step=-1"),
        ([2.5], "step=2.5"),
    ],
)
def test_steps_out_of_turn_are_refused(asked: list[Any], said: str, unchecked: None) -> None:
    with Reader(Source(PAIRS), draw_of, block=4, most=8, first=2, steps=3) as reader:
        for step in asked[:-1]:
            list(reader.blocks(step))
        with pytest.raises(jaxdp.UsageError, match=said):
            reader.blocks(asked[-1])


@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("then", [2, 3])
def test_a_step_of_which_blocks_are_left_is_not_gone_on_from(taken: int, then: int) -> None:
    with Reader(Source(PAIRS), draw_of, block=4, most=8, first=2, steps=3) as reader:
        blocks = reader.blocks(2)
        for _ in range(taken):
            next(blocks)
        with pytest.raises(
            jaxdp.UsageError, match=rf"step={then} is asked for, and not all blocks of step 2 were taken"
        ):
            reader.blocks(then)
        with pytest.raises(jaxdp.UsageError, match=rf"step={then} can't be read, for the reader was closed"):
            reader.blocks(then)


def test_a_reader_without_steps_reads_nothing() -> None:
    with (
        Reader(Source(PAIRS), draw_of, block=4, most=8, first=8, steps=0) as reader,
        pytest.raises(jaxdp.UsageError, match="there are 8 steps"),
    ):
        reader.blocks(8)


class Broken:
    """Records of which one can't be read until it is mended."""

    def __init__(self) -> None:
        self.bad: int | None = 9

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise OSError("the disk is gone")
        return PAIRS[index]


def read_all(reader: Reader, steps: range) -> list[list[Block]]:
    return [list(reader.blocks(step)) for step in steps]


def test_a_record_that_can_not_be_read_ends_reading_and_a_new_reader_goes_on_at_that_step() -> None:
    records, sizes = Broken(), {"block": 4, "most": 12}
    source = Source(records)
    draws = [np.arange(8), np.array([3, 4, 5, 6, 7, 9, 1]), np.arange(5)]
    reader = Reader(source, draws.__getitem__, first=0, steps=3, **sizes)
    assert_same(list(reader.blocks(0)), expected(draws[0].tolist(), 4, [0, 1, 2, 3]))
    blocks = reader.blocks(1)
    assert_same([next(blocks)], expected(draws[1].tolist(), 4, [0, 1, 2, 3])[:1])
    with pytest.raises(jaxdp.UsageError, match=r"records\[9\] can't be read: OSError: the disk is gone") as caught:
        next(blocks)
    assert isinstance(caught.value.__cause__, OSError)
    assert list(blocks) == []
    for step in (1, 2):
        with pytest.raises(jaxdp.UsageError, match="the reader was closed"):
            reader.blocks(step)
    records.bad = None
    with Reader(source, draws.__getitem__, first=1, steps=2, **sizes) as resumed:
        for step in (1, 2):
            assert_same(list(resumed.blocks(step)), expected(draws[step].tolist(), 4, [0, 1, 2, 3]))


def test_a_source_that_changes_its_length_under_way_ends_reading() -> None:
    records = list(PAIRS)
    with Reader(Source(records, ahead=1), draw_of, block=4, most=8, first=0, steps=8) as reader:
        list(reader.blocks(0))
        records.append(PAIRS[0])
        with pytest.raises(jaxdp.UsageError, match="records had 23 records and has 24 now"):
            read_all(reader, range(1, 8))


def test_a_record_of_another_kind_ends_reading() -> None:
    records = [*PAIRS[:9], (VALUES[9, :2], 1), *PAIRS[10:]]
    with (
        Reader(Source(records), lambda _: np.arange(N), block=4, most=8, first=0, steps=8) as reader,
        pytest.raises(jaxdp.UsageError, match=r"records\[9\]\[0\] is of uint8 and shape \(2,\)"),
    ):
        read_all(reader, range(8))


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (np.array([1, N]), r"draw\(0\) has 23 in it, and there are 23 records"),
        (np.array([1, -1]), r"draw\(0\) has -1 in it"),
        (np.ones(N, bool), r"draw\(0\) is of bool"),
        (np.array([1.0]), r"draw\(0\) is of float64"),
        (np.array([[1]]), r"draw\(0\) is of int64 and shape \(1, 1\)"),
        (None, r"draw\(0\) is NoneType of object"),
    ],
)
def test_a_draw_of_what_is_no_record_ends_reading(drawn: Any, said: str) -> None:
    with (
        Reader(Source(PAIRS), lambda _: drawn, block=4, most=8, first=0, steps=8) as reader,
        pytest.raises(jaxdp.UsageError, match=said),
    ):
        read_all(reader, range(8))


def test_what_goes_wrong_in_a_draw_is_raised_as_it_is() -> None:
    with (
        Reader(Source(PAIRS), lambda _: 1 // 0, block=4, most=8, first=0, steps=8) as reader,
        pytest.raises(ZeroDivisionError),
    ):
        read_all(reader, range(8))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"source": VALUES}, "(?s)source=.*give jaxdp.reading.Source"),
        ({"source": Source(["a", "b"])}, r"records\[0\] is str of .* and no array of numbers"),
        ({"draw": np.arange(3)}, "draw=.*can't be called"),
        ({"block": 0}, "block=0"),
        ({"block": 2.5}, "block=2.5"),
        ({"most": 0}, "most=0"),
        ({"first": -1}, "first=-1"),
        ({"steps": -1}, "steps=-1"),
        ({"places": np.array([1, 0])}, "places=.*ascending"),
        ({"places": np.array([1, 1])}, "places=.*ascending"),
        ({"places": np.array([0, 4])}, "places=.*from 0 to 3"),
        ({"places": np.array([-1, 2])}, "places=.*from 0 to 3"),
        ({"places": np.array([], int)}, "places=.*from 0 to 3"),
        ({"places": np.array([0.0])}, "places=.*whole"),
        ({"places": "all"}, "places is str"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_anything_is_drawn(
    changed: dict[str, Any], said: str, unchecked: None
) -> None:
    arguments = {"source": Source(PAIRS), "draw": lambda _: pytest.fail("drawn"), "block": 4, "most": 8}
    arguments |= {"first": 0, "steps": 8} | changed
    before = threading.active_count()
    with pytest.raises(jaxdp.UsageError, match=said):
        Reader(arguments.pop("source"), arguments.pop("draw"), **arguments)
    assert threading.active_count() == before


class Gate:
    """Records that can be read while the gate is open; `reached` once somebody waits in front of it."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def decode(self, record: Any) -> Any:
        if record[1] > 1:  # the first record is read when the reader is made
            self.reached.set()
            assert self.open.wait(60)
        return record


def test_closing_waits_until_no_thread_reads_any_more() -> None:
    before, gate = set(threading.enumerate()), Gate()
    reader = Reader(
        Source(PAIRS, gate.decode, threads=4), lambda _: np.arange(N), block=4, most=8, first=0, steps=10**6
    )
    assert gate.reached.wait(60)
    opener = threading.Timer(0.1, gate.open.set)
    opener.start()
    reader.close()
    assert gate.open.is_set()
    opener.join()
    assert set(threading.enumerate()) <= before
    reader.close()


def ended(threads: set[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.slow
@pytest.mark.parametrize("step_under_way", [False, True])
def test_a_reader_that_nobody_has_any_more_ends_its_threads(step_under_way: bool) -> None:
    before = set(threading.enumerate())
    reader = Reader(Source(PAIRS), draw_of, block=4, most=8, first=0, steps=8)
    list(reader.blocks(0))
    if step_under_way:
        next(reader.blocks(1))
    threads = set(threading.enumerate()) - before
    assert threads
    del reader
    gc.collect()
    assert ended(threads)


def test_an_error_ends_the_threads() -> None:
    before = set(threading.enumerate())
    reader = Reader(Source(Broken()), lambda _: np.arange(N), block=4, most=8, first=0, steps=10**6)
    threads = set(threading.enumerate()) - before
    with pytest.raises(jaxdp.UsageError, match=r"records\[9\]"):
        list(reader.blocks(0))
    assert ended(threads)


def test_a_step_under_way_is_not_read_on_when_the_reader_was_closed() -> None:
    reader = Reader(Source(PAIRS), draw_of, block=1, most=8, first=2, steps=3)
    blocks = reader.blocks(2)
    next(blocks)
    reader.close()
    with pytest.raises(jaxdp.UsageError, match="step 2 can't be read on, for the reader was closed"):
        list(blocks)


def test_waiting_is_counted_where_the_disk_is_slow_and_hardly_where_it_is_not(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.npy" for index in range(N)]
    for path, value in zip(paths, VALUES, strict=True):
        np.save(path, value)

    def waited(pause: float) -> float:
        def decode(path: Path) -> np.ndarray:
            time.sleep(pause)
            return np.load(path)

        source = Source(paths, decode, threads=1, ahead=1)
        with Reader(source, lambda _: np.arange(4), block=4, most=4, first=0, steps=10) as reader:
            before = reader.waited
            for step in range(10):
                (block,) = reader.blocks(step)
                np.testing.assert_array_equal(block.rows, VALUES[:4])
            assert before == 0
            return reader.waited

    assert waited(0.01) > waited(0)


SLOW = """
import signal, time, threading, os, sys
import numpy as np
from jaxdp.reading import Reader, Source

def decode(path):
    time.sleep(0.05)
    return np.zeros(3)

reader = Reader(Source(["path"] * 100, decode), lambda step: np.arange(100), block=8, most=100, first=0, steps=1000)
for step in range(1000):
    for block in reader.blocks(step):
        if step == 0 and block.start == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_program_that_reads() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=600, check=False)
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode in (-2, 130)


@pytest.mark.slow
def test_a_program_that_ends_with_a_reader_open_ends() -> None:
    code = SLOW.partition("for step in")[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_importing_the_library_does_not_import_grain() -> None:
    code = "import jaxdp.reading, sys; print('grain' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
