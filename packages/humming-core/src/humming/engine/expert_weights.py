"""The weights of a layer of experts: which of them are here, and whether they fit together."""

from __future__ import annotations

import torch

from humming.engine.experts import ID_DTYPES
from humming.errors import ConfigError
from humming.gating import Gating
from humming.weight import CanonicalWeight

__all__ = ["check_pair", "checked_map", "local_experts", "local_ids"]


def local_experts(weight: CanonicalWeight, expert_range: tuple[int, int] | None) -> CanonicalWeight:
    """The weights of a range of experts, out of theirs or of all."""
    if expert_range is None:
        return weight
    start, stop = expert_range
    if not 0 <= start < stop:
        raise ConfigError("expert_range", expert_range, "(first, behind the last), not empty")
    if weight.experts == stop - start:
        return weight
    if weight.experts < stop:
        allowed = f"a range of {weight.experts} experts, or one among {weight.experts}"
        raise ConfigError("expert_range", expert_range, allowed)
    tensors = {name: tensor[start:stop] for name, tensor in weight.tensors()}
    return weight.replace(experts=stop - start, **tensors)


def check_pair(gate_up: CanonicalWeight, down: CanonicalWeight, gating: Gating, what: str) -> None:
    """Check that two products and the function between them fit together."""
    if gate_up.experts != down.experts or bool(down.experts) != (what == "experts"):
        wanted = "the same number of experts" if what == "experts" else "no dimension of experts"
        raise ConfigError(what, [list(gate_up.shape), list(down.shape)], f"weights with {wanted}")
    expected = gating.inputs(down.k), down.n
    if (gate_up.n, gate_up.k) != expected:
        allowed = f"{list(expected)} beside {list(down.shape)} and {gating}"
        raise ConfigError(f"gate_up of {what}", [gate_up.n, gate_up.k], allowed)
    if gate_up.device != down.device:
        raise ConfigError(f"down of {what}", str(down.device), f"a weight on {gate_up.device}")


def checked_map(table: torch.Tensor | None, experts: int) -> torch.Tensor | None:
    """An expert map whose numbers are all -1 or an expert's."""
    if table is None:
        return None
    if table.dtype not in ID_DTYPES or table.dim() != 1 or not table.numel():
        found = f"{table.dtype} {list(table.shape)}"
        raise ConfigError("expert_map", found, "an int32 or int64 tensor [experts of the model]")
    low, high = int(table.min()), int(table.max())
    if low < -1 or high >= experts:
        raise ConfigError(
            "expert_map", (low, high), f"numbers from -1 (elsewhere) to {experts - 1}"
        )
    return table


def local_ids(ids: torch.Tensor, table: torch.Tensor | None, first: int) -> torch.Tensor:
    """Numbers of weights here, of ids among the model's experts; what is none of them is not here.

    Args:
        ids: int32 or int64.
        table: an expert map; None: they count from `first`.
        first: number of the first expert here.
    """
    if table is not None:
        # -1 counts from behind, and what lies behind the table is there as well.
        last = table.numel()
        longer = torch.nn.functional.pad(table, (0, 2), value=-1)
        return longer[ids.clamp(-1, last)].to(ids.dtype)
    return ids - first if first else ids
