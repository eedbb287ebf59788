"""The backend packages: what they refuse and why, and what neither they nor core may name."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import humming_sm75_sm89
import humming_sm90
import humming_sm100
import humming_thead
from humming import plugins
from humming.backend import Backend, Evidence
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.hooks import hookimpl
from humming.profiles import DeviceProfile
from humming.selection import select_backend

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [humming_sm75_sm89, humming_sm90, humming_sm100, humming_thead]
BACKENDS: dict[str, type[Backend]] = {
    kind.name: kind for package in PACKAGES for kind in package.humming_register_backends()
}
PROFILES = [p for p in plugins.profiles().values() if p.vendor in ("nvidia", "thead", "cpu")]
NO_KERNELS = "no kernels in this version"
WITHOUT_KERNELS = ("sm100", "sm120", "thead")

#: Words for architectures and products. Core's Python and headers contain none of them.
ARCHITECTURE = re.compile(
    r"\bsm_?\d{2,3}[af]?\b|\b(turing|ampere|ada|lovelace|hopper|blackwell|rubin)\b|t-?head\b"
    r"|\bppu\b|zhenwu|\b(rtx|geforce|tesla)\b|\b(T4|A10|A100|L4|L40S?|H20|[HB][1-3]00|GB\d+)\b",
    re.IGNORECASE,
)


def test_there_are_five_backends_in_four_packages() -> None:
    assert sorted(BACKENDS) == ["sm100", "sm120", "sm75_sm89", "sm90", "thead"]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_mma_sync_runs_on_every_nvidia_device_and_the_others_run_or_want_kernels_at_home(
    profile: DeviceProfile,
) -> None:
    reasons = {name: kind.refuse_device(profile) for name, kind in BACKENDS.items()}
    accepting = [name for name, reason in reasons.items() if reason is None]
    wanting = [name for name, reason in reasons.items() if reason == NO_KERNELS]
    preferred = profile.target.backend
    assert accepting == ["sm75_sm89"] * (profile.vendor == "nvidia") + ["sm90"] * (
        preferred == "sm90"
    )
    assert wanting == [preferred] * (preferred in WITHOUT_KERNELS)
    for name, reason in reasons.items():
        assert name in accepting + wanting or profile.title in str(reason)


def test_a_refusal_names_the_instruction_and_what_the_device_lists() -> None:
    profiles = plugins.profiles()
    refuse = {name: kind.refuse_device for name, kind in BACKENDS.items()}
    t4, h200, thead = (profiles[n] for n in ("nvidia-t4", "nvidia-h200", "thead-zhenwu-810e"))
    assert refuse["sm90"](t4) == "needs wgmma; NVIDIA T4 lists mma"
    assert refuse["sm100"](h200) == "needs tcgen05; NVIDIA H200 lists wgmma, mma"
    assert refuse["sm120"](h200) == "needs mxmma; NVIDIA H200 lists wgmma, mma"
    assert refuse["sm75_sm89"](thead) == "for NVIDIA devices; T-Head Zhenwu 810E is none"
    none = replace(h200, features=replace(h200.features, mma=("wgmma",)))
    assert refuse["sm75_sm89"](none) == "for devices with mma; NVIDIA H200 lists wgmma"
    assert refuse["sm90"](thead) == "for NVIDIA devices; T-Head Zhenwu 810E is none"
    assert refuse["thead"](t4) == "for T-Head devices; NVIDIA T4 is none"


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_without_kernels_layers_are_refused_like_devices_and_no_evidence_is_claimed(
    name: str,
) -> None:
    (profile,) = [p for p in PROFILES if p.target.backend == name and p.match.product][:1]
    backend = BACKENDS[name](profile)
    assert backend.refuse(None, None) == NO_KERNELS  # type: ignore[arg-type]
    assert backend.evidence(profile) is Evidence.NONE


@pytest.mark.parametrize(
    ("profile", "weight", "activation", "sentence"),
    [
        ("nvidia-t4", "u4-g128-f16", "f16", None),
        ("nvidia-t4", "u4-g128-f16", "bf16", "bf16 activations need"),
        ("nvidia-a100", "e4m3fn-channel-f32", "e4m3fn-token-f32", "activations need"),
        ("nvidia-l40s", "e4m3fn-channel-f32", "e4m3fn-token-f32", None),
        ("nvidia-b200", "e2m1-g32-e8m0", "bf16", None),
        ("nvidia-b200", "e2m1-g32-e8m0", "e2m1-g32-e8m0", "multiplies f16, bf16, e4m3fn, e5m2"),
        ("nvidia-l40s", "e5m1-channel-f32", "f16", "are not decoded for"),
    ],
)
def test_a_layer_is_refused_for_numbers_that_mma_sync_does_not_multiply(
    profile: str, weight: str, activation: str, sentence: str | None
) -> None:
    layer = LayerConfig(
        n=64,
        k=128,
        weight=WeightScheme.parse(weight),
        activation=ActivationScheme.parse(activation),
        output=number_format("f16"),
    )
    refusal = BACKENDS["sm75_sm89"](plugins.profiles()[profile]).refuse(layer, ComputeConfig())
    assert refusal is None if sentence is None else sentence in str(refusal)


@pytest.mark.parametrize(
    ("weight", "activation", "kind", "name"),
    [
        ("u4-g128-f16", "f16", GemmKind.DENSE, "sm90"),
        ("e2m1-g32-e8m0", "bf16", GemmKind.INDEXED, "sm90"),
        ("u4-g128-f16", "s8-token-f32", GemmKind.GROUPED_MASKED, "sm90"),
        ("s8-channel-f32", "bf16", GemmKind.DENSE, "sm90"),
        ("e4m3fn-channel-f32", "e4m3fn-token-f32", GemmKind.DENSE, "sm90"),
        ("s8-channel-f32", "s8-token-f32", GemmKind.GROUPED_CONTIGUOUS, "sm90"),
        ("s8-channel-f32", "s8-token-f32", GemmKind.INDEXED, "sm90"),
        ("s8-g128-f32", "s8-token-f32", GemmKind.INDEXED, "sm90"),
    ],
)
def test_a_hopper_gets_its_own_kernels_where_they_are_accepted(
    weight: str, activation: str, kind: GemmKind, name: str
) -> None:
    layer = LayerConfig(
        n=64,
        k=128,
        experts=0 if kind is GemmKind.DENSE else 4,
        weight=WeightScheme.parse(weight),
        activation=ActivationScheme.parse(activation),
        output=number_format("f16"),
    )
    compute = ComputeConfig(gemm=kind)
    found = select_backend(profile="nvidia-h200", layer=layer, compute=compute)
    assert found.name == name
    refusal = BACKENDS["sm90"](found.profile).refuse(layer, compute)
    assert (refusal is None) == (name == "sm90")


def test_importing_the_packages_imports_neither_torch_nor_a_backend() -> None:
    names = [package.__name__ for package in PACKAGES]
    unwanted = ["torch", *(f"{name}.backend" for name in names)]
    code = f"import sys, {', '.join(names)}; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_thead_recognises_its_devices_and_leaves_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    facts = SimpleNamespace(
        name="PPU-ZW810E",
        major=8,
        minor=0,
        multi_processor_count=80,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: facts)
    identity = humming_thead.humming_identify_device(0)
    assert identity is not None
    assert (identity.vendor, identity.capability) == ("thead", (8, 0))
    assert "sm_count" not in identity.limits  # what this driver says of it is not to be trusted
    assert humming_thead.humming_identify_device(1) is None
    facts.name = "NVIDIA H200"
    assert humming_thead.humming_identify_device(0) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert humming_thead.humming_identify_device(0) is None


def test_the_hooks_of_the_packages_are_marked() -> None:
    marker = next(iter(vars(hookimpl(lambda: None))))
    for package in PACKAGES:
        hooks = [value for name, value in vars(package).items() if name.startswith("humming_")]
        assert any(hasattr(hook, marker) for hook in hooks)


@pytest.mark.parametrize("word", ["sm_90", "sm90a", "Hopper", "PPU", "H20", "T-Head", "RTX 4090"])
def test_the_expression_for_architectures_finds_them(word: str) -> None:
    assert ARCHITECTURE.search(f"for {word} only")


def test_core_names_no_architecture() -> None:
    core = ROOT / "packages/humming-core/src/humming"
    files = [f for f in core.rglob("*") if f.suffix in (".py", ".cuh", ".h", ".cu", ".j2")]
    assert len(files) > 20
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if ARCHITECTURE.search(line)
    ]
    assert found == []
