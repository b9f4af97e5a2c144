from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.process.programs import image_name
from gateway.backends.process.quantities import (
    Limits,
    checked_quantity,
    duration_s,
    gpu_tenths,
    limits_of,
    whole_number,
)
from gateway.contract import FunctionSpec, InvalidSpecError

UNITS = {"": "1", "n": "1e-9", "u": "1e-6", "m": "1e-3", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12"}
BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128Mi", 134_217_728),
        ("1Gi", 1_073_741_824),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        ("2e3", 2000),
        ("2E3", 2000),
        ("1E", 10**18),
        ("5.", 5),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("-1", -1),
        ("1e-3", Fraction(1, 1000)),
    ],
)
def test_quantities_mean_what_they_mean_in_kubernetes(text: str, value: Fraction | int) -> None:
    assert checked_quantity(text) == value


@given(st.decimals(min_value=0, max_value=10**6, places=3), st.sampled_from(sorted(UNITS)))
def test_decimal_suffixes_are_exact_powers_of_ten(number: Decimal, unit: str) -> None:
    assert checked_quantity(f"{number:f}{unit}") == Fraction(number) * Fraction(UNITS[unit])


@given(st.integers(0, 10**6), st.sampled_from(sorted(BINARY)))
def test_binary_suffixes_are_exact_powers_of_1024(number: int, unit: str) -> None:
    assert checked_quantity(f"{number}{unit}") == number * BINARY[unit]


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_sentence(text: str) -> None:
    try:
        assert isinstance(checked_quantity(text, "limits.cpu"), Fraction)
    except InvalidSpecError as error:
        assert str(error).startswith("limits.cpu is ")


@pytest.mark.parametrize(
    "text", ["", "abc", "1 Mi", "1mi", "1Zi", "١", "1e", "1.2.3", "0x10", "1Mii", "9e99", "NaN", "inf"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError):
        checked_quantity(text)


def test_limits_are_read_and_memory_is_rounded_up_to_bytes() -> None:
    limits = limits_of(FunctionSpec("f", "i", limits={"memory": "1.5", "cpu": "250m"}), gpus=0)
    assert limits == Limits(memory_bytes=2, cpu_cores=0.25)


def test_a_limit_above_the_machine_is_allowed() -> None:
    limits = limits_of(FunctionSpec("f", "i", limits={"memory": "100Ti", "cpu": "4096"}), gpus=0)
    assert limits.cpu_cores == 4096


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"cpu": "0"}, "above 0"),
        ({"memory": "-1Mi"}, "above 0"),
        ({"disk": "1"}, "not a resource"),
        ({"nvidia.com/gpu": "1"}, "this machine has 0"),
        ({"nvidia.com/gpu": "0.5"}, "whole number"),
        ({"nvidia.com/gpu": "11"}, "0 to 10"),
        ({"amd.com/gpu": "1"}, "this machine has 0"),
    ],
)
def test_impossible_limits_are_refused_with_a_reason(limits: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidSpecError, match=sentence):
        limits_of(FunctionSpec("f", "i", limits=limits), gpus=0)


def test_tenths_of_a_gpu_may_be_asked_for() -> None:
    spec = FunctionSpec("f", "i", limits={"nvidia.com/gpu": "10"})
    assert limits_of(spec, gpus=1) == Limits()
    assert gpu_tenths(spec) == 10
    assert gpu_tenths(FunctionSpec("f", "i")) == 0


def test_requests_are_checked_for_form() -> None:
    with pytest.raises(InvalidSpecError, match=r"requests\.cpu"):
        limits_of(FunctionSpec("f", "i", requests={"cpu": "much"}), gpus=0)


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("1m30s", 90), ("500ms", 0.5), ("", 7)])
def test_durations(text: str, seconds: float) -> None:
    assert duration_s({"t": text}, "t", 7.0) == seconds


@pytest.mark.parametrize("text", ["abc", "-1", "1d", "1s2"])
def test_bad_durations_and_numbers_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError):
        duration_s({"t": text}, "t", 7.0)
    with pytest.raises(InvalidSpecError):
        whole_number({"t": text}, "t", 7)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("smoe/function", "smoe/function"),
        ("smoe/function:1.2", "smoe/function"),
        ("host:5000/smoe/function", "host:5000/smoe/function"),
        ("host:5000/smoe/function:latest@sha256:abc", "host:5000/smoe/function"),
    ],
)
def test_tags_and_digests_are_ignored(image: str, name: str) -> None:
    assert image_name(image) == name
