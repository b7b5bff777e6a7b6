"""The comparison fails on what it is there to find."""

import pytest
import torch

from benchmarks.accuracy import Error, Reference, agree, difference, error_of, within_contract
from benchmarks.entry import Entry, Sample, leading


def test_equal_is_no_error_and_rounding_is_little():
    x = torch.randn(16, 16, dtype=torch.float64)
    assert error_of((x,), (x,)) == Error(0.0, 0.0)
    assert error_of((x.bfloat16(),), (x,)).norm < 4e-3


def test_zeros_transposed_and_nan_are_errors():
    x = torch.randn(16, 16, dtype=torch.float64)
    assert error_of((torch.zeros_like(x),), (x,)).norm == 1.0
    assert error_of((x.T,), (x,)).norm > 1.0
    holed = x.clone()
    holed[3, 4] = float("nan")
    assert error_of((holed,), (x,)).norm == float("inf")


def test_non_finite_must_be_where_the_reference_has_it():
    ref = torch.tensor([1.0, float("-inf"), float("nan")])
    assert error_of((ref.clone(),), (ref,)).norm == 0.0
    assert error_of((torch.tensor([1.0, 0.0, float("nan")]),), (ref,)).norm == float("inf")
    assert error_of((torch.tensor([1.0, float("-inf"), 0.0]),), (ref,)).norm == float("inf")


def test_other_shapes_and_counts_raise():
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="shape"):
        error_of((x,), (x[:2],))
    with pytest.raises(ValueError, match="outputs"):
        error_of((x, x), (x,))


def test_difference_of_wholes_sees_one_wrong_row_and_nan():
    x = torch.randn(64, 8)
    wrong = x.clone()
    wrong[31] = 0
    assert difference((x,), (x.clone(),)) == 0.0
    assert difference((wrong,), (x,)) > 0.05
    wrong[31] = float("nan")
    assert difference((wrong,), (x,)) == float("inf")
    assert not agree(float("inf"), Error(1.0, 1.0), (x,))


def test_a_nan_outside_the_samples_is_found():
    x = torch.randn(64, 8)
    sample: tuple[Sample, ...] = leading(4, (True,), 64)
    entry = Entry("double", "test", "", lambda x: x * 2, lambda make: (x,), 1.0, sample)
    reference = Reference(entry, (x,))
    out = x * 2
    assert reference.error((out,)).norm < 1e-6
    out[32, 0] = float("nan")
    assert reference.error((out,)).norm == float("inf")


def test_contract_is_twice_eager_and_a_rounding():
    out = (torch.zeros(1, dtype=torch.float32),)
    assert within_contract(Error(2e-3, 2e-3), Error(1e-3, 1e-3), out)
    assert not within_contract(Error(2.1e-3, 1e-3), Error(1e-3, 1e-3), out)
    assert not within_contract(Error(1e-3, 2.1e-3), Error(1e-3, 1e-3), out)
    assert not within_contract(Error(float("inf"), float("inf")), Error(1e-3, 1e-3), out)
