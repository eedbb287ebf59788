"""The example plugin does what its README says, installed or (if it is not) as if it were."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/out_of_tree_plugin"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]

Ask = Callable[..., Any]

REPORT = """
import io, json, logging, humming
from humming import plugins
stream = io.StringIO()
logging.getLogger("humming").addHandler(logging.StreamHandler(stream))
layer = humming.LayerConfig(
    n=8, k=32, weight=humming.WeightScheme.parse("s8-channel-f32"),
    activation=humming.ActivationScheme.parse("int8"), output=humming.number_format("bf16"))
simulated = humming.select_backend(device="acmesim:one")
fallback = humming.select_backend(device="acmesim:one", layer=layer).name
try:
    humming.select_backend("acme", profile="nvidia-h200")
except humming.NoBackendError as error:
    refusal = str(error)
print(json.dumps({
    "offers": {
        "backend": plugins.backends()["acme"][1:],
        "loader": plugins.loaders()["acme"].__name__,
        "runtime": plugins.runtimes()["acmesim"].name,
        "profile": plugins.profiles()["acme-one"].title,
        "format": humming.number_format("acme_float8").name,
    },
    "failures": [f.reason for f in plugins.failures() if f.plugin.name == "acme"],
    "simulated": [simulated.name, simulated.profile.name,
                  simulated.evidence(simulated.profile).value],
    "others": [humming.select_backend(profile="thead-zhenwu-810e").name,
               humming.select_backend(device="cpu").name],
    "refusal": refusal,
    "fallback": [fallback, stream.getvalue()],
}))
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, install: Callable[..., None], run: Ask) -> Ask:
    """Run Python text where the example is installed."""
    folders: tuple[Path, ...] = ()
    try:
        installed = metadata.version(PROJECT["name"])
    except metadata.PackageNotFoundError:
        folders = (tmp_path_factory.mktemp("site"), EXAMPLE / "src")
        points = PROJECT["entry-points"]["humming"]
        install(folders[0], PROJECT["name"], PROJECT["version"], points, {})
    else:
        assert installed == PROJECT["version"]
    return lambda text: run(text, *folders)


@pytest.fixture(scope="module")
def report(ask: Ask) -> dict[str, Any]:
    found: dict[str, Any] = ask(REPORT)
    return found


def test_it_loads_without_failures_and_offers_one_of_everything(report: dict[str, Any]) -> None:
    assert report["failures"] == []
    assert report["offers"] == {
        "backend": [PROJECT["name"], PROJECT["version"]],
        "loader": "AcmeLoader",
        "runtime": "acmesim",
        "profile": "ACME One",
        "format": "acme8",
    }


def test_its_simulated_device_gets_its_backend_and_others_do_not(report: dict[str, Any]) -> None:
    assert report["simulated"] == ["acme", "acme-one", "simulated"]
    assert report["others"] == ["reference", "reference"]


def test_naming_its_backend_for_another_device_is_refused(report: dict[str, Any]) -> None:
    assert "for Acme devices; NVIDIA H200 is none" in report["refusal"]
    assert f"{PROJECT['name']} {PROJECT['version']}" in report["refusal"]


def test_a_layer_that_it_refuses_falls_back_and_its_reason_is_logged(
    report: dict[str, Any],
) -> None:
    name, log = report["fallback"]
    assert name == "reference"
    assert "unquantized activations only, not s8-token-f32" in log


def acme8(code: int) -> float:
    """Value of a code, from the format's description alone."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    size = 2.0 ** (exponent - 11) * (1 + mantissa / 8) if exponent else 2.0**-10 * mantissa / 8
    return -size if sign else size


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {"quantization_config": {"quant_method": "acme", "version": 1}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def test_its_checkpoint_is_read_and_multiplied_by_its_backend(ask: Ask, tmp_path: Path) -> None:
    n, k, m = 5, 19, 3
    random = np.random.default_rng(7)
    codes = random.integers(0, 256, (n, k), dtype=np.uint8)
    step = random.uniform(0.01, 3.0, n).astype(np.float32)
    x = random.standard_normal((m, k)).astype(np.float32)
    tensors = {"up.codes": torch.from_numpy(codes), "up.step": torch.from_numpy(step)}
    good = save(tmp_path / "good", tensors)
    bad = save(tmp_path / "bad", {"up.codes": torch.zeros(2, 3)})
    decoded, product, refusal = ask(f"""
import json, torch, humming
weight = humming.load_checkpoint({good!r})["up"]
backend = humming.select_backend(device="acmesim:one")
layer = humming.LayerConfig(
    n=weight.n, k=weight.k, weight=weight.scheme,
    activation=humming.ActivationScheme.parse("f32"), output=humming.number_format("f32"))
assert backend.refuse(layer, humming.ComputeConfig()) is None
run = backend.prepare(weight, layer, humming.ComputeConfig())
try:
    humming.load_checkpoint({bad!r})
except humming.CheckpointError as error:
    refusal = str(error)
product = run(torch.tensor({x.tolist()}))
print(json.dumps([weight.dequantize().double().tolist(), product.tolist(), refusal]))
""")
    values = np.array([[acme8(int(code)) for code in row] for row in codes]) * step[:, None]
    np.testing.assert_allclose(decoded, values, rtol=1e-6)
    exact = x.astype(np.float64) @ values.T
    np.testing.assert_allclose(product, exact, atol=1e-5 * np.abs(x).max() * np.abs(values).max())
    assert "'up.codes': expected U8" in refusal
