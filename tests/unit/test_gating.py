"""Activation functions between the products of experts: values, layouts, parameters, refusals."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from moe_cases import FORMULAS, WITHOUT_GATE, Function

from humming.errors import ConfigError, UnsupportedError
from humming.gating import Gating, GatingFunction, gating_functions, register_gating

GATED = [name for name in FORMULAS if name not in WITHOUT_GATE]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def one(gating: Gating, *inputs: float) -> float:
    return float(gating(torch.tensor([inputs], dtype=torch.float32))[0, 0])


def test_the_functions_are_those_of_the_formulas() -> None:
    assert set(gating_functions()) == set(FORMULAS)
    assert {n for n, f in gating_functions().items() if not f.gated} == set(WITHOUT_GATE)


@pytest.mark.parametrize(
    ("gate", "up", "expected"),
    [(1, 1, 1.691592), (10, 10, 55.999625), (-10, 0.5, -6.1e-7), (-1, -10, 0.925225)],
)
def test_gpt_oss_has_these_values(gate: float, up: float, expected: float) -> None:
    for interleaved in (False, True):
        found = one(Gating.of("swiglu_oai", interleaved=interleaved), gate, up)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_limit_and_alpha_are_what_they_are_set_to() -> None:
    """T11, R55, R56."""

    def oai(gate: float, up: float, **parameters: float) -> float:
        return one(Gating.of("swiglu_oai", **parameters), gate, up)

    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    assert oai(10, 10, limit=1.0) == pytest.approx(sigmoid(1.702) * 2, rel=1e-6)
    assert oai(10, 10, limit=100.0) == pytest.approx(10 * sigmoid(17.02) * 11, rel=1e-6)
    assert oai(3, 2, alpha=1.0, limit=2.5) == pytest.approx(2.5 * sigmoid(2.5) * 3, rel=1e-6)
    # Only the gate's upper side is cut.
    assert oai(-9, 1, limit=1.0) == pytest.approx(-9 * sigmoid(-9 * 1.702) * 2, rel=1e-5)
    clamped = Gating.of("swiglu_clamped")
    assert one(clamped, 20, -20) == pytest.approx(-100 * sigmoid(10), rel=1e-6)
    assert one(clamped, -20, 3) == pytest.approx(-60 * sigmoid(-20), rel=1e-6)
    assert one(Gating.of("swiglu_clamped", limit=2.0), 20, 5) == pytest.approx(4 * sigmoid(2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_each_is_its_formula_rounded_once(name: str, dtype: torch.dtype) -> None:
    for interleaved in (False, True) if name in GATED else (False,):
        gating = Gating.of(name, interleaved=interleaved)
        function = Function(name, interleaved, dict(gating.parameters))
        torch.manual_seed(len(name))
        x = (torch.randn(50, gating.inputs(33)) * 6).to(dtype)
        found, exact = gating(x), function(x.double())
        assert found.shape == (50, 33)
        assert found.dtype == dtype
        assert found.is_contiguous()
        step = torch.finfo(dtype).eps
        # Half a step of the format, and what float32 loses before: there an exponential of more
        # than 2^128 is Inf.
        least = torch.finfo(dtype).smallest_normal * step + 64 * 2.0**-126
        allowed = exact.abs() * (0.5 * step + 2.0**-15) + least
        assert ((found.double() - exact).abs() <= allowed).all()
        assert torch.equal(found, gating(x.float()).to(dtype))


@pytest.mark.parametrize("name", FORMULAS)
def test_extremes_stay_what_they_are(name: str) -> None:
    gating = Gating.of(name)
    for value in (1e4, -1e4, 88.0, -88.0, -120.0, 0.0, -0.0):
        assert math.isfinite(one(gating, *[value] * gating.function.inputs))
    for place in range(gating.function.inputs):
        inputs = [1.0] * gating.function.inputs
        inputs[place] = math.nan
        assert math.isnan(one(gating, *inputs))
    assert one(gating, *[0.0] * gating.function.inputs) == 0


@pytest.mark.parametrize("name", GATED)
def test_layouts_are_the_same_numbers_in_another_order(name: str) -> None:
    x = torch.randn(5, 2, 18)
    woven = x.transpose(1, 2).reshape(5, 36)
    split = Gating.of(name)(x.reshape(5, 36))
    # torch rounds exp() of rows that lie together and of others differently.
    torch.testing.assert_close(
        Gating.of(name, interleaved=True)(woven), split, rtol=1e-6, atol=1e-7
    )
    assert not torch.allclose(Gating.of(name)(x.flip(1).reshape(5, 36)), split)  # R58


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (2, 3, 8), (8,)])
def test_any_leading_dimensions(shape: tuple[int, ...]) -> None:
    assert Gating.of("swiglu")(torch.ones(shape)).shape == (*shape[:-1], 4)
    assert Gating.of("relu2")(torch.ones(shape)).shape == shape


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("swiglu", {"alpha": 1.0}, "swiglu has no parameter alpha: it has no parameters"),
        ("swiglu_clamped", {"alpha": 1.0}, "it has only limit"),
        ("relu2", {"interleaved": True}, "relu2 has no gate"),
    ],
)
def test_a_pair_that_does_not_exist_is_refused(name, options, message) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Gating.of(name, **options)


@pytest.mark.parametrize("value", [0.0, -7.0, math.inf, math.nan, 1e39, 1e-60, "7"])
def test_a_limit_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="limit"):
        Gating.of("swiglu_oai", limit=value)
    if value != 0.0 and value != -7.0 and value != 1e-60:
        with pytest.raises(ConfigError, match="alpha"):
            Gating.of("swiglu_oai", alpha=value)


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of silu, gelu"):
        Gating.of("swish")
    with pytest.raises(ConfigError, match="an even last dimension"):
        Gating.of("swiglu")(torch.ones(2, 5))
    with pytest.raises(ConfigError, match="a float tensor"):
        Gating.of("relu")(torch.ones(2, 5, dtype=torch.int32))


def test_its_text_says_all() -> None:
    assert str(Gating.of("swiglu")) == "swiglu"
    text = str(Gating.of("swiglu_oai", interleaved=True, limit=3))
    assert text == "swiglu_oai(alpha=1.702, limit=3, interleaved)"
    assert Gating.of("swiglu_oai", limit=7.0) == Gating.of("swiglu_oai")


# -- one's own ---------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    import humming.gating

    monkeypatch.setattr(humming.gating, "_FUNCTIONS", dict(humming.gating._FUNCTIONS))


SQUARE = GatingFunction(
    "scaled_square", "scale * gate * gate * up", lambda g, u, *, scale: scale * g * g * u,
    parameters={"scale": 2.0},
)  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_function_is_copied_and_pickled_by_its_name(name: str) -> None:
    gating = Gating.of(name)
    for twin in (copy.deepcopy(gating), pickle.loads(pickle.dumps(gating))):
        assert twin == gating
        assert twin.function is gating.function


@pytest.mark.usefixtures("registry")
def test_a_function_of_ones_own_is_like_any_other() -> None:
    assert register_gating(SQUARE) is SQUARE
    assert register_gating(SQUARE) is SQUARE
    assert one(Gating.of("scaled_square"), 3, 4) == 72
    assert one(Gating.of("scaled_square", scale=0.5), 3, 4) == 18
    other = GatingFunction("scaled_square", "gate * up", lambda g, u: g * u)
    with pytest.raises(ConfigError, match="no other gating function has"):
        register_gating(other)
    with pytest.raises(ConfigError, match="no other gating function has"):
        register_gating(GatingFunction("swiglu", "gate * up", lambda g, u: g * u))


@pytest.mark.parametrize(
    "cuda", ["", " ", "gate; up", "gate } {", "gate // up", "#if 1", "a\nb", 'f("x")', "a /* b"]
)
def test_what_is_no_expression_is_refused(cuda: str) -> None:
    with pytest.raises(ConfigError, match="one C\\+\\+ expression"):
        GatingFunction("mine", cuda, lambda g, u: g)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Mine", {}), ("", {}), ("a b", {}), ("m", {"x": 1.0}), ("m", {"é": 1.0})],
)
def test_names_are_names(name: str, parameters: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        GatingFunction(name, "x", lambda x: x, gated=False, parameters=parameters)
