"""why_not(): at least everything that the peer multiplies, and refusals that say why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.validity import layer_why_not, multiplicand, why_not

#: Formats whose products a device of this capability computes (inventory 1.2).
ACTIVATIONS = {75: "f16 s8 s4", 80: "f16 bf16 s8 s4"}
ACTIVATIONS |= dict.fromkeys((89, 90), ACTIVATIONS[80] + " e4m3fn e5m2")
ACTIVATIONS |= dict.fromkeys((107, 110), ACTIVATIONS[89] + " e2m1")
ACTIVATIONS |= dict.fromkeys((100, 103, 120, 121), ACTIVATIONS[107] + " e3m4 e0m3")

U = [f"u{b}" for b in range(1, 9)]
MAGNITUDES = [f"e0m{m}" for m in range(1, 8)]
SMALL_FLOATS = ["e2m1", "e2m3", "e3m2"]
ALL_SMS = tuple(ACTIVATIONS)
WITH_FP8 = (89, 90, 100, 103, 107, 110, 120, 121)
HIDDEN = (100, 103, 120, 121)
BF16_UP = tuple(sm for sm in ALL_SMS if sm >= 80)

CASES = {"channel": "channel-bf16", "g128": "g128-bf16", "g32e8m0": "g32-e8m0",
         "g16e4m3": "g16-e4m3fn"}  # fmt: skip


def zp(codes: list[str]) -> list[str]:
    """The codes without and with zero points."""
    return codes + [f"{code}+z" for code in codes]


_A16 = zp(U) + MAGNITUDES + SMALL_FLOATS + ["e3m4", "e4m3fn", "e5m2"]
_FP8 = [*zp(U[:4]), "u5", *MAGNITUDES[:4], *SMALL_FLOATS, "e4m3fn", "e5m2"]
_FP8_HIDDEN = [*zp(U[:5]), "u6", *MAGNITUDES[:5], *SMALL_FLOATS, "e3m4", "e4m3fn", "e5m2"]
_S8 = [*zp(U[:7]), "u8", *MAGNITUDES]
_S4 = [*zp(U[:3]), "u4", *MAGNITUDES[:3]]
_E2M1 = [*zp(U[:2]), "u3", "e2m1"]
_E0M3 = [*zp(U[:3]), "e0m3", "e2m1"]
_M12 = ["e0m1", "e0m2"]
_NO_E0M3 = [c for c in _FP8 if c != "e0m3"]
_HIDDEN_NO_E0M3 = [c for c in _FP8_HIDDEN if c != "e0m3"]

#: Every "ok" cell of the peer's matrix (inventory, appendix A), transcribed:
#: (activation, scale case, capabilities, codes). Its cells for the PPU equal those of SM 80.
PEER = [
    *(("f16", case, ALL_SMS, _A16) for case in CASES),
    *(("bf16", case, BF16_UP, _A16) for case in CASES),
    ("s8", "channel", ALL_SMS, _S8),
    ("s8", "g128", ALL_SMS, _S8),
    ("s8", "g32e8m0", ALL_SMS, [*_S8, "e2m1"]),
    ("s4", "channel", ALL_SMS, _S4),
    ("s4", "g128", ALL_SMS, _S4),
    *(
        row
        for a in ("e4m3fn", "e5m2")
        for row in (
            (a, "channel", (89, 90, 107, 110), _FP8),
            (a, "channel", HIDDEN, _FP8_HIDDEN),
            (a, "g128", (89, 90, 100, 103, 107, 110), _FP8),
            (a, "g128", (120, 121), _FP8_HIDDEN),
            (a, "g32e8m0", (89, 90), _FP8),
            (a, "g32e8m0", (100, 103), _HIDDEN_NO_E0M3),
            (a, "g32e8m0", (107, 110), _NO_E0M3),
            (a, "g32e8m0", (120, 121), _FP8_HIDDEN),
        )
    ),
    ("e3m4", "channel", HIDDEN, _FP8_HIDDEN),
    ("e3m4", "g128", (120, 121), _FP8_HIDDEN),
    ("e3m4", "g32e8m0", (100, 103), _HIDDEN_NO_E0M3),
    ("e3m4", "g32e8m0", (120, 121), _FP8_HIDDEN),
    ("e2m1", "channel", (100, 103), [*_E2M1, "e0m3"]),
    ("e2m1", "channel", (107, 110), _E2M1),
    ("e2m1", "channel", (120, 121), [*_E2M1, *_M12, "e0m3"]),
    ("e2m1", "g128", (120, 121), [*zp(U[:2]), "u3", *_M12]),
    ("e2m1", "g32e8m0", (100, 103, 107, 110), _E2M1),
    ("e2m1", "g32e8m0", (120, 121), [*_E2M1, *_M12, "e0m3"]),
    ("e2m1", "g16e4m3", (100, 103), [*_E2M1, "e0m3"]),
    ("e2m1", "g16e4m3", (107, 110), _E2M1),
    ("e2m1", "g16e4m3", (120, 121), [*_E2M1, *_M12, "e0m3"]),
    ("e0m3", "channel", (100, 103), _E0M3),
    ("e0m3", "channel", (120, 121), [*_E0M3, *_M12]),
    ("e0m3", "g128", (120, 121), [*zp(U[:3]), *_M12]),
    ("e0m3", "g16e4m3", (100, 103), _E0M3),
    ("e0m3", "g16e4m3", (120, 121), [*_E0M3, *_M12]),
]

#: What the peer's matrix has columns for.
CODES = zp(U) + MAGNITUDES + SMALL_FLOATS + ["e3m4", "e4m3fn", "e5m2"]


def profile(sm: int, vendor: str = "nvidia") -> SimpleNamespace:
    return SimpleNamespace(
        activations=tuple(ACTIVATIONS[sm].split()), vendor=vendor, title=f"a device of {sm}"
    )


def activation(name: str) -> ActivationScheme:
    return ActivationScheme.parse(name if name in ("f16", "bf16") else f"{name}-token-f32")


def allowed(name: str, case: str, sm: int) -> set[str]:
    """Codes that we multiply with activations `name` on a device of capability `sm`."""
    return {
        code
        for code in CODES
        if why_not(WeightScheme.parse(f"{code}-{CASES[case]}"), activation(name), profile(sm))
        is None
    }


@pytest.mark.parametrize(("name", "case", "sms", "codes"), PEER)
def test_everything_that_the_peer_multiplies_is_a_yes(name, case, sms, codes):
    for sm in sms:
        assert set(codes) - allowed(name, case, sm) == set()


#: Where we allow more than the peer, by (activation, scale case), over all capabilities.
#: Empty for 16-bit activations and for capabilities without the activation's tensor cores.
MORE = {
    # The peer takes e2m1 into int8 only with e8m0 scales; 2 * e2m1 and 8 * e2m3 are integers.
    ("s8", "channel"): {"e2m1", "e2m3"},
    ("s8", "g128"): {"e2m1", "e2m3"},
    ("s8", "g32e8m0"): {"e2m3"},
    # Kernels that the peer lacks on some capabilities, for numbers that fit.
    ("e4m3fn", "g128"): {"u5+z", "u6", "e0m5", "e3m4"},
    ("e5m2", "g128"): {"u5+z", "u6", "e0m5", "e3m4"},
    ("e4m3fn", "g32e8m0"): {"e0m3"},
    ("e5m2", "g32e8m0"): {"e0m3"},
    ("e3m4", "g128"): set(_FP8_HIDDEN),
    ("e3m4", "g32e8m0"): {"e0m3"},
    ("e2m1", "channel"): set(_M12),
    ("e2m1", "g128"): {*_E2M1, *_M12, "e0m3"},
    ("e2m1", "g32e8m0"): {*_M12, "e0m3"},
    ("e2m1", "g16e4m3"): set(_M12),
    ("e0m3", "channel"): set(_M12),
    ("e0m3", "g128"): {*_E0M3, *_M12},
    ("e0m3", "g32e8m0"): {*_E0M3, *_M12},
    ("e0m3", "g16e4m3"): set(_M12),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "name", ["f16", "bf16", "s8", "s4", "e4m3fn", "e5m2", "e3m4", "e2m1", "e0m3"]
)
def test_where_we_allow_more_is_known(name, case):
    for sm in ALL_SMS:
        rows = [codes for a, c, sms, codes in PEER if (a, c) == (name, case) and sm in sms]
        more = allowed(name, case, sm) - {code for codes in rows for code in codes}
        assert more <= MORE.get((name, case), set())


def test_nothing_is_listed_as_more_that_is_refused_everywhere():
    for (name, case), codes in MORE.items():
        assert codes <= set().union(*(allowed(name, case, sm) for sm in ALL_SMS))


def test_a_device_without_the_tensor_cores_refuses_every_weight():
    for sm, listed in ACTIVATIONS.items():
        for name in ("bf16", "e4m3fn", "e5m2", "e3m4", "e2m1", "e0m3"):
            if name not in listed.split():
                assert allowed(name, "channel", sm) == set()


T4 = profile(75)
B200 = profile(100)


@pytest.mark.parametrize(
    ("weight", "activation", "device", "message"),
    [
        ("u4-g128-f16", "bf16", T4,
         "bf16 activations need bf16 tensor cores; a device of 75 lists f16, s8, s4"),
        ("u4-g128-f16", "fp8", T4,
         "e4m3fn activations need e4m3fn tensor cores; a device of 75 lists f16, s8, s4"),
        ("s8-channel-f32", "int4", None,
         "s8 weights are wider than s4 activations; use activations of at least 8 bits"),
        ("e4m3fn-tensor-f32", "int8", None,
         "no 8-bit operand format beside s8 holds every e4m3fn value"),
        ("u8+z-g32-f16", "int8", None, "no 8-bit operand format beside s8 holds every u8+z value"),
        ("u7-channel-f16", "fp8", B200,
         "no 8-bit operand format beside e4m3fn holds every u7 value"),
        ("u4-g48-f16", "e4m3fn-g32-f32", None,
         "weight groups of 48 and activation groups of 32 inputs; one must divide the other"),
        ("u4-g48-f16", "int8", T4, "weight groups of 48 inputs; s8 products are summed 32 at a "
         "time, so groups must be multiples of 32"),
        ("e2m1-g16-e4m3fn", "fp8", B200, "weight groups of 16 inputs; e4m3fn products"),
        ("u4-channel-f16", "s8-g16-f32", T4, "activation groups of 16 inputs; s8 products"),
        ("u3-g32-f16", "int4", T4, "weight groups of 32 inputs; s4 products are summed 64"),
        ("e2m1-g16-f16", "e2m1-token-f32", B200, "multiples of 32, or 16 with e4m3fn or e8m0"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_wrong_and_what_would_do(weight, activation, device, message):
    found = why_not(WeightScheme.parse(weight), ActivationScheme.parse(activation), device)
    assert found is not None
    assert message in found


@pytest.mark.parametrize(
    ("weight", "activation", "operand"),
    [
        ("u4-g128-f16", "e5m2", "e5m2"),
        ("u4+z-g128-f16", "e5m2", "e4m3fn"),  # 31 values need four significant bits
        ("u5-channel-f16", "e5m2", "e4m3fn"),
        ("u6-channel-f16", "e4m3fn", "e3m4"),
        ("e5m2-channel-f32", "e4m3fn", "e5m2"),
        ("e2m1-g32-e8m0", "s8", "s8"),
        ("e0m3-g16-e4m3fn", "e2m1", "e0m3"),
        ("u8-channel-f16", "s8", "s8"),
        ("u8+z-channel-f16", "f16", "f16"),
        ("u8-channel-f16", "e4m3fn", None),
        ("e3m3-channel-f16", "e4m3fn", "e4m3fn"),
        ("e1m6-channel-f16", "e4m3fn", "e1m6"),
    ],
)
def test_the_operand_is_the_first_format_that_holds_every_value(weight, activation, operand):
    found = multiplicand(WeightScheme.parse(weight), number_format(activation))
    assert (None if found is None else found.name) == operand


def test_a_format_that_the_device_lacks_is_no_operand():
    u6 = WeightScheme.parse("u6-channel-f16")
    assert why_not(u6, activation("e4m3fn"), profile(90)) is not None
    assert why_not(u6, activation("e4m3fn"), profile(100)) is None
    assert why_not(u6, activation("e4m3fn")) is None


def test_six_bit_products_are_summed_32_at_a_time_too():
    device = SimpleNamespace(activations=("e2m3",), vendor="nvidia", title="a device")
    weight = WeightScheme.parse("mxfp6-e2m3")
    assert why_not(weight, ActivationScheme.parse("mxfp6-e2m3"), device) is None
    refusal = why_not(weight, ActivationScheme.parse("e2m3-g16-e8m0"), device)
    assert "activation groups of 16 inputs" in refusal


def test_a_cpu_has_no_fragments_to_fill():
    nvfp4 = WeightScheme.parse("nvfp4")
    assert why_not(nvfp4, activation("e4m3fn"), profile(90)) is not None
    assert why_not(nvfp4, activation("e4m3fn"), profile(90, vendor="cpu")) is None


def layer(act: str, experts: int = 0, weight: str = "u4-g128-f16") -> LayerConfig:
    return LayerConfig(
        n=8,
        k=256,
        experts=experts,
        weight=WeightScheme.parse(weight),
        activation=ActivationScheme.parse(act),
        output=number_format("f16"),
    )


@pytest.mark.parametrize(
    ("act", "experts", "compute", "message"),
    [
        ("f16", 4, {}, "dense GEMM with 4 experts"),
        ("f16", 0, {"gemm": GemmKind.INDEXED}, "indexed GEMM with 0 experts"),
        ("s8-tensor-f32", 4, {"gemm": GemmKind.INDEXED}, "use a scale per token"),
        ("bf16", 0, {"accumulate": number_format("f16")}, "f16 accumulation of bf16 products"),
        ("int8", 0, {"accumulate": number_format("f16")}, "only f16 has the range"),
        ("s4-token-f32", 0, {}, None),
        ("e4m3fn-g96-f32", 0, {}, "one must divide the other"),
        ("f16", 0, {"accumulate": number_format("f16")}, None),
        ("fp8", 0, {"accumulate": number_format("f16")}, "f16 accumulation of e4m3fn products"),
        ("s8-tensor-f32-static", 4, {"gemm": GemmKind.GROUPED_MASKED}, None),
        ("s8-token-f32", 4, {"gemm": GemmKind.GROUPED_CONTIGUOUS}, None),
    ],
)
def test_a_layer_is_refused_for_its_kind_and_accumulation_too(act, experts, compute, message):
    found = layer_why_not(layer(act, experts), ComputeConfig(**compute))
    assert (found is None) if message is None else (message in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n=0: expected a positive size"),
        ({"k": -1}, "k=-1: expected a positive size"),
        ({"experts": -1}, "experts=-1: expected 0 (dense) or a positive count"),
        ({"output": number_format("e4m3fn")}, "output='e4m3fn': expected one of f16, bf16, f32"),
    ],
)
def test_an_impossible_layer_config_is_refused(change, message):
    fields = {"n": 8, "k": 8, "experts": 0, "output": number_format("f16"), **change}
    with pytest.raises(ConfigError) as caught:
        LayerConfig(**fields, weight=WeightScheme.parse("fp8"), activation=activation("f16"))
    assert str(caught.value) == message


def test_configs_describe_themselves_and_hash():
    assert str(layer("fp8", 4)) == "4 x [8, 256] u4-g128-f16 x e4m3fn-token-f32 -> f16"
    assert hash(layer("fp8")) == hash(layer("fp8"))
    with pytest.raises(ConfigError, match="f32, f16 or None"):
        ComputeConfig(accumulate=number_format("bf16"))
