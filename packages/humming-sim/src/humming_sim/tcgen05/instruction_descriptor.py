"""The 32-bit instruction descriptor of tcgen05.mma (PTX ISA 9.0, 9.7.16.4.2, Tables 42-44)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from humming_sim.tcgen05.forms import HIDDEN_TARGETS, MmaForm

__all__ = ["InstructionDescriptor", "decode", "lint"]

#: First bit and width of every field, by kind of table; a bit in no field must be 0.
_COMMON = {
    "sparse": (2, 1),
    "a_type": (7, 3),
    "b_type": (10, 3),
    "negate_a": (13, 1),
    "negate_b": (14, 1),
    "transpose_a": (15, 1),
    "transpose_b": (16, 1),
    "n": (17, 6),
}
_PLAIN = {
    **_COMMON,
    "selector": (0, 2),
    "saturate": (3, 1),
    "d_type": (4, 2),
    "m": (24, 5),
    "max_shift": (30, 2),
}
_SCALED = {
    **_COMMON,
    "scale_b_id": (4, 2),
    "scale_type": (23, 1),
    "m": (27, 2),
    "scale_a_id": (29, 2),
}
_PACKED = {**_SCALED, "b_type": (10, 2), "long_k": (31, 1)}

_FIELDS = MappingProxyType(
    {
        **dict.fromkeys(("f16", "tf32", "f8f6f4", "i8"), _PLAIN),
        "mxf8f6f4": _SCALED,
        **dict.fromkeys(("mxf4", "mxf4nvf4"), _PACKED),
    }
)

#: Scale ids by (K, elements per scale): where in the 32-bit words the first scale may lie.
_SCALE_IDS = {
    (32, 32): (0, 1, 2, 3),
    (64, 32): (0, 2),
    (64, 16): (0,),
    (96, 32): (0, 1, 2, 3),
    (96, 16): (0, 2),
}
_SCALE_TYPES = ("ue4m3", "ue8m0")
_LONG_K = 96


@dataclass(frozen=True)
class InstructionDescriptor:
    """A decoded descriptor.

    Attributes:
        bits: as given.
        m, n, k: shape; M counts both CTAs of a pair.
        d_type: "f16", "f32" or "s32"; "" if the code has no meaning.
        a_type, b_type: element types; "" if the code has no meaning.
        negate_a, negate_b: the sign of every element is flipped.
        transpose_a, transpose_b: the operand is MN-major.
        sparse: A is stored with half its elements.
        saturate: integer sums are clamped.
        scale_type: "ue8m0" or "ue4m3"; "" without scales.
        scale_a_id, scale_b_id: byte of the first scale in its 32-bit word.
        block: elements that share a scale, 0 without scales.
        max_shift: columns by which `.ws` may shift B: 0, 8, 16 or 32.
    """

    bits: int
    m: int
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    negate_a: bool = False
    negate_b: bool = False
    transpose_a: bool = False
    transpose_b: bool = False
    sparse: bool = False
    saturate: bool = False
    scale_type: str = ""
    scale_a_id: int = 0
    scale_b_id: int = 0
    block: int = 0
    max_shift: int = 0

    @property
    def scales(self) -> int:
        """Scales of one row of A (and of B) in one instruction."""
        return self.k // self.block if self.block else 0


def _split(bits: int, form: MmaForm) -> dict[str, int]:
    fields = _FIELDS[form.kind]
    return {name: bits >> first & (1 << width) - 1 for name, (first, width) in fields.items()}


@lru_cache(maxsize=4096)
def decode(bits: int, form: MmaForm) -> InstructionDescriptor:
    """Read the fields; values without a meaning are kept (or "") and named by :func:`lint`."""
    raw, kind = _split(bits, form), form.row
    types = {**kind.elements, **(kind.hidden if form.hidden else {})}
    shift = raw.get("max_shift", 0)
    return InstructionDescriptor(
        bits=bits,
        m=raw["m"] << (7 if kind.scaled else 4),
        n=raw["n"] << 3,
        k=_LONG_K if raw.get("long_k") else kind.k,
        d_type="f32" if kind.scaled else kind.results.get(raw["d_type"], ""),
        a_type=types.get(raw["a_type"], ""),
        b_type=types.get(raw["b_type"], ""),
        negate_a=bool(raw["negate_a"]),
        negate_b=bool(raw["negate_b"]),
        transpose_a=bool(raw["transpose_a"]),
        transpose_b=bool(raw["transpose_b"]),
        sparse=bool(raw["sparse"]),
        saturate=bool(raw.get("saturate", 0)),
        scale_type=_SCALE_TYPES[raw["scale_type"]] if kind.scaled else "",
        scale_a_id=raw.get("scale_a_id", 0),
        scale_b_id=raw.get("scale_b_id", 0),
        block=form.block,
        max_shift=4 << shift if shift else 0,
    )


@lru_cache(maxsize=4096)
def lint(bits: int, form: MmaForm) -> tuple[str, ...]:
    """Sentences on everything that this descriptor must not be, naming the bits.

    Sparse A isn't simulated, so its bit is among them.
    """
    raw, descriptor = _split(bits, form), decode(bits, form)
    return (
        *form.problems(),
        *_lint_reserved(bits, form),
        *_lint_types(raw, descriptor, form),
        *_lint_shape(descriptor, form),
        *_lint_flags(raw, descriptor, form),
        *(_lint_scales(descriptor, form) if form.row.scaled else ()),
    )


def _bits(form: MmaForm, name: str) -> str:
    first, width = _FIELDS[form.kind][name]
    return f"bit {first}" if width == 1 else f"bits {first}-{first + width - 1}"


def _lint_reserved(bits: int, form: MmaForm) -> list[str]:
    used = 0
    for first, width in _FIELDS[form.kind].values():
        used |= (1 << width) - 1 << first
    wrong = [bit for bit in range(32) if bits & ~used & 1 << bit]
    return [f"bit {bit} is reserved in kind::{form.kind} and must be 0" for bit in wrong]


def _lint_types(raw: dict[str, int], descriptor: InstructionDescriptor, form: MmaForm) -> list[str]:
    found, kind = [], form.row
    if not descriptor.d_type:
        meant = ", ".join(f"{code} {name}" for code, name in kind.results.items())
        found.append(f"{_bits(form, 'd_type')}: D type {raw['d_type']} is none of {meant}")
    for name in ("a_type", "b_type"):
        code = raw[name]
        where = f"{_bits(form, name)}: {name[0].upper()} type {code}"
        if code in kind.hidden:
            found += _lint_hidden(where, kind.hidden[code], form)
        elif code not in kind.elements:
            meant = ", ".join(f"{code} {name}" for code, name in kind.elements.items())
            found.append(f"{where} is none of {meant}")
    if form.kind == "f16" and {descriptor.a_type, descriptor.b_type} == {"f16", "bf16"}:
        found.append("bits 7-12: A and B are one f16 and one bf16; kind::f16 takes two of a type")
    if form.kind == "f16" and descriptor.d_type == "f16" and "bf16" in descriptor.a_type:
        found.append(f"{_bits(form, 'd_type')}: D is f16, which bf16 operands don't go with")
    return found


def _lint_hidden(where: str, name: str, form: MmaForm) -> list[str]:
    if not form.hidden:
        return [f"{where} has no PTX name ({name}) and hidden types are off"]
    if form.target not in HIDDEN_TARGETS:
        return [f"{where} ({name}) is known on sm_100 and sm_103, not on sm_{form.target}"]
    if name == "e0m3" and form.block != 16:
        return [f"{where} ({name}) needs .block16"]
    return []


def _lint_shape(descriptor: InstructionDescriptor, form: MmaForm) -> list[str]:
    found = []
    what = f"{'.ws' if form.ws else f'cta_group::{form.cta_group}'} of kind::{form.kind}"
    if form.ms and descriptor.m not in form.ms:
        found.append(f"{_bits(form, 'm')}: M = {descriptor.m}; {what} takes {_list(form.ms)}")
    ns = form.ns(descriptor.transpose_b and form.row.slot == 16)
    if descriptor.n not in ns:
        found.append(f"{_bits(form, 'n')}: N = {descriptor.n}; {what} takes {_list(ns)}")
    if descriptor.k != _LONG_K:
        return found
    if form.target != 103:
        found.append(f"bit 31: K = 96 exists on sm_103a, not on sm_{form.target}")
    if descriptor.m != 128 * form.cta_group:
        found.append(f"bit 31: K = 96 goes with M = {128 * form.cta_group}, not {descriptor.m}")
    if form.scale.endswith("X"):
        found.append(f"bit 31: K = 96 has {96 // form.block} scales, which .scale_vec can't say")
    return found


def _list(values: tuple[int, ...]) -> str:
    if len(values) <= 6:
        return ", ".join(map(str, values))
    return f"{values[0]}, {values[1]}, ... {values[-1]}"


def _lint_flags(raw: dict[str, int], descriptor: InstructionDescriptor, form: MmaForm) -> list[str]:
    found, kind = [], form.row
    if descriptor.sparse:
        found.append("bit 2: A is sparse but the instruction isn't .sp")
    elif raw.get("selector"):
        found.append("bits 0-1: a sparsity selector without sparse A")
    if descriptor.saturate and form.kind != "i8":
        found.append("bit 3: saturation is for kind::i8")
    for name in ("negate_a", "negate_b"):
        if raw[name] and not kind.negates:
            found.append(f"{_bits(form, name)}: kind::{form.kind} can't negate")
    for name in ("transpose_a", "transpose_b"):
        if raw[name] and not kind.transposes:
            found.append(f"{_bits(form, name)}: kind::{form.kind} takes K-major operands only")
    if descriptor.max_shift and not form.ws:
        found.append("bits 30-31: a shift of B is for .ws")
    return found


def _lint_scales(descriptor: InstructionDescriptor, form: MmaForm) -> list[str]:
    found = []
    if descriptor.scale_type == "ue4m3" and not (form.kind == "mxf4nvf4" and form.block == 16):
        found.append(
            "bit 23: ue4m3 scales are for kind::mxf4nvf4.block16, "
            f"not kind::{form.kind}.block{form.block}"
        )
    ids = _SCALE_IDS.get((descriptor.k, descriptor.block), ())
    for name in ("scale_a_id", "scale_b_id"):
        value = getattr(descriptor, name)
        if ids and value not in ids:
            found.append(
                f"{_bits(form, name)}: scale id {value}; K = {descriptor.k} with blocks of "
                f"{descriptor.block} takes {_list(ids)}"
            )
    return found
