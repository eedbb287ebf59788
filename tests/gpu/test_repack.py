"""The kernel that lays out codes, on a real device: as torch does, and nothing beside it."""

from __future__ import annotations

import core_oracle as oracle
import pytest
import torch
from repack_cases import KINDS, case, ordered, program

from humming.jit import compile_program
from humming.launching import CudaRuntime
from humming.weight import CanonicalWeight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

GUARD = 1 << 16
POISON = -0x21524111


def device_arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def check(weight: CanonicalWeight, unit: int, how: str, arch: str = "", shift: int = 0) -> None:
    """Bits and guards; the codes begin `shift` behind where an allocation begins."""
    memory = torch.full((weight.packed.numel() + shift + 64,), 0xEE, dtype=torch.uint8).cuda()
    packed = memory[shift : shift + weight.packed.numel()].view(weight.packed.shape)
    on_device = weight.to("cuda").replace(packed=packed.copy_(weight.packed))
    found = case(on_device, unit, arch or device_arch())
    spec = found.spec
    assert spec.kernel.name.endswith(how)
    lead, words = spec.out_shape
    guarded = torch.full((lead * words + 2 * GUARD,), POISON, dtype=torch.int32, device="cuda")
    out = guarded[GUARD:-GUARD]
    values = {**spec.values, "packed": found.weight.packed.contiguous(), "out": out}
    runtime = CudaRuntime()
    kind = "ptx" if arch else "cubin"
    handle = runtime.load(compile_program(program(spec, kind)).data, spec.kernel.entry)
    kinds = [arg.kind for arg in spec.kernel.args]
    arguments = [values[arg.name] for arg in spec.kernel.args]
    runtime.prepare(handle, kinds, arguments, {})(spec.shape)
    torch.cuda.synchronize()
    expected = found.expected().tensors["weight"]
    assert torch.equal(out.view(lead, words), expected)
    assert bool((guarded[:GUARD] == POISON).all())
    assert bool((guarded[-GUARD:] == POISON).all())


@pytest.mark.parametrize(("bits", "unit"), KINDS)
def test_every_width_in_every_unit(bits: int, unit: int) -> None:
    check(oracle.random_weight(f"s{bits}-channel-f32", 200, 2560, seed=bits), unit, "wide")
    check(oracle.random_weight(f"s{bits}-channel-f32", 200, 4101, seed=bits), unit, "any")
    check(ordered(bits, 200, 1001), unit, "order")


@pytest.mark.parametrize("shift", [1, 2, 3, 4, 8])
def test_codes_at_any_address(shift: int) -> None:
    for bits, k in ((4, 2560), (3, 4101)):
        check(oracle.random_weight(f"s{bits}-channel-f32", 200, k), 2, "any", shift=shift)


@pytest.mark.parametrize("arch", ["compute_75", "compute_80", "compute_89"])
def test_kernels_of_older_devices(arch: str) -> None:
    check(oracle.random_weight("s5-channel-f32", 200, 2560), 2, "wide", arch)
    check(oracle.random_weight("s5-channel-f32", 200, 4101), 4, "any", arch)
    check(ordered(4, 200, 1001), 8, "order", arch)


def test_experts_beyond_32_bits_of_bytes() -> None:
    """5 GB of codes and as much packed: offsets take 64 bits. Codes are random on the device."""
    template = oracle.random_weight("s8-channel-f32", 1, 1, 1)
    experts, n, k = 40, 4096, 32768
    packed = torch.randint(0, 256, (experts, n, k), dtype=torch.uint8, device="cuda")
    scales = torch.ones(experts, n, 1, device="cuda")
    weight = template.replace(experts=experts, n=n, k=k, packed=packed, scales=scales)
    found = case(weight, 2, device_arch())
    spec = found.spec
    out = torch.full(spec.out_shape, POISON, dtype=torch.int32, device="cuda")
    runtime = CudaRuntime()
    handle = runtime.load(compile_program(program(spec, "cubin")).data, spec.kernel.entry)
    values = {**spec.values, "packed": packed, "out": out}
    arguments = [values[arg.name] for arg in spec.kernel.args]
    runtime.prepare(handle, [arg.kind for arg in spec.kernel.args], arguments, {})(spec.shape)
    assert torch.equal(out, found.expected().tensors["weight"])
