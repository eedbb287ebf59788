"""Small PTX kernels around a few instructions."""

from __future__ import annotations

from collections.abc import Sequence

import humming_sim

REGISTERS = (
    ".reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>;"
    ".reg .f32 %f<32>; .reg .f64 %fd<8>;"
)


def module(
    body: str,
    buffers: int = 1,
    scalars: Sequence[str] = (),
    target: str = "sm_90a",
    before: str = "",
    directives: str = "",
) -> str:
    """A kernel "k" whose buffers' addresses are in %rd0, %rd1, ... and scalars in %r32, ...

    %r0 holds the thread index; a `{text}` of the body may use all of REGISTERS.
    """
    parameters = [f".param .u64 buffer{i}" for i in range(buffers)]
    parameters += [f".param .{kind} scalar{i}" for i, kind in enumerate(scalars)]
    loads = [f"ld.param.u64 %rd{i}, [buffer{i}];" for i in range(buffers)]
    loads += [f"ld.param.{kind} %r{32 + i}, [scalar{i}];" for i, kind in enumerate(scalars)]
    return "\n".join(
        [
            f".version {'9.0' if target >= 'sm_90' or 'sm_1' in target else '8.0'}",
            f".target {target}",
            ".address_size 64",
            before,
            f".visible .entry k({', '.join(parameters)})",
            directives,
            "{",
            REGISTERS,
            *loads,
            "mov.u32 %r0, %tid.x;",
            body,
            "ret;",
            "}",
            "",
        ]
    )


def run(body: str, args: Sequence[object], block: int = 32, **options: object) -> object:
    """Run :func:`module` of a body with one buffer per argument; options as its and launch's."""
    shaping = {
        name: options.pop(name)
        for name in ("scalars", "target", "before", "directives")
        if name in options
    }
    scalars = shaping.get("scalars", ())
    text = module(body, len(args) - len(scalars), **shaping)  # type: ignore[arg-type]
    grid = options.pop("grid", 1)
    return humming_sim.launch(text, "k", grid, block, args, **options)  # type: ignore[arg-type]
