import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like.broker.lists import ListCheck, check_lengths

FIRST = 40  # position of the first sample


def run(*samples):
    """Append what each sample says, a dict of lists; returns the cell and the last error."""
    cell = memoryview(bytearray(8)).cast("q")
    check = ListCheck(cell, FIRST).check
    batch = defaultdict(list)
    for row, appended in enumerate(samples):
        cell[0] = FIRST + row
        for key, values in appended.items():
            batch[key] += values
        try:
            if batch:
                check(batch, row)
        except ValueError as error:
            return cell[0] - FIRST, str(error)
    return None, ""


class TestEachSample:
    @pytest.mark.parametrize("value", ["image.jpg", "a", 3, (1,), None])
    @pytest.mark.parametrize("row", [0, 1])
    def test_something_else_in_the_place_of_a_list(self, value, row):
        lists = ListCheck(memoryview(bytearray(8)).cast("q"), FIRST)
        batch = defaultdict(list)
        for number in range(row):
            batch["name"].append(number)
            lists.check(batch, number)
        batch["name"] = value
        match = rf"^batch\['name'\] was set to {re.escape(repr(value))}, of type .*append\(value\)"
        with pytest.raises(TypeError, match=match):
            lists.check(batch, row)
        lists.undo(batch, row)
        assert batch == {}

    @given(st.sets(st.sampled_from("abc")), st.integers(1, 4))
    def test_one_value_in_each_list(self, keys, rows):
        assert run(*[{key: [row] for key in keys} for row in range(rows)]) == (None, "")

    @pytest.mark.parametrize(
        ("samples", "row", "text"),
        [
            ([{"a": [1, 2]}], 0, "batch['a'] got 2 values for this sample"),
            ([{"a": [1]}, {"a": [1, 2, 3]}], 1, "batch['a'] got 3 values for this sample"),
            ([{"a": [1]}, {}], 1, "batch['a'] has no value for this sample: "),
            ([{"a": [1], "b": [1]}, {"a": [1]}], 1, "batch['b'] has no value for this sample: "),
            ([{"b": [1]}, {"a": [1], "b": [1]}], 0, "batch['a'] has no value for this sample, but"),
            ([{}, {"a": [1]}], 0, "batch['a'] has no value for this sample, but for one behind"),
            ([{}, {}, {"a": [1, 2, 3]}], 0, "batch['a'] has no value for this sample, but"),
        ],
    )
    def test_anything_else_is_the_fault_of_a_sample(self, samples, row, text):
        culprit, error = run(*samples)
        assert culprit == row
        assert error.startswith(text)
        assert error.endswith("prepare must append exactly one value per sample to each list.")

    @given(st.lists(st.fixed_dictionaries({"a": st.integers(0, 2), "b": st.integers(0, 2)})))
    def test_nothing_passes_that_is_not_one_value_each(self, counts):
        samples = [{key: [0] * n for key, n in sample.items() if n} for sample in counts]
        used = {key for sample in samples for key in sample}
        fine = all(
            sample.keys() == used and max(count.values()) < 2
            for sample, count in zip(samples, counts, strict=True)
        )
        assert (run(*samples)[0] is None) == fine


class TestWholeChunks:
    @pytest.mark.parametrize("batch", [{}, {"a": [1, 2]}, {"a": [1, 2], "b": [3, 4]}])
    def test_one_value_per_sample(self, batch):
        check_lengths(batch, 2)

    @pytest.mark.parametrize("values", [[], [1], [1, 2, 3]])
    def test_any_other_number(self, values):
        text = rf"appended {len(values)} values to batch\['b'\] for 2 samples"
        with pytest.raises(ValueError, match=text):
            check_lengths({"a": [1, 2], "b": values}, 2)


class TestUndoing:
    appended = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(), max_size=4))

    @given(keys=st.sets(st.sampled_from("abc")), rows=st.integers(0, 3), failed=appended)
    def test_everything_of_the_sample(self, keys, rows, failed):
        """Whatever it has appended, to lists that were there and to others."""
        check = ListCheck(memoryview(bytearray(8)).cast("q"), FIRST)
        batch = defaultdict(list)
        for row in range(rows):
            for key in sorted(keys):
                batch[key].append(row)
            check.check(batch, row)
        for key, values in failed.items():
            batch[key] += values
        check.undo(batch, rows)
        assert batch == ({key: list(range(rows)) for key in keys} if rows else {})

    def test_the_next_sample_may_append_something_else(self):
        check = ListCheck(memoryview(bytearray(8)).cast("q"), FIRST)
        batch = defaultdict(list, {"a": [1, 2]})
        with pytest.raises(ValueError, match="got 2 values"):
            check.check(batch, 0)
        check.undo(batch, 0)
        batch["b"].append(1)
        check.check(batch, 0)
        assert batch == {"b": [1]}
