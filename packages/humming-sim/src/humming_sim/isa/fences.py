"""Memory fences (PTX ISA 9.0, 9.7.13.4 membar, fence).

Memory is sequentially consistent here: an ordering fence changes nothing. What counts are the
fences between proxies, and those that show an mbarrier's initialisation.
"""

from __future__ import annotations

from humming_sim.isa.builder import Builder
from humming_sim.isa.control import nothing
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.machine.code import Step
from humming_sim.ptx.model import Instruction

_SCOPES = ("cta", "cluster", "gpu", "sys", "gl")


@instruction("membar", "fence", manual="9.7.13.4 membar, fence")
def compile_fence(item: Instruction, b: Builder) -> Step:
    """Order between threads."""
    modifiers = Modifiers(item, item.words[0])
    modifiers.drop(
        "sc",
        "acq_rel",
        "acquire",
        "release",
        "relaxed",
        "sync_restrict::shared::cta",
        "sync_restrict::shared::cluster",
        *_SCOPES,
    )
    modifiers.done()
    return nothing


@instruction("fence.mbarrier_init", manual="9.7.13.4 fence.mbarrier_init")
def compile_init_fence(item: Instruction, b: Builder) -> Step:
    """Show initialised mbarriers to the asynchronous proxy and to the cluster."""
    modifiers = Modifiers(item, "fence.mbarrier_init")
    modifiers.drop("release", "cluster")
    modifiers.done()
    return lambda frame: frame.machine.mbarriers.fence_init(frame)


@instruction("fence.proxy.async", "fence.proxy.async::generic", manual="9.7.13.4 fence.proxy")
def compile_async_fence(item: Instruction, b: Builder) -> Step:
    """Show ordinary accesses to the asynchronous proxy; of global memory nothing is tracked."""
    start = ".".join(item.words[:3])
    modifiers = Modifiers(item, start)
    only_global = modifiers.flag("global")
    modifiers.drop(
        "shared::cta",
        "shared::cluster",
        "acquire",
        "release",
        "cluster",
        "sync_restrict::shared::cta",
        "sync_restrict::shared::cluster",
    )
    modifiers.done()
    if only_global:
        return nothing
    return lambda frame: frame.machine.fence_async(frame)


@instruction("fence.proxy.alias", manual="9.7.13.4 fence.proxy")
def compile_alias_fence(item: Instruction, b: Builder) -> Step:
    """Order between aliases of an address, of which there are none here."""
    modifiers = Modifiers(item, "fence.proxy.alias")
    modifiers.done()
    return nothing
