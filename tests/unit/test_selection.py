"""Which device is meant, which backend gets it, and what a refusal says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from humming import devices, plugins
from humming.backend import Backend
from humming.configs import ComputeConfig, LayerConfig
from humming.errors import (
    ConfigError,
    NoBackendError,
    PluginError,
    ProfileError,
    UnsupportedError,
)
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.launching import CudaRuntime
from humming.plugins import InstalledBackend, Plugin, PluginFailure
from humming.profiles import DeviceIdentity, DeviceProfile
from humming.reference import ReferenceBackend
from humming.selection import device_names, find_device, select_backend, verdicts
from humming.selection.notice import log_once

LAYER = LayerConfig(
    n=8,
    k=32,
    weight=WeightScheme.parse("u4-g32-f16"),
    activation=ActivationScheme.parse("f16"),
    output=number_format("f16"),
)


def make_backend(
    name: str,
    device: str | None = None,
    layer: str | None = None,
    *,
    fallback: bool = False,
    error: Exception | None = None,
) -> type[Backend]:
    def refuse_device(cls: type[Backend], profile: DeviceProfile) -> str | None:
        if error is not None:
            raise error
        return device

    def refuse(self: Backend, layer_: LayerConfig, compute: ComputeConfig) -> str | None:
        return layer

    body = {"name": name, "fallback": fallback, "refuse": refuse}
    return type(name, (Backend,), {**body, "refuse_device": classmethod(refuse_device)})


Install = Callable[..., None]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUMMING_BACKEND", raising=False)
    log_once.cache_clear()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretend that these backends, and the reference, are what is installed."""

    def pretend(*kinds: type[Backend], failures: Sequence[PluginFailure] = ()) -> None:
        found = {
            kind.name: InstalledBackend(kind, f"humming-{kind.name}", "1.2")
            for kind in (*kinds, ReferenceBackend)
        }
        monkeypatch.setattr(plugins, "backends", lambda: found)
        monkeypatch.setattr(plugins, "failures", lambda: tuple(failures))

    return pretend


def h200(**target: str) -> DeviceProfile:
    profile = plugins.profiles()["nvidia-h200"]
    return replace(profile, target=replace(profile.target, **target))


# -- backends --------------------------------------------------------------------------------------


def test_the_profiles_preference_wins_over_another_acceptor(install: Install) -> None:
    install(make_backend("other"), make_backend("mine"))
    assert select_backend(profile=h200(backend="mine")).name == "mine"


def test_the_only_acceptor_is_taken_without_a_preference(install: Install) -> None:
    install(make_backend("no", "never"), make_backend("yes"))
    assert select_backend(profile=h200(backend="")).name == "yes"


def test_the_only_acceptor_is_taken_if_the_preferred_one_refuses(install: Install) -> None:
    install(make_backend("mine", "not today"), make_backend("yes"))
    assert select_backend(profile=h200(backend="mine")).name == "yes"


