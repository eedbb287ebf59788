"""A kernel around tcgen05 instructions: shared and tensor memory in, tensor memory out.

Each CTA copies its image of shared memory, its 128 threads store its image of tensor memory, one
thread (of the first CTA of a pair) runs the body, and everything in tensor memory is loaded back.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import humming_sim

CHUNK = 32  # columns that one ld or st moves


def _registers(letter, count=CHUNK):
    return "{" + ", ".join(f"%{letter}{i}" for i in range(count)) + "}"


_HEADER = """.version {version}
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 image[];
.visible .entry test(.param .u64 shared_in, .param .u64 tensor_in, .param .u64 words,
                     .param .u64 out) {cluster}
{{
.reg .pred %p<8>;
.reg .b16 %h<8>;
.reg .b32 %r<64>, %w<16>, %v<128>;
.reg .b64 %d<64>, %x<16>;
.shared .align 8 .b64 barrier;
.shared .align 4 .b32 slot;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
shr.u32 %r2, %r0, 5;
setp.eq.u32 %p0, %r0, 0;
"""

_PROLOGUE = """
// shared memory
ld.param.u64 %d0, [shared_in];
mul.wide.u32 %d1, %r1, {shared_bytes};
add.u64 %d0, %d0, %d1;
mov.u32 %r3, image;
shl.b32 %r4, %r0, 4;
COPY:
setp.ge.u32 %p1, %r4, {shared_bytes};
@%p1 bra COPIED;
cvt.u64.u32 %d1, %r4;
add.u64 %d1, %d0, %d1;
ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%d1];
add.u32 %r9, %r3, %r4;
st.shared.v4.b32 [%r9], {{%r5, %r6, %r7, %r8}};
add.u32 %r4, %r4, 2048;
bra COPY;
COPIED:
fence.proxy.async;
mov.u32 %r10, barrier;
mov.u32 %r11, slot;
@!%p0 bra INITIALISED;
mbarrier.init.shared.b64 [%r10], 1;
fence.mbarrier_init.release.cluster;
INITIALISED:
{sync}
setp.ne.u32 %p2, %r2, 0;
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r11], {columns};
tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED:
tcgen05.fence::before_thread_sync;
{sync}
tcgen05.fence::after_thread_sync;
ld.shared.b32 %r12, [%r11];
// tensor memory
ld.param.u64 %d2, [tensor_in];
ld.param.u64 %d3, [out];
mul.wide.u32 %d4, %r1, {tensor_bytes};
mul.wide.u32 %d5, %r0, {row_bytes};
add.u64 %d4, %d4, %d5;
add.u64 %d2, %d2, %d4;
add.u64 %d3, %d3, %d4;
shl.b32 %r13, %r2, 21;
add.u32 %r13, %r13, %r12;
"""

_EPILOGUE = """
tcgen05.fence::before_thread_sync;
{sync}
// dealloc
@%p2 bra FREED;
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r12, {columns};
FREED:
ret;
}}
"""


class Kernel:
    """The text for one body.

    Args:
        body: instructions of the issuing thread: %w0... are words and %x0... 64-bit words of the
            `words` argument, %r12 the allocated address, %r10 the mbarrier, %p3 true, %p4 false.
        columns: of tensor memory.
        group: CTAs, 1 or 2.
        target, shared_bytes: architecture, and size of the image of shared memory.
        more: `warp_body`, instructions of all warps; %r13 is the address with the warp's lanes.
    """

    def __init__(self, body, columns=64, group=1, target="sm_100a", shared_bytes=65536, **more):
        self.columns, self.group, self.target = columns, group, target
        self.shared_bytes = shared_bytes
        self.body, self.warp_body = body, more.get("warp_body", "")
        multicast = ".multicast::cluster" if group == 2 else ""
        mask = ", %h0" if group == 2 else ""
        self.commit = (
            f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast}"
            f".b64 [%r10]{mask};"
        )

    def text(self):
        """PTX."""
        both = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
        values = {
            "version": "9.0" if self.target != "sm_100a" else "8.8",
            "target": self.target,
            "cluster": ".reqnctapercluster 2, 1, 1" if self.group == 2 else "",
            "sync": both if self.group == 2 else "bar.sync 0;",
            "group": self.group,
            "columns": self.columns,
            "shared_bytes": self.shared_bytes,
            "tensor_bytes": 128 * 4 * self.columns,
            "row_bytes": 4 * self.columns,
        }
        parts = [_HEADER.format(**values), _PROLOGUE.format(**values)]
        for column in range(0, self.columns, CHUNK):
            parts += [f"ld.global.b32 %v{i}, [%d2 + {4 * (column + i)}];" for i in range(CHUNK)]
            parts.append(f"add.u32 %r14, %r13, {column};")
            parts.append(f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r14], {_registers('v')};")
        parts.append("tcgen05.wait::st.sync.aligned;")
        parts.append(self.warp_body)
        parts.append("tcgen05.fence::before_thread_sync;")
        parts.append(values["sync"])
        parts.append("tcgen05.fence::after_thread_sync;")
        if self.body:
            parts += self._issue()
        for column in range(0, self.columns, CHUNK):
            parts.append(f"add.u32 %r14, %r13, {column};")
            parts.append(f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {_registers('v')}, [%r14];")
            parts.append("tcgen05.wait::ld.sync.aligned;")
            parts += [f"st.global.b32 [%d3 + {4 * (column + i)}], %v{i};" for i in range(CHUNK)]
        parts.append(_EPILOGUE.format(**values))
        return "\n".join(parts)

    def _issue(self):
        first = "mov.u32 %r15, %cluster_ctarank; setp.ne.or.u32 %p5, %r15, 0, %p6;"
        return [
            "setp.ne.u32 %p6, %r0, 0;",
            first if self.group == 2 else "mov.pred %p5, %p6;",
            "@%p5 bra ISSUED;",
            "ld.param.u64 %d6, [words];",
            *(f"ld.global.b32 %w{i}, [%d6 + {4 * i}];" for i in range(16)),
            *(f"ld.global.b64 %x{i}, [%d6 + {64 + 8 * i}];" for i in range(16)),
            "setp.eq.u32 %p3, %r0, %r0;",
            "setp.ne.u32 %p4, %r0, %r0;",
            "mov.u16 %h0, 3;",
            self.body,
            self.commit,
            "ISSUED:",
            "WAIT:",
            "mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r10], 0;",
            "@!%p7 bra WAIT;",
            "tcgen05.fence::after_thread_sync;",
        ]

    def run(self, shared=None, tensor=None, words=(), wide=(), text=None, clusters=1, **options):
        """Tensor memory afterwards, [CTAs, 128, columns]."""
        ctas = self.group * clusters
        images = np.zeros((ctas, self.shared_bytes), np.uint8)
        if shared is not None:
            shared = np.asarray(shared, np.uint8).reshape(self.group, -1)
            images[:, : shared.shape[1]] = np.tile(shared, (clusters, 1))
        before = np.zeros((ctas, 128, self.columns), np.uint32)
        if tensor is not None:
            before[...] = tensor if clusters == 1 else np.tile(tensor, (clusters, 1, 1))
        constants = np.zeros(48, np.uint32)
        constants[: len(words)] = words
        constants[16 : 16 + 2 * len(wide)] = np.array(wide, np.uint64).view(np.uint32)
        after = np.zeros_like(before)
        humming_sim.launch(
            text or self.text(), "test", ctas, 128, [images, before, constants, after],
            smem=self.shared_bytes, **options,
        )  # fmt: skip
        return after


def bare(body, target="sm_100a", group=1):
    """A kernel of nothing but a body; registers and symbols as in :class:`Kernel`."""
    cluster = ".reqnctapercluster 2, 1, 1" if group == 2 else ""
    version = "9.0" if target != "sm_100a" else "8.8"
    head = _HEADER.format(version=version, target=target, cluster=cluster)
    return f"{head}\nmov.u32 %r10, barrier;\nmov.u32 %r11, slot;\n{body}\nret;\n}}\n"


def launch_bare(text, group=1, threads=128, **options):
    """Run such a kernel; what is in its last argument afterwards."""
    out = np.zeros(4096, np.uint32)
    nothing = np.zeros(64, np.uint32)
    humming_sim.launch(
        text, "test", group, threads, [nothing, nothing, nothing, out], smem=4096, **options
    )
    return out


def fault_of(run):
    """The finding that a call ends in."""
    with pytest.raises(humming_sim.SimulationFault) as caught:
        run()
    return caught.value.findings[0]


#: Where dynamic shared memory begins: what the kernels' descriptors have to add.
IMAGE = 2048


@cache
def assembler():
    """ptxas, or None."""
    return shutil.which("ptxas")


def assemble(text, target):
    """The complaints of ptxas about a text, "" if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "test.ptx")
        source.write_text(text)
        done = subprocess.run(
            [assembler(), f"-arch={target}", "-o", str(Path(folder, "out")), str(source)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr if done.returncode else ""
