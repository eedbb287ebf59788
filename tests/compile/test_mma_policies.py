"""mma.cuh and copy.cuh of the SM75-SM89 backend: what is multiplied and what is moved."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sim_fragments import A_FORMULAS, ACCUMULATOR_FORMULAS, B_FORMULAS, Formula

import humming
import humming_sim
import humming_sm75_sm89
from humming.errors import CompileError
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.jit import Binary, HeaderRoots, Program, compile_program

pytestmark = pytest.mark.compile

HEADERS = HeaderRoots(
    {
        package.__name__: Path(package.__file__).parent / "include" / package.__name__
        for package in (humming, humming_sm75_sm89)
        if package.__file__
    }
)
KERNELS = Path(__file__).with_name("kernels")
STEPS = 3


# ------------------------------------------------------------------------------------ combinations

#: Operands, sums and kSm, and the instructions of one multiply().
SAME = {
    ("f16", "float", 75): ["m16n8k8.row.col.f32.f16.f16.f32"] * 2,
    ("f16", "Half", 75): ["m16n8k8.row.col.f16.f16.f16.f16"] * 2,
    ("s8", "i32", 75): ["m8n8k16.row.col.s32.s8.s8.s32"] * 4,
    ("s4", "i32", 75): ["m8n8k32.row.col.s32.s4.s4.s32"] * 4,
    ("f16", "float", 80): ["m16n8k16.row.col.f32.f16.f16.f32"],
    ("f16", "Half", 80): ["m16n8k16.row.col.f16.f16.f16.f16"],
    ("bf16", "float", 80): ["m16n8k16.row.col.f32.bf16.bf16.f32"],
    ("s8", "i32", 80): ["m16n8k32.row.col.s32.s8.s8.s32"],
    ("s4", "i32", 80): ["m16n8k64.row.col.s32.s4.s4.s32"],
}
SMALL_FLOATS = {"e4m3fn": "e4m3", "e5m2": "e5m2"}
#: The integers that random operands are taken from: no sum of them is rounded.
RANGES = {
    "f16": (-100, 100), "bf16": (-100, 100), "s8": (-128, 127), "s4": (-8, 7),
    "e4m3fn": (-16, 16), "e5m2": (-8, 8),
}  # fmt: skip
HALF_RANGE = (-3, 3)


@dataclass(frozen=True)
class Case:
    """One combination of types."""

    a: NumberFormat
    b: NumberFormat
    sums: str
    sm: int
    instructions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.a}_{self.b}_{self.sums}_{self.sm}"

    @property
    def kernel(self) -> str:
        types = f"{self.a.cxx}, {self.b.cxx}, {self.sums}, {self.sm}"
        entry = f'extern "C" __global__ void {self}(KERNEL_PARAMETERS)'
        return f"{entry} {{\n  multiply<Mma<{types}>>(a, b, values, steps);\n}}\n"


def _case(a: str, b: str, sums: str, sm: int, shapes: Sequence[str] = ()) -> Case:
    spelled = tuple(f"mma.sync.aligned.{shape}" for shape in shapes)
    return Case(number_format(a), number_format(b), sums, sm, spelled)


def _cases() -> list[Case]:
    cases = []
    for (x, sums, sm), shapes in SAME.items():
        cases += [_case(x, x, sums, other, shapes) for other in ((75,) if sm == 75 else (80, 89))]
    for a, left in SMALL_FLOATS.items():
        for b, right in SMALL_FLOATS.items():
            shape = f"m16n8k32.row.col.f32.{left}.{right}.f32"
            cases.append(_case(a, b, "float", 89, [shape]))
    return cases


CASES = _cases()


def compiled(cases: Sequence[Case], arch: str) -> Binary:
    source = (KERNELS / "mma.cu").read_text(encoding="utf-8")
    return build("mma", source + "\n".join(case.kernel for case in cases), arch)


def build(name: str, source: str, arch: str) -> Binary:
    return compile_program(
        Program(
            name=name,
            source=source,
            arch=arch,
            headers=HEADERS.closure(source, name),
            kind="ptx" if arch.startswith("compute") else "cubin",
        )
    )


@cache
def ptx_of(sm: int) -> str:
    return compiled([case for case in CASES if case.sm == sm], f"compute_{sm}").data.decode()


def body(ptx: str, entry: str) -> str:
    return ptx.split(f".entry {entry}(")[1].partition("\n{\n")[2].partition("\n}\n")[0]


# ------------------------------------------------------------------------------------ multiplying


def fragments(codes: npt.NDArray[np.uint32], bits: int, formula: Formula) -> npt.NDArray[np.uint32]:
    """[lanes, words] of a matrix of codes as the manual distributes it."""
    count = codes.size // 32
    words = np.zeros((32, count * bits // 32), np.uint32)
    for lane in range(32):
        for i in range(count):
            code = codes[formula(lane // 4, lane % 4, i)]
            words[lane, i * bits // 32] |= code << np.uint32(i * bits % 32)
    return words


def codes_of(
    rng: np.random.Generator, number: NumberFormat, shape: tuple[int, int], half: bool
) -> npt.NDArray[np.uint32]:
    low, high = HALF_RANGE if half else RANGES[number.name]
    values = rng.integers(low, high + 1, shape).astype(np.float64)
    codes = number.encode(values)
    assert (number.decode(codes) == values).all()
    return codes.astype(np.uint32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_are_those_of_the_exact_product(case: Case) -> None:
    rng = np.random.default_rng(len(str(case)))
    bits = case.a.bits
    k = 256 // bits
    a_words, b_words, product = [], [], np.zeros((16, 8))
    for _ in range(STEPS):
        a = codes_of(rng, case.a, (16, k), case.sums == "Half")
        b = codes_of(rng, case.b, (k, 8), case.sums == "Half")
        product += case.a.decode(a) @ case.b.decode(b)
        a_words.append(fragments(a, bits, A_FORMULAS[16, k, bits]))
        b_words.append(fragments(b, bits, B_FORMULAS[k, bits]))
    values = np.full((32, 4), np.nan, np.float32)
    arguments = [np.stack(a_words), np.stack(b_words), values, STEPS]
    humming_sim.launch(ptx_of(case.sm), str(case), 1, 32, arguments)
    formula = ACCUMULATOR_FORMULAS[16, 8]
    places = [[formula(lane // 4, lane % 4, i) for i in range(4)] for lane in range(32)]
    expected = [[product[place] for place in row] for row in places]
    assert values.tolist() == expected
    assert len(set(values.ravel().tolist())) > 50  # the product is no constant


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_multiplication_is_these_instructions(case: Case) -> None:
    found = re.findall(r"mma\.sync[\w.:]*", body(ptx_of(case.sm), str(case)))
    assert set(found) == set(case.instructions)
    assert len(found) % len(case.instructions) == 0  # the loop may be unrolled


#: Cases that no machine has, and what the compiler says of them.
SENTENCES = {
    ("bf16", "bf16", "float", 75): "bf16 needs kSm 80 or 89",
    ("bf16", "bf16", "Half", 80): "sums are f16 for f16, and for nothing else",
    ("e4m3fn", "e4m3fn", "Half", 89): "sums are f16 for f16, and for nothing else",
    ("e4m3fn", "e4m3fn", "float", 80): "e4m3fn and e5m2 need kSm 89",
    ("e5m2", "e4m3fn", "float", 75): "e4m3fn and e5m2 need kSm 89",
    ("f16", "bf16", "float", 80): "A and B have one format, or are any of e4m3fn and e5m2",
    ("s8", "s4", "i32", 80): "A and B have one format, or are any of e4m3fn and e5m2",
    ("e4m3fn", "f16", "float", 89): "A and B have one format, or are any of e4m3fn and e5m2",
    ("s8", "s8", "float", 80): "sums are i32 for integers, and for nothing else",
    ("f16", "f16", "i32", 80): "sums are i32 for integers, and for nothing else",
    ("u8", "u8", "i32", 80): "A is f16, bf16, e4m3fn, e5m2, s8 or s4",
    ("f16", "f16", "double", 80): "sums are float, i32 or Half",
    ("f16", "f16", "float", 86): "kSm is 75, 80 or 89",
}


@pytest.mark.parametrize(("combination", "sentence"), SENTENCES.items())
def test_what_no_machine_has_is_refused_with_a_sentence(
    combination: tuple[str, str, str, int],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the source of what fails is kept
    with pytest.raises(CompileError, match=sentence):
        compiled([_case(*combination)], "compute_89")


CARRIERS = {"sm_75": 75, "sm_80": 80, "sm_86": 80, "sm_87": 80, "sm_89": 89}
CARRIERS |= {"sm_90a": 89, "sm_120": 89}


@pytest.mark.parametrize("arch", CARRIERS)
def test_kernels_assemble_without_spills(arch: str) -> None:
    cases = [case for case in CASES if case.sm == CARRIERS[arch]]
    binaries = [compiled(cases, arch)]
    binaries.append(build("copy", copy_source(CARRIERS[arch]), arch))
    usage = [kernel for binary in binaries for kernel in binary.usage]
    assert len(usage) == len(cases) + (3 if arch == "sm_75" else 5)
    assert [kernel for kernel in usage if kernel.spill_stores or kernel.stack] == []


# ---------------------------------------------------------------------------------------- moving


def copy_source(sm: int) -> str:
    define = "#define ASYNC\n" if sm >= 80 else ""
    return define + (KERNELS / "copy.cu").read_text(encoding="utf-8")


@cache
def copy_ptx(sm: int) -> str:
    return build("copy", copy_source(sm), f"compute_{sm}").data.decode()


def random_bytes(count: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, count).astype(np.uint8)


@pytest.mark.parametrize("sm", [75, 80])
@pytest.mark.parametrize("chunks", [39, 64])
def test_a_copy_reads_no_byte_too_many_and_fills_with_zeros(sm: int, chunks: int) -> None:
    count = 16 * chunks
    source, target = random_bytes(count), np.full(64 * 16, 0xEE, np.uint8)
    humming_sim.launch(copy_ptx(80), f"exchange_{sm}", 1, 64, [source, target, count])
    assert (target[:count] == source).all()
    assert not target[count:].any()


@pytest.mark.parametrize("entry", ["exchange_75", "exchange_80"])
def test_what_was_copied_is_there_behind_the_barrier(entry: str) -> None:
    source, target = random_bytes(64 * 16), np.zeros(64 * 16, np.uint8)
    humming_sim.launch_seeds(copy_ptx(80), entry, 1, 64, [source, target, source.size])
    assert (target == source).all()


def test_a_group_may_be_pending_while_the_one_before_is_read() -> None:
    source, target = random_bytes(64 * 32), np.zeros(64 * 32, np.uint8)
    humming_sim.launch_seeds(copy_ptx(80), "pending", 1, 64, [source, target])
    assert (target == source).all()


def test_matrices_of_shared_memory_are_distributed_by_words() -> None:
    words = random_bytes(512).view(np.uint32).reshape(32, 4)
    order = np.random.default_rng(2).permutation(32).astype(np.int32)
    target = np.zeros((32, 6), np.uint32)
    humming_sim.launch_seeds(copy_ptx(75), "matrices", 1, 32, [words, order, target])
    rows = words[order]
    for lane in range(32):
        matrix = [rows[8 * i + lane // 4, lane % 4] for i in range(4)]
        assert target[lane].tolist() == [*matrix, *matrix[:2]]


def test_loads_of_each_width_give_what_is_there() -> None:
    source, target = random_bytes(32), np.zeros(6, np.uint32)
    humming_sim.launch(copy_ptx(75), "loads", 1, 1, [source, target])
    words = source.view(np.uint32).tolist()
    assert target.tolist() == [*words[:4], *words[6:8]]


#: What the wrappers that a kernel calls are.
MOVES = {
    ("loads", 75): "ld.global.v4.u32 st.global.v4.u32 ld.global.v2.u32",
    ("matrices", 75): """ld.global.L1::no_allocate.v4.u32 st.shared.v4.u32
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 ldmatrix.sync.aligned.m8n8.x2.shared.b16""",
    ("exchange_75", 75): "ld.global.v4.u32 st.shared.v4.u32 bar.sync ld.shared.v4.u32",
    ("exchange_80", 80): """cp.async.cg.shared.global cp.async.commit_group cp.async.wait_group
        bar.sync ld.shared.v4.u32""",
}
_MOVE = re.compile(r"^\s*(?:@\S+\s+)?((?:ldmatrix|ld|st|cp|bar)\.[\w.:]+)", re.MULTILINE)


@pytest.mark.parametrize(("entry", "sm"), MOVES)
def test_moves_are_these_instructions(entry: str, sm: int) -> None:
    found, wrapped = _MOVE.findall(body(copy_ptx(sm), entry)), set(MOVES[entry, sm].split())
    assert wrapped <= set(found)
    if entry == "exchange_80":  # nothing goes through registers
        assert not {move for move in found if re.match(r"ld\.global|st\.shared", move)}