def test_the_environment_wins_over_the_preference_and_a_name_over_both(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(make_backend("one"), make_backend("two"), make_backend("mine"))
    monkeypatch.setenv("HUMMING_BACKEND", "two")
    assert select_backend(profile=h200(backend="mine")).name == "two"
    assert select_backend("one", profile=h200(backend="mine")).name == "one"


def test_two_unpreferred_acceptors_are_an_error_that_lists_both(install: Install) -> None:
    install(make_backend("one"), make_backend("two"))
    with pytest.raises(UnsupportedError) as caught:
        select_backend(profile=h200(backend="three"))
    assert "one (humming-one 1.2), two (humming-two 1.2)" in str(caught.value)
    assert "reference" not in str(caught.value)


def test_a_fallback_counts_only_if_no_other_accepts_and_is_logged_once(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(make_backend("mine", "no kernels"))
    for _ in range(3):
        assert select_backend(profile=h200(backend="mine")).name == "reference"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "NVIDIA H200: no other backend accepts, using 'reference' "
        "(mine of humming-mine 1.2: no kernels)"
    )


def test_the_log_names_a_preferred_backend_that_is_not_installed(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install()
    select_backend(profile=h200(backend="mine"))
    assert "the backend for this device, 'mine', is not installed" in caplog.text


def test_on_the_host_a_fallback_is_no_warning(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install()
    select_backend(device="cpu")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_refused_layer_lists_every_backend_with_version_and_reason(install: Install) -> None:
    failed = PluginFailure(Plugin("acme", "acme-humming", "0.3"), ModuleNotFoundError("acme_rt"))
    install(
        make_backend("one", "wrong device"), make_backend("two", None, "odd n"), failures=[failed]
    )
    promise = ComputeConfig(batch_invariant=True)
    with pytest.raises(NoBackendError) as caught:
        select_backend(profile=h200(backend="mine"), layer=LAYER, compute=promise)
    text = str(caught.value)
    assert "no backend accepts NVIDIA H200 for [8, 32] u4-g32-f16 x f16 -> f16" in text
    rows = {reason.backend: reason for reason in caught.value.reasons}
    assert rows["one"].reason == "wrong device"
    assert rows["one"].distribution == "humming-one 1.2"
    assert rows["two"].reason == "odd n"
    assert "same bits" in rows["reference"].reason
    assert rows["acme"].distribution == "acme-humming 0.3"
    assert rows["acme"].reason == "failed to load: ModuleNotFoundError: acme_rt"
    assert "'mine', is not installed" in text


def test_a_named_backend_that_refuses_is_never_replaced(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(make_backend("mine", "not today"), make_backend("yes"))
    with pytest.raises(NoBackendError, match=r"as 'mine' \(a named backend is never") as caught:
        select_backend("mine", profile=h200())
    assert caught.value.reasons[0].reason == "not today"
    assert {reason.backend: reason.reason for reason in caught.value.reasons}[
        "yes"
    ] == "would accept"
    monkeypatch.setenv("HUMMING_BACKEND", "mine")
    with pytest.raises(NoBackendError, match="not today"):
        select_backend(profile=h200())


def test_an_unknown_name_is_told_with_those_that_are_installed(install: Install) -> None:
    install(make_backend("one"))
    with pytest.raises(ConfigError, match=r"backend='oen': expected .* one, reference"):
        select_backend("oen", profile=h200())


def test_naming_a_backend_that_failed_raises_its_error(install: Install) -> None:
    cause = ModuleNotFoundError("acme_rt")
    install(failures=[PluginFailure(Plugin("acme", "acme-humming", "0.3"), cause)])
    with pytest.raises(PluginError, match=r"'acme' \(acme-humming 0.3\): .*acme_rt") as caught:
        select_backend("acme", profile=h200())
    assert caught.value.__cause__ is cause


def test_a_backend_that_raises_is_shown_and_hides_no_other(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(make_backend("sick", error=KeyError("sm")), make_backend("well"))
    assert select_backend(profile=h200(backend="sick")).name == "well"
    assert "fails to judge" in caplog.text
    (sick,) = [v for v in verdicts(h200()) if v.name == "sick"]
    assert sick.reason == "fails: KeyError: 'sm'"


def test_the_chosen_backend_knows_its_profile(install: Install) -> None:
    install(make_backend("mine"))
    assert select_backend(profile="nvidia-b200").profile.name == "nvidia-b200"


# -- devices ---------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that torch sees one device of this name and capability."""
    import torch

    def pretend(name: str, major: int, minor: int, **properties: int) -> None:
        facts = SimpleNamespace(name=name, major=major, minor=minor, **properties)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: facts)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda ordinal: name)

    return pretend


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda: 0)


@pytest.mark.parametrize("spelled", [None, 0, "cuda", "cuda:0"])
def test_a_visible_gpu_is_found_however_it_is_spelled(
    gpu: Callable[..., None], spelled: object
) -> None:
    gpu("NVIDIA H20", 9, 0, multi_processor_count=78)
    found = find_device(spelled)
    assert (found.profile.name, found.runtime, str(found)) == ("nvidia-h20", "cuda", "NVIDIA H20")
    assert found.identity is not None
    assert found.identity.torch_device == "cuda:0"


def test_live_limits_win_with_one_warning_that_has_both_numbers(
    gpu: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    gpu("NVIDIA H200", 9, 0, multi_processor_count=66, shared_memory_per_block_optin=232448)
    for _ in range(2):
        assert find_device(0).profile.limits.sm_count == 66
    (record,) = caplog.records
    assert "sm_count is 66, profile nvidia-h200 says 132; using 66" in record.getMessage()


@pytest.mark.parametrize(("name", "capability"), [("Tesla V100", (7, 0)), ("Tesla P4", (6, 1))])
def test_a_device_below_all_profiles_is_refused_clearly(
    gpu: Callable[..., None], name: str, capability: tuple[int, int]
) -> None:
    gpu(name, *capability)
    with pytest.raises(UnsupportedError) as caught:
        select_backend()
    dotted = ".".join(map(str, capability))
    assert f"{name} (vendor nvidia, capability {dotted}) is not supported" in str(caught.value)
    assert "with a profile: 7.5, 8.0, 8.6" in str(caught.value)
    assert "HUMMING_PROFILE_PATH" in str(caught.value)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_host_is_meant() -> None:
    found = find_device()
    assert (found.profile.name, found.runtime, str(found)) == ("host-cpu", "", "host CPU")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("spelled", [0, 7, "cuda", "cuda:0", "cuda:x", "cuda:-1", -1])
def test_a_gpu_that_is_not_there_is_an_error_that_says_what_is(spelled: object) -> None:
    with pytest.raises(ConfigError, match="a device that is there: cpu"):
        find_device(spelled)


@pytest.mark.parametrize("spelled", ["nosuch:nvidia-b200", "gpu", "cpu:1", "", True, 1.5])
def test_an_unknown_device_is_an_error_that_lists_the_runtimes(spelled: object) -> None:
    with pytest.raises(ConfigError, match=r"an ordinal, cpu, cuda:DEVICE"):
        find_device(spelled)


class Simulator:
    name = "sim"

    def identify(self, device: str) -> DeviceIdentity | None:
        if device != "nvidia-b200":
            return None
        return DeviceIdentity(name="NVIDIA B200", vendor="nvidia", capability=(10, 0), limits={})

    def devices(self) -> list[str]:
        return ["nvidia-b200"]

    def load(self, *_: Any) -> None: ...
    def launch(self, *_: Any) -> None: ...
    def prepare(self, *_: Any) -> None: ...


def test_simulated_devices_are_named_apart_and_a_runtime_that_fails_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, gpu: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Simulator):
        def devices(self) -> list[str]:
            raise ConfigError("devices", "none", "some")

    gpu("NVIDIA H20", 9, 0)
    known = {"bad": Failing(), "cuda": plugins.runtimes()["cuda"], "simu": Simulator()}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    assert device_names() == (["cpu", "cuda:0"], ["simu:nvidia-b200"])
    assert "runtime bad can't list its devices: devices='none': expected some" in caplog.text


def test_another_runtime_is_asked_for_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**plugins.runtimes(), "sim": Simulator()}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    found = find_device("sim:nvidia-b200")
    assert (found.profile.name, found.runtime) == ("nvidia-b200", "sim")
    with pytest.raises(ConfigError, match="sim:nvidia-b200"):
        find_device("sim:nvidia-t4")


def test_a_profile_can_be_named_or_given_or_read(tmp_path: Path) -> None:
    named = find_device(profile="nvidia-b200")
    assert (named.profile.title, named.identity, str(named)) == ("NVIDIA B200", None, "NVIDIA B200")
    assert find_device(profile=named.profile).profile is named.profile
    file = tmp_path / "mine.toml"
    shipped = Path(__file__).resolve().parents[2] / "device_profiles/nvidia-b200.toml"
    file.write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    assert find_device(profile=file).profile.name == "mine"
    assert find_device(profile=str(file)).profile.name == "mine"
    with pytest.raises(ProfileError):
        find_device(profile=tmp_path / "other.toml")
    with pytest.raises(ConfigError, match="nvidia-b200"):
        find_device(profile="nvidia-b2000")


def test_a_named_profile_overrides_what_a_live_device_matches(gpu: Callable[..., None]) -> None:
    gpu("NVIDIA H200", 9, 0, multi_processor_count=132)
    found = find_device(0, "nvidia-h20")
    assert found.profile.name == "nvidia-h20"
    assert found.profile.limits.sm_count == 132


def test_the_users_folders_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "device_profiles/nvidia-t4.toml").read_text()
    for folder, title in (("a", "first"), ("b", "second")):
        (tmp_path / folder).mkdir()
        changed = text.replace('title = "NVIDIA T4"', f'title = "{title}"')
        (tmp_path / folder / "nvidia-t4.toml").write_text(changed, encoding="utf-8")
    monkeypatch.setenv("HUMMING_PROFILE_PATH", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert find_device(profile="nvidia-t4").profile.title == "first"
    assert find_device(profile="nvidia-h200").profile.title == "NVIDIA H200"
    (tmp_path / "b" / "copy.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("HUMMING_PROFILE_PATH", str(tmp_path / "b"))
    identity = DeviceIdentity(name="Tesla T4", vendor="nvidia", capability=(7, 5), limits={})
    monkeypatch.setattr(plugins, "identify_device", lambda ordinal: identity)
    with pytest.raises(UnsupportedError, match=r"several device profiles match Tesla T4.*copy"):
        find_device(0)
    monkeypatch.setenv("HUMMING_PROFILE_PATH", str(tmp_path / "none"))
    with pytest.raises(ProfileError, match="no such folder"):
        find_device(profile="nvidia-t4")


def test_the_cuda_runtime_knows_what_torch_sees(gpu: Callable[..., None]) -> None:
    gpu("NVIDIA H200", 9, 0, multi_processor_count=132, major_version=1)
    runtime = CudaRuntime()
    assert list(runtime.devices()) == ["0"]
    identity = runtime.identify("0")
    assert identity is not None
    assert identity.limits == {"sm_count": 132}
    assert runtime.identify("1") is runtime.identify("x") is runtime.identify("-1") is None
