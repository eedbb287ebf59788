"""The runtime "sim": devices of humming's profiles, and kernels given as PTX."""

from __future__ import annotations

import pytest
import torch
from sim_reverse import RACY, REVERSE

from humming import plugins
from humming.backend import LaunchShape, Runtime
from humming.errors import ConfigError, LaunchError
from humming.plugins import Registry
from humming.selection import device_names, find_device, select_backend
from humming_sim import launching, plugin
from humming_sim.plugin import LoadedKernel, SimulatorRuntime
from humming_sim.ptx.model import Module
from humming_sim.ptx.reader import read_module

NAMES = SimulatorRuntime().devices()
BLOCK = LaunchShape(grid=(1, 1, 1), block=(256, 1, 1))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is known, whether or not its distribution is installed."""
    (runtime,) = plugin.humming_register_runtimes()
    known = {**plugins.runtimes(), runtime.name: runtime}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)


def load(ptx: str) -> LoadedKernel:
    return SimulatorRuntime().load(ptx.encode(), "reverse")


# -- devices ---------------------------------------------------------------------------------------


def test_the_plugin_offers_a_runtime_without_a_failure() -> None:
    class Point:
        name, dist = "sim", None

        @staticmethod
        def load() -> object:
            return plugin

    registry = Registry([Point])  # type: ignore[list-item]
    assert registry.failures == ()
    assert isinstance(registry.runtimes["sim"], Runtime)


@pytest.mark.parametrize("name", NAMES)
def test_each_device_is_found_with_its_own_profile(name: str) -> None:
    found = find_device(f"sim:{name}")
    assert (found.profile.name, found.runtime) == (name, "sim")
    assert found.identity is not None
    assert found.identity.torch_device == "cpu"
    assert found.profile == plugins.profiles()[name]  # its limits are those of the profile


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_device_gets_the_backend_that_the_real_one_would(name: str) -> None:
    chosen = select_backend(device=f"sim:{name}")
    assert (chosen.name, chosen.profile.name) == (select_backend(profile=name).name, name)


@pytest.mark.parametrize("name", ["host-cpu", "thead-zhenwu-810e", "b200", ""])
def test_what_is_not_simulated_is_nobody(name: str) -> None:
    assert SimulatorRuntime().identify(name) is None
    assert name not in NAMES


def test_simulated_devices_are_listed_apart_from_those_that_are_there() -> None:
    there, simulated = device_names()
    assert {f"sim:{name}" for name in NAMES} <= set(simulated)
    assert there[0] == "cpu"
    assert not any(device.startswith("sim:") for device in there)


def test_an_unknown_one_is_an_error_that_lists_those_of_the_runtime() -> None:
    with pytest.raises(ConfigError, match=r"that is there: cpu.* sim:nvidia-b200"):
        find_device("sim:b200")
    with pytest.raises(ConfigError) as error:
        find_device("cuda:99")
    assert "sim:" not in str(error.value)


# -- kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_a_kernel_runs_on_cpu_tensors(dtype: torch.dtype) -> None:
    source, target = torch.arange(256, dtype=dtype), torch.zeros(256, dtype=dtype)
    SimulatorRuntime().launch(load(REVERSE), BLOCK, [source, target], {})
    assert torch.equal(target, source.flip(0))


def test_a_text_is_read_once_for_loading_and_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counting(text: str) -> Module:
        read.append(text)
        return read_module(text)

    monkeypatch.setattr(launching, "read_module", counting)
    kernel = load(f"// nobody else's\n{REVERSE}")
    for _ in range(2):
        SimulatorRuntime().launch(kernel, BLOCK, [torch.ones(256), torch.zeros(256)], {})
    assert read == [kernel.ptx]


def test_grid_cluster_and_dynamic_shared_memory_reach_the_kernel() -> None:
    ptx = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry reverse(.param .u64 out)
{
    .reg .b32 %r<4>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %ctaid.x;
    mad.wide.u32 %rd1, %r0, 12, %rd0;
    mov.u32 %r1, %cluster_nctaid.x;
    mov.u32 %r2, %nctaid.x;
    mov.u32 %r3, %dynamic_smem_size;
    st.global.u32 [%rd1], %r1;
    st.global.u32 [%rd1+4], %r2;
    st.global.u32 [%rd1+8], %r3;
    ret;
}
"""
    shape = LaunchShape(grid=(4, 1, 1), block=(1, 1, 1), cluster=(2, 1, 1), shared_bytes=48)
    out = torch.zeros(4, 3, dtype=torch.int32)
    SimulatorRuntime().launch(load(ptx), shape, [out], {})
    assert out.tolist() == [[2, 4, 48]] * 4
    alone = LaunchShape(grid=(4, 1, 1), block=(1, 1, 1))
    SimulatorRuntime().launch(load(ptx), alone, [out], {})
    assert out.tolist() == [[1, 4, 0]] * 4


