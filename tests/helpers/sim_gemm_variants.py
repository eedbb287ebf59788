"""Every variant of the test GEMMs by name, each a function from a Problem to a Case."""

from __future__ import annotations

from functools import partial

from sim_gemm_mma import W4A16, Builder, CpAsync, indexed, sync
from sim_gemm_tma import Tcgen05, Wgmma

#: Variants whose K is a multiple of something: operands that TMA spreads over bytes come in 128
#: elements, and 6-bit ones otherwise in three bytes.
K_STEP = {"tcgen05-e4m3-e2m1": 128, "tcgen05-e3m2-e2m3": 128, "tcgen05-mxf8-e2m1": 128}
K_STEP |= {"cp-async-f8f6f4-e3m2": 4}

VARIANTS: dict[str, Builder] = {
    "sync-f16": sync,
    "sync-s8": partial(sync, element="s8"),
    "cp-async-f16": CpAsync("F16", "80", "f16", "f16"),
    "cp-async-bf16": CpAsync("BF16", "80", "bf16", "bf16"),
    "cp-async-s8": CpAsync("S8", "80", "s8", "s8"),
    "cp-async-e4m3": CpAsync("FP8", "89", "e4m3", "e4m3"),
    "cp-async-e5m2-e4m3": CpAsync("FP8", "89", "e5m2", "e4m3"),
    "cp-async-indexed": indexed,
    "cp-async-f8f6f4-e2m1": CpAsync("F8F6F4", "120a", "e4m3", "e2m1"),
    "cp-async-f8f6f4-e3m2": CpAsync("F8F6F4", "120a", "e2m3", "e3m2"),
    "cp-async-mxf8": CpAsync("MXF8F6F4", "120a", "e4m3", "e4m3", "ue8m0"),
    "cp-async-mxf8-e2m1": CpAsync("MXF8F6F4", "120a", "e5m2", "e2m1", "ue8m0"),
    "cp-async-mxf4": CpAsync("MXF4", "120a", "e2m1", "e2m1", "ue8m0"),
    "cp-async-nvf4": CpAsync("NVF4", "120a", "e2m1", "e2m1", "ue4m3", 16),
    "w4a16": W4A16(),
    "w4a16-split": W4A16(splits=3, group=32),
    "wgmma-f16": Wgmma(),
    "wgmma-bf16": Wgmma("bf16"),
    "wgmma-e4m3": Wgmma("e4m3"),
    "wgmma-s8": Wgmma("s8"),
    "wgmma-half": Wgmma(half_result=True),
    "wgmma-cluster": Wgmma(cluster=2),
    "wgmma-cluster-half": Wgmma("bf16", cluster=2, half_result=True),
    "wgmma-registers": Wgmma(a_registers=True),
    "wgmma-registers-s8": Wgmma("s8", a_registers=True),
    "wgmma-transposed": Wgmma(transposed_b=True),
    "tcgen05-f16": Tcgen05(),
    "tcgen05-bf16-transposed": Tcgen05("BF16", "bf16", "bf16", transposed_b=True),
    "tcgen05-f16-wide": Tcgen05(columns=256),
    "tcgen05-f16-pair": Tcgen05(pair=True),
    "tcgen05-a-tmem": Tcgen05(a_tmem=True),
    "tcgen05-e4m3": Tcgen05("F8F6F4", "e4m3", "e4m3"),
    "tcgen05-e4m3-e2m1": Tcgen05("F8F6F4", "e4m3", "e2m1"),
    "tcgen05-e3m2-e2m3": Tcgen05("F8F6F4", "e3m2", "e2m3", columns=64),
    "tcgen05-e3m4": Tcgen05("F8F6F4", "e4m3", "e3m4"),
    "tcgen05-s8": Tcgen05("I8", "s8", "s8"),
    "tcgen05-mxf8": Tcgen05("MXF8F6F4", "e4m3", "e4m3", "ue8m0"),
    "tcgen05-mxf8-e2m1": Tcgen05("MXF8F6F4", "e5m2", "e2m1", "ue8m0", columns=64),
    "tcgen05-mxf8-pair": Tcgen05("MXF8F6F4", "e4m3", "e5m2", "ue8m0", pair=True),
    "tcgen05-mxf4": Tcgen05("MXF4", "e2m1", "e2m1", "ue8m0"),
    "tcgen05-nvf4": Tcgen05("NVF4", "e2m1", "e2m1", "ue4m3"),
    "tcgen05-nvf4-e0m3": Tcgen05("NVF4", "e0m3", "e2m1", "ue4m3"),
    "tcgen05-nvf4-wide": Tcgen05("NVF4", "e2m1", "e2m1", "ue4m3", columns=192),
    "tcgen05-nvf4-pair": Tcgen05("NVF4", "e2m1", "e2m1", "ue4m3", pair=True),
    "tcgen05-nvf4-k96": Tcgen05("NVF4", "e2m1", "e2m1", "ue4m3", k96=True),
}
