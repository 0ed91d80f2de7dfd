"""All records of a source, from the first to the last."""

import numpy as np

from jaxdp.reading import Source, in_order

RECORDS = (np.arange(150, dtype=np.float32).reshape(150, 1), np.arange(150, dtype=np.int32))


def test_all_records_come_once_and_in_their_order() -> None:
    for source in (Source(RECORDS), Source(range(150), decode=lambda index: tuple(each[index] for each in RECORDS))):
        found = list(in_order(source))
        assert len(found) > 1
        for which, array in enumerate(RECORDS):
            np.testing.assert_array_equal(np.concatenate([each[which] for each in found]), array)


def test_a_part_of_them_comes_as_a_slice_takes_it() -> None:
    for start, end in ((0, 10), (60, 140), (149, None), (140, 1000), (5, 5), (200, 300)):
        found = [label for _, labels in in_order(Source(RECORDS), start, end) for label in labels]
        assert found == list(range(150)[start:end])
