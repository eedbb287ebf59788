"""Which activations a checkpoint gets on a device that may lack what it asks for."""

from __future__ import annotations

import logging

import pytest

from humming import plugins
from humming.errors import ConfigError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.selection import WIDER, resolve_activation
from humming.selection.notice import log_once


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUMMING_ALLOW_FALLBACK", raising=False)
    log_once.cache_clear()


def resolve(requested: str, profile: str, weight: str, **options: object) -> str:
    scheme = WeightScheme.parse(weight)
    facts = plugins.profiles()[profile]
    return str(resolve_activation(requested, facts, weight=scheme, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("narrow", sorted(WIDER))
def test_every_wider_format_holds_all_values_of_the_narrower(narrow: str) -> None:
    for wider in WIDER[narrow]:
        assert number_format(wider).holds(number_format(narrow)), wider


@pytest.mark.parametrize("narrow", sorted({*WIDER, "e4m3fn", "e5m2", "e3m4", "s8"}))
def test_sixteen_bits_hold_all_values_of_every_activation_format(narrow: str) -> None:
    for wide in ("bf16", "f16"):
        assert number_format(wide).holds(number_format(narrow))


#: What is asked for, the device, the weight, and what it becomes.
CASES = [
    # as asked
    ("nvfp4", "nvidia-b200", "nvfp4", "e2m1-g16-e4m3fn-tensor-static"),
    ("mxfp4", "nvidia-rtx-5090", "mxfp4", "e2m1-g32-e8m0"),
    ("mxfp6-e2m3", "nvidia-b200", "mxfp6-e2m3", "e2m3-g32-e8m0"),
    ("fp8", "nvidia-l40s", "fp8-channel", "e4m3fn-token-f32"),
    ("int8", "nvidia-t4", "s8-channel-f32", "s8-token-f32"),
    ("e0m3", "nvidia-b200", "e0m3-g16-e4m3fn", "e0m3-g16-e4m3fn-token"),
    ("f16", "nvidia-t4", "int4-g128", "f16"),
    ("nvfp4", "host-cpu", "nvfp4", "e2m1-g16-e4m3fn-tensor-static"),
    # the next wider one, under the same dynamic scales
    ("mxfp4", "nvidia-h200", "mxfp4", "e4m3fn-g32-e8m0"),
    ("mxfp6-e2m3", "nvidia-h200", "mxfp6-e2m3", "e4m3fn-g32-e8m0"),
    ("mxfp6-e3m2", "nvidia-l40s", "mxfp6-e3m2", "e4m3fn-g32-e8m0"),
    ("int4", "thead-zhenwu-810e", "int4-g128", "s8-token-f32"),
    # no 8-bit product for groups of 16: unquantized
    ("nvfp4", "nvidia-h200", "nvfp4", "bf16"),
    ("e2m1", "nvidia-h200", "nvfp4", "bf16"),
    # a stored scale fits its own format only
    ("fp8-static", "nvidia-a100", "fp8", "bf16"),
    ("e2m1-tensor-f32-static", "nvidia-h200", "e2m1-channel-f32", "bf16"),
    # nothing but 16 bits holds it
    ("fp8", "nvidia-a100", "fp8-channel", "bf16"),
    ("e5m2", "nvidia-a10", "e5m2-channel-f32", "bf16"),
    ("mxfp8", "nvidia-t4", "mxfp8", "f16"),
    ("e3m4", "nvidia-h200", "e3m4-channel-f32", "bf16"),
    # the weight is what the device can't multiply with 8 bits
    ("fp8", "nvidia-h200", "int8-channel", "bf16"),
]


@pytest.mark.parametrize(("requested", "profile", "weight", "expected"), CASES)
def test_activations_become(requested: str, profile: str, weight: str, expected: str) -> None:
    assert resolve(requested, profile, weight) == expected


def test_what_the_device_can_do_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    resolve("nvfp4", "nvidia-b200", "nvfp4")
    assert not caplog.records


def test_a_change_is_logged_once_and_each_other_change_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        resolve("nvfp4", "nvidia-h200", "nvfp4")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for part in ("NVIDIA H200", "e2m1-g16-e4m3fn-tensor-static", "become bf16", "lists f16, bf16"):
        assert part in record.getMessage()
    resolve("mxfp4", "nvidia-h200", "mxfp4")
    assert len(caplog.records) == 2


def test_an_override_is_taken_as_it_is() -> None:
    assert resolve("nvfp4", "nvidia-b200", "nvfp4", override="bf16") == "bf16"
    assert resolve("bf16", "nvidia-h200", "fp8-channel", override="fp8") == "e4m3fn-token-f32"
    scheme = ActivationScheme.parse("mxfp8")
    assert resolve("bf16", "nvidia-h200", "mxfp8", override=scheme) == "e4m3fn-g32-e8m0"


def test_an_override_that_the_device_lacks_is_refused_with_what_would_work() -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve("nvfp4", "nvidia-h200", "nvfp4", override="e2m1")
    text = str(caught.value)
    assert text.startswith("NVIDIA H200 can't multiply e2m1-g16-e4m3fn-token activations")
    assert text.count("lists f16, bf16, e4m3fn, e5m2, s8, s4") == 1
    assert text.endswith("; bf16 or f16 would work")


def test_an_override_may_be_replaced_if_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve("nvfp4", "nvidia-h200", "nvfp4", override="e2m1", allow_fallback=True) == "bf16"
    assert len(caplog.records) == 1


def test_the_environment_does_not_loosen_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", "1")
    with pytest.raises(UnsupportedError):
        resolve("nvfp4", "nvidia-h200", "nvfp4", override="e2m1")


def test_fallback_can_be_forbidden_by_argument_and_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UnsupportedError, match="bf16 or f16 would work"):
        resolve("nvfp4", "nvidia-h200", "nvfp4", allow_fallback=False)
    monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", "0")
    with pytest.raises(UnsupportedError, match=r"e2m1.*NVIDIA H200 lists.*bf16 or f16 would work"):
        resolve("nvfp4", "nvidia-h200", "nvfp4")
    assert resolve("nvfp4", "nvidia-h200", "nvfp4", allow_fallback=True) == "bf16"
    assert resolve("fp8", "nvidia-h200", "fp8-channel") == "e4m3fn-token-f32"
    monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", "perhaps")
    with pytest.raises(ConfigError, match="HUMMING_ALLOW_FALLBACK"):
        resolve("nvfp4", "nvidia-h200", "nvfp4")


def test_unquantized_activations_are_of_the_outputs_format() -> None:
    assert resolve("nvfp4", "nvidia-h200", "nvfp4", output="f16") == "f16"
    assert resolve("nvfp4", "nvidia-h200", "nvfp4", output="bf16") == "bf16"
    assert resolve("nvfp4", "nvidia-h200", "nvfp4", output="f32") == "bf16"
    assert resolve("fp8", "host-cpu", "int8-channel", output="f32") == "f32"


def test_sixteen_bits_that_the_device_lacks_are_refused_and_not_swapped() -> None:
    with pytest.raises(UnsupportedError, match=r"NVIDIA T4.*bf16.*lists f16, s8, s4.*no wider"):
        resolve("bf16", "nvidia-t4", "int4-g128", output="bf16")
    with pytest.raises(UnsupportedError, match="no wider type would work"):
        resolve("bf16", "nvidia-t4", "int4-g128")  # f16 has not the range of bf16
    with pytest.raises(UnsupportedError, match=r"e4m3fn.*NVIDIA T4.*no wider type would work"):
        resolve("fp8", "nvidia-t4", "fp8-channel", output="bf16")


def test_what_is_refused_says_so_if_only_the_weight_is_in_the_way() -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve("fp8", "nvidia-h200", "int8-channel", allow_fallback=False)
    assert "; the device lists f16" in str(caught.value)


def test_a_text_that_is_no_scheme_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        resolve("e4m3fn-sometimes-f32", "nvidia-h200", "fp8-channel")
