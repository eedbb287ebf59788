"""GGUF files for tests: whole ones through gguf's own writer, and headers written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from humming.checkpoints.base import LayerPlan, Source
from humming.checkpoints.gguf import GgufLoader, open_gguf
from humming.weight import CanonicalWeight

#: Where the super-scales (f16) of a block lie; all other bytes may be anything.
F16_FIELDS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (),
}  # fmt: skip

Array = npt.NDArray[np.generic]


def random_blocks(
    kind: str, shape: Sequence[int], rng: np.random.Generator, tame: bool = True
) -> npt.NDArray[np.uint8]:
    """Random raw blocks of a matrix of row-major `shape`; `tame`: with f16 scales of sane size."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    *lead, columns = shape
    raw = rng.integers(0, 256, (*lead, columns // block, size), dtype=np.uint8)
    for place in F16_FIELDS[kind] if tame else ():
        # Exponents over nine octaves, so that no two scales are alike.
        scales = rng.uniform(0.5, 2, raw.shape[:-1]) * 2.0 ** rng.integers(-9, 0, raw.shape[:-1])
        signed = scales * rng.choice([-1, 1], raw.shape[:-1])
        raw[..., place : place + 2] = signed.astype("<f2")[..., None].view(np.uint8)
    if kind == "MXFP4":
        raw[..., 0] = rng.integers(0, 255, raw.shape[:-1])  # 255 is NaN: a test of its own
    if kind == "NVFP4":
        raw[..., :4] = rng.integers(0, 0x7F, (*raw.shape[:-1], 4))
    if kind == "TQ2_0":
        digits = rng.integers(0, 3, (*raw.shape[:-1], 64, 4), dtype=np.uint8)
        raw[..., :64] = (digits << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(-1)
    return raw.reshape(*lead, -1)


def write_gguf(
    path: Path,
    tensors: Mapping[str, Array | tuple[str, Array]],
    keys: Mapping[str, object] | None = None,
) -> Path:
    """Write a file with gguf's writer: arrays as they are, (type, raw blocks) as that type."""
    writer = gguf.GGUFWriter(path, "llama")
    adders = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
        str: writer.add_string, list: writer.add_array,
    }  # fmt: skip
    for key, value in (keys or {}).items():
        adders[type(value)](key, value)
    for name, value in tensors.items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[1], raw_dtype=GGMLQuantizationType[value[0]])
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def text(value: str | bytes) -> bytes:
    """A GGUF string: its length, then its bytes."""
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(encoded)) + encoded


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    """A key-value pair; `value` as it stands in the file."""
    return text(key) + struct.pack("<I", kind) + value


def entry(name: str | bytes, sizes: Sequence[int], kind: int, offset: int = 0) -> bytes:
    """A tensor entry; sizes fastest first."""
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def by_hand(
    entries: Sequence[bytes] = (),
    pairs: Sequence[bytes] = (),
    data: bytes = b"",
    start: bytes = b"GGUF" + struct.pack("<I", 3),
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file put together from its parts, data aligned to 32."""
    head = start + struct.pack("<QQ", *(counts or (len(entries), len(pairs))))
    head += b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % 32) + data


def opened(path: Path) -> tuple[Source, GgufLoader, dict[str, LayerPlan]]:
    """The source of a file, its loader, and the plans by name."""
    source = open_gguf(path)
    loader = GgufLoader(source)
    return source, loader, {plan.name: plan for plan in loader.plan()}


def load(path: Path, layer: str) -> CanonicalWeight:
    """Read one layer."""
    _, loader, plans = opened(path)
    return loader.load(plans[layer])