def test_a_seed_runs_another_order_and_a_finding_is_a_launch_error() -> None:
    source, target = torch.arange(256.0), torch.zeros(256)
    SimulatorRuntime().launch(load(RACY), BLOCK, [source, target], {})
    assert torch.equal(target, source.flip(0))
    target.zero_()
    with pytest.raises(LaunchError, match=r"(?s)reverse .*\[uninitialised\].*ld.shared.b32"):
        SimulatorRuntime().launch(load(RACY), BLOCK, [source, target], {"seed": 1})
    assert not target.any()


def test_the_limits_are_those_of_the_architecture() -> None:
    assert load(REVERSE).device == load(REVERSE).device
    target = REVERSE.replace("sm_80", "sm_86")
    shape = LaunchShape(grid=(1, 1, 1), block=(256, 1, 1), shared_bytes=101_376)
    tensors = [torch.zeros(256), torch.zeros(256)]
    SimulatorRuntime().launch(load(REVERSE), shape, tensors, {})
    with pytest.raises(LaunchError, match="needs 102400 bytes of shared memory"):
        SimulatorRuntime().launch(load(target), shape, tensors, {})


def test_ptx_for_no_profile_has_no_limits() -> None:
    assert load(REVERSE.replace("sm_80", "sm_88")).device is None


def test_text_may_end_in_a_zero_as_compilers_leave_it() -> None:
    assert SimulatorRuntime().load(REVERSE.encode() + b"\0", "reverse").ptx == REVERSE


@pytest.mark.parametrize(
    ("binary", "message"),
    [
        (b"\x7fELF\xff\xfe", r"reverse \[loading\]: this is no PTX"),
        (b"hello", r"reverse \[loading\]: this is no PTX"),
        (REVERSE.replace("reverse(", "other(").encode(), "not in the PTX, which has other"),
    ],
)
def test_what_can_not_be_loaded_is_a_launch_error(binary: bytes, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        SimulatorRuntime().load(binary, "reverse")


def test_a_wrong_option_or_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"options=\['pdl'\]: expected seed or nothing"):
        SimulatorRuntime().launch(load(REVERSE), BLOCK, [], {"pdl": 1})
    with pytest.raises(ConfigError, match="kernel=None"):
        SimulatorRuntime().launch(None, BLOCK, [], {})


def test_a_prepared_launch_gives_changing_slots_their_values() -> None:
    source, target = torch.arange(256.0), torch.zeros(256)
    other = torch.zeros(256)
    runtime = SimulatorRuntime()
    run = runtime.prepare(load(REVERSE), ("ptr", "ptr"), [source, None], {}, changing=(1,))
    run(BLOCK, target)
    run(BLOCK, other)
    assert torch.equal(target, source.flip(0))
    assert torch.equal(other, target)
    with pytest.raises(ConfigError, match="changed=0: expected 1 values"):
        run(BLOCK)
    with pytest.raises(ConfigError, match="args=1: expected 2 values"):
        runtime.prepare(load(REVERSE), ("ptr", "ptr"), [source], {})
    with pytest.raises(ConfigError, match="different numbers below 2"):
        runtime.prepare(load(REVERSE), ("ptr", "ptr"), [source, target], {}, changing=(2,))
