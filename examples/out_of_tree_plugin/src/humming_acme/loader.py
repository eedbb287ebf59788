"""Acme's checkpoints: per layer `codes` [N, K] in acme8 and `step` [N], a scale per row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from humming.checkpoints.base import CheckpointLoader, LayerPlan
from humming.errors import CheckpointError
from humming.formats.scheme import WeightScheme
from humming.weight import CanonicalWeight

__all__ = ["AcmeLoader"]


class AcmeLoader(CheckpointLoader):
    """Reads ``"quant_method": "acme"``."""

    quant_methods: ClassVar[tuple[str, ...]] = ("acme",)

    def plan(self) -> Iterable[LayerPlan]:
        """A layer per tensor called `codes`, from headers alone."""
        version = self.setting("version", int)
        if version != 1:
            raise CheckpointError(f"version {version}, expected 1", path=self.source.path)
        for name in self.layers_with("codes"):
            n, k = self.info(f"{name}.codes", "U8", dims=2).shape
            self.info(f"{name}.step", "F32", dims=1)
            yield LayerPlan(
                name=name,
                n=n,
                k=k,
                scheme=WeightScheme.parse("acme8-channel-f32"),
                tensors=(f"{name}.codes", f"{name}.step"),
            )

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """The layer in the standard form; 8-bit codes are packed as they are."""
        codes = self.tensor(f"{plan.name}.codes", (plan.n, plan.k))
        step = self.tensor(f"{plan.name}.step", (plan.n,))
        return CanonicalWeight(
            scheme=plan.scheme, n=plan.n, k=plan.k, packed=codes, scales=step.unsqueeze(1)
        )
