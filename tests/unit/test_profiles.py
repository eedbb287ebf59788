"""The shipped device profiles, and how a device finds its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from humming import plugins
from humming.profiles import DeviceIdentity, DeviceProfile, best_matches

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "device_profiles"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.toml"))

#: What the issue asks for.
PRODUCTS = """nvidia-t4 nvidia-a100 nvidia-a10 nvidia-l40s nvidia-rtx-4090 nvidia-h100 nvidia-h20
    nvidia-h200 nvidia-gh200 nvidia-b200 nvidia-b300 nvidia-thor nvidia-rtx-5090
    nvidia-rtx-pro-6000 nvidia-gb10 thead-zhenwu-810e""".split()

#: Capability, compiler target and the backend that is documented for it.
FAMILIES = [
    ((7, 5), "sm_75", "sm75_sm89"),
    ((8, 0), "sm_80", "sm75_sm89"),
    ((8, 6), "sm_86", "sm75_sm89"),
    ((8, 7), "sm_87", "sm75_sm89"),
    ((8, 9), "sm_89", "sm75_sm89"),
    ((9, 0), "sm_90a", "sm90"),
    ((10, 0), "sm_100a", "sm100"),
    ((10, 3), "sm_103a", "sm100"),
    ((11, 0), "sm_110a", "sm100"),
    ((12, 0), "sm_120a", "sm120"),
    ((12, 1), "sm_121a", "sm120"),
]

#: Names that other products report, which must not get a product's profile.
NEIGHBOURS = [
    ("NVIDIA H200 NVL", (9, 0), "family-sm90"),
    ("NVIDIA H20-3e", (9, 0), "family-sm90"),
    ("NVIDIA H800", (9, 0), "family-sm90"),
    ("NVIDIA GH200 144G HBM3e", (9, 0), "family-sm90"),
    ("NVIDIA A10G", (8, 6), "family-sm86"),
    ("NVIDIA A100X", (8, 0), "family-sm80"),
    ("NVIDIA L40", (8, 9), "family-sm89"),
    ("NVIDIA GeForce RTX 4090 D", (8, 9), "family-sm89"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), "family-sm89"),
    ("NVIDIA GB200", (10, 0), "family-sm100"),
    ("NVIDIA GB300", (10, 3), "family-sm103"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), "family-sm120"),
    ("NVIDIA GeForce RTX 2080 Ti", (7, 5), "family-sm75"),
    ("Orin", (8, 7), "family-sm87"),
]


def device(name: str, capability: tuple[int, int], vendor: str = "nvidia") -> DeviceIdentity:
    return DeviceIdentity(name=name, vendor=vendor, capability=capability, limits={})


def match(identity: DeviceIdentity) -> list[str]:
    return [profile.name for profile in best_matches(plugins.profiles().values(), identity)]


def shipped(name: str) -> DeviceProfile:
    return plugins.profiles()[name]


def test_every_shipped_file_is_read_through_the_package() -> None:
    assert set(SHIPPED) <= set(plugins.profiles())


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_product_that_was_asked_for_has_a_profile(name: str) -> None:
    assert shipped(name).match.product is not None


@pytest.mark.parametrize("name", SHIPPED)
def test_every_reported_name_finds_its_own_profile_alone(name: str) -> None:
    profile = shipped(name)
    for reported in profile.match.reported:
        found = match(device(reported, profile.capability or (8, 0), profile.vendor))
        assert found == [name]


@pytest.mark.parametrize(("reported", "capability", "family"), NEIGHBOURS)
def test_a_neighbouring_product_falls_to_its_family(
    reported: str, capability: tuple[int, int], family: str
) -> None:
    assert match(device(reported, capability)) == [family]


@pytest.mark.parametrize(("capability", "arch", "backend"), FAMILIES)
def test_a_capability_has_the_documented_target_and_backend(
    capability: tuple[int, int], arch: str, backend: str
) -> None:
    (name,) = match(device("some product", capability))
    family = shipped(name)
    assert name.startswith("family-")
    assert (family.target.arch, family.target.backend) == (arch, backend)


def test_products_agree_with_their_family() -> None:
    families = {p.capability: p for p in plugins.profiles().values() if p.name[:7] == "family-"}
    assert len(families) == len(FAMILIES)
    for name in SHIPPED:
        profile = shipped(name)
        if profile.vendor != "nvidia":
            continue
        family = families[profile.capability]
        assert profile.target == family.target
        assert profile.features == family.features
        for field in ("smem_block_bytes", "smem_sm_bytes", "registers", "threads"):
            assert getattr(profile.limits, field) == getattr(family.limits, field), name


@pytest.mark.parametrize("capability", [(7, 0), (7, 2), (6, 1), (13, 0)])
def test_no_profile_takes_a_capability_that_nobody_wrote_one_for(
    capability: tuple[int, int],
) -> None:
    assert match(device("Tesla V100-SXM2-16GB", capability)) == []


def test_another_vendor_does_not_get_an_nvidia_profile() -> None:
    assert match(device("NVIDIA H200", (9, 0), "acme")) == []
    assert match(device("PPU-ZW810E", (8, 0), "thead")) == ["thead-zhenwu-810e"]
    assert match(device("PPU-ZW810E", (8, 0), "nvidia")) == ["family-sm80"]


def test_activations_grow_with_the_generations() -> None:
    def of(name: str) -> set[str]:
        return set(shipped(name).activations)

    assert of("nvidia-t4") == {"f16", "s8", "s4"}
    assert of("nvidia-a100") - of("nvidia-t4") == {"bf16"}
    assert of("nvidia-l40s") - of("nvidia-a100") == {"e4m3fn", "e5m2"}
    assert of("nvidia-h200") == of("nvidia-l40s")
    assert of("nvidia-b200") - of("nvidia-h200") == {"e2m1", "e2m3", "e3m2", "e3m4", "e0m3"}
    assert of("nvidia-b200") - of("nvidia-thor") == {"e3m4", "e0m3"}
    assert of("nvidia-rtx-5090") == of("nvidia-b200")
    assert of("thead-zhenwu-810e") == {"f16", "bf16", "s8"}
    assert {"f32", "e2m1", "s3", "e0m7"} < of("host-cpu")


def test_live_limits_win_and_differences_are_told() -> None:
    profile = shipped("nvidia-h200")
    live = DeviceIdentity(
        name="NVIDIA H200",
        vendor="nvidia",
        capability=(9, 0),
        limits={"sm_count": 114, "threads": 2048, "tmem_columns": 7, "unheard_of": 1},
    )
    adjusted, different = profile.with_live_limits(live)
    assert different == {"sm_count": (132, 114)}
    assert adjusted.limits.sm_count == 114
    assert adjusted.limits.tmem_columns == 7  # unknown to the profile: nothing to disagree with
    assert adjusted.limits.smem_block_bytes == profile.limits.smem_block_bytes
    assert profile.limits.sm_count == 132


def test_the_readme_names_every_key_that_the_reader_knows() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(?:match|target|limits|rates|features)\.(\w+)`", text))
    profile = shipped("nvidia-h200")
    known: set[str] = set()
    for part in (profile.match, profile.target, profile.limits, profile.rates, profile.features):
        known |= set(part.__dataclass_fields__)
    assert documented == known


def test_profiles_can_be_keys() -> None:
    assert len({shipped(name) for name in SHIPPED}) == len(SHIPPED)
