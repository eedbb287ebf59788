"""Devices by the names of humming's profiles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_reverse import REVERSE

from humming import plugins
from humming_sim import Device, LaunchError, launch
from humming_sim.profiles import device_from_profile, device_of, limits_of, simulated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILES: dict[str, dict[str, Any]] = {
    path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parents[2] / "device_profiles").glob("*.toml"))
}
NVIDIA = [name for name, file in PROFILES.items() if file["match"]["vendor"] == "nvidia"]


@pytest.mark.parametrize("name", NVIDIA)
def test_every_nvidia_profile_is_a_device_with_the_limits_of_its_file(name: str) -> None:
    device, file = device_from_profile(name), PROFILES[name]
    limits = file["limits"]
    assert (device.name, device.arch) == (file["title"], file["target"]["arch"])
    assert device.shared_bytes == limits["smem_block_bytes"]
    assert device.registers == limits["registers"] == 65536
    assert device.max_cluster == limits.get("max_cluster", 1)
    assert device.threads == 1024


def test_what_is_simulated_are_the_nvidia_profiles_by_name() -> None:
    assert list(simulated(plugins.profiles())) == sorted(NVIDIA)


def test_devices_of_one_architecture_have_the_same_limits() -> None:
    by_arch: dict[str, set[tuple[int, ...]]] = {}
    for profile in simulated(plugins.profiles()).values():
        device = limits_of(profile)
        limits = (device.shared_bytes, device.registers, device.max_cluster, device.threads)
        by_arch.setdefault(device.arch, set()).add(limits)
    assert {arch: len(limits) for arch, limits in by_arch.items()} == dict.fromkeys(by_arch, 1)


def test_a_device_and_none_stay_what_they_are() -> None:
    device = Device(name="x", arch="sm_90a", shared_bytes=1)
    assert device_of(device) is device
    assert device_of(None) is None
    assert device_of("nvidia-t4") == device_from_profile("nvidia-t4")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nvidia-h2000", "no device profile 'nvidia-h2000'; did you mean nvidia-h200"),
        ("xyz", "no device profile 'xyz'; `humming profiles` lists them"),
        ("host-cpu", r"host CPU \('host-cpu'\) is not simulated; there are .*nvidia-b200"),
        ("thead-zhenwu-810e", "T-Head Zhenwu 810E .* is not simulated"),
    ],
)
def test_other_names_are_refused_with_what_would_do(name: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        device_from_profile(name)


PROFILE = """
schema = 1
title = "X"
[match]
vendor = "nvidia"
[features]
mma = []
activations = ["f16"]
tma = false
pdl = false
[target]
arch = "{arch}"
[limits]
smem_block_bytes = 1000
[sources]
limits = "none"
"""


@pytest.mark.parametrize(
    ("arch", "is_simulated"), [("sm_75", True), ("sm_70", False), ("x", False)]
)
def test_a_profile_of_ones_own_is_simulated_if_its_architecture_is(
    arch: str, is_simulated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-x.toml").write_text(PROFILE.format(arch=arch), encoding="utf-8")
    monkeypatch.setenv("HUMMING_PROFILE_PATH", str(tmp_path))
    if is_simulated:
        wanted = Device(name="X", arch=arch, shared_bytes=1000)
        assert device_from_profile("my-x") == wanted
    else:
        with pytest.raises(LaunchError, match="not simulated"):
            device_from_profile("my-x")


def test_profiles_that_can_not_be_read_are_a_launch_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_PROFILE_PATH", "/no/such/folder")
    with pytest.raises(LaunchError, match=r"can't be read: .*no/such/folder"):
        device_from_profile("nvidia-h200")


def test_without_humming_core_a_name_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "humming", None)
    with pytest.raises(LaunchError, match=r"'nvidia-h200' .* Install humming-sim\[humming\]"):
        device_from_profile("nvidia-h200")


@pytest.mark.parametrize(
    ("device", "smem", "message"),
    [
        ("nvidia-a10", 101_376 - 1024, None),
        ("nvidia-a10", 101_376 - 1023, "needs 101377 bytes of shared memory"),
        ("nvidia-a100", 101_376, None),
        ("nvidia-t4", 0, r"PTX for sm_80 doesn't run on NVIDIA T4 \(sm_75\)"),
    ],
)
def test_a_launch_keeps_to_the_limits_of_its_device(
    device: str, smem: int, message: str | None
) -> None:
    args = [np.zeros(256, np.float32), np.ones(256, np.float32)]
    if message is None:
        launch(REVERSE, "reverse", 1, 256, args, smem=smem, device=device)
        assert not args[1].any()
    else:
        with pytest.raises(LaunchError, match=message):
            launch(REVERSE, "reverse", 1, 256, args, smem=smem, device=device)
