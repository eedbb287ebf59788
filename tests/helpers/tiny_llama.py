"""A Llama in plain torch whose linear layers are made by a factory; float32, greedy, KV cache.

It follows files of GGUF's ``llama`` architecture: names as there, and rotary embeddings that turn
neighbouring pairs (2i, 2i + 1), which is how the rows of attn_q and attn_k are ordered there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensors = Callable[[str], torch.Tensor]
Linears = Callable[[str], nn.Module]
Cache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class LlamaShape:
    """What the metadata of a GGUF file says of a Llama."""

    blocks: int
    hidden: int
    heads: int
    kv_heads: int
    epsilon: float
    rope_base: float

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> LlamaShape:
        """Read the keys of the ``llama`` architecture."""
        assert metadata["general.architecture"] == "llama"
        return cls(
            blocks=metadata["llama.block_count"],
            hidden=metadata["llama.embedding_length"],
            heads=metadata["llama.attention.head_count"],
            kv_heads=metadata["llama.attention.head_count_kv"],
            epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
            rope_base=metadata["llama.rope.freq_base"],
        )

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, shape: LlamaShape, prefix: str, linear: Linears, plain: Tensors) -> None:
        super().__init__()
        self.shape = shape
        self.linears = nn.ModuleDict({
            name: linear(f"{prefix}.{name}")
            for name in (
                "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"
            )
        })  # fmt: skip
        self.attn_norm = plain(f"{prefix}.attn_norm.weight")
        self.ffn_norm = plain(f"{prefix}.ffn_norm.weight")

    def forward(
        self, x: torch.Tensor, turns: torch.Tensor, cache: Cache, index: int
    ) -> torch.Tensor:
        """Hidden states [T, hidden] of T new tokens; their keys and values join the cache."""
        run = self.linears
        h = rms_norm(x, self.attn_norm, self.shape.epsilon)
        q, k, v = (
            run[name](h).unflatten(-1, (-1, self.shape.head)).transpose(0, 1)
            for name in ("attn_q", "attn_k", "attn_v")
        )  # [heads, T, head]
        q, k = rotate(q, turns), rotate(k, turns)
        if index < len(cache):
            k, v = (torch.cat(pair, 1) for pair in zip(cache[index], (k, v), strict=True))
            cache[index] = (k, v)
        else:
            cache.append((k, v))
        x = x + run["attn_output"](self.attend(q, k, v))
        h = rms_norm(x, self.ffn_norm, self.shape.epsilon)
        gate: torch.Tensor = functional.silu(run["ffn_gate"](h)) * run["ffn_up"](h)
        return x + run["ffn_down"](gate)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention of the last T positions; several query heads share a key head."""
        share = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
        scores = q @ k.transpose(1, 2) / self.shape.head**0.5
        new, all_ = scores.shape[1:]
        future = torch.ones(new, all_, dtype=torch.bool).triu(all_ - new + 1)
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        return mixed.transpose(0, 1).flatten(1)


class TinyLlama(nn.Module):
    """The whole model, with the embedding as its head if the file has no other."""

    def __init__(
        self, shape: LlamaShape, linear: Linears, plain: Tensors, embedding: torch.Tensor,
        head: str = "token_embd",
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape, self.embedding = shape, embedding
        self.blocks = nn.ModuleList(
            Block(shape, f"blk.{i}", linear, plain) for i in range(shape.blocks)
        )
        self.norm = plain("output_norm.weight")
        self.head = linear(head)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], cache: Cache) -> torch.Tensor:
        """Logits [T, vocabulary] of T new tokens after those in the cache, which grows."""
        past = cache[0][0].shape[1] if cache else 0
        steps = torch.arange(0, self.shape.head, 2, dtype=torch.float32) / self.shape.head
        positions = torch.arange(past, past + len(ids), dtype=torch.float32)
        angles = positions[:, None] / self.shape.rope_base**steps
        turns = torch.polar(torch.ones_like(angles), angles)
        x = self.embedding[torch.tensor(ids)]
        for index, block in enumerate(self.blocks):
            x = block(x, turns, cache, index)
        logits: torch.Tensor = self.head(rms_norm(x, self.norm, self.shape.epsilon))
        return logits

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` likeliest next tokens, one by one."""
        cache: Cache = []
        found: list[int] = []
        ids = list(prompt)
        for _ in range(count):
            ids = [int(self(ids, cache)[-1].argmax())]
            found += ids
        return found


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Each row divided by the root of its mean square."""
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn neighbouring pairs of [heads, T, head], as complex numbers, by `turns` [T, head / 2]."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


def text_of(ids: Sequence[int], metadata: Mapping[str, Any]) -> str:
    """Token ids to text for byte-level BPE (``tokenizer.ggml.model`` "gpt2").

    Such vocabularies spell each byte as a printable character: itself where it is one, else one
    of the characters from U+0100 on, in order.
    """
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_of = {chr(byte): byte for byte in printable}
    bytes_of |= {chr(0x100 + place): byte for place, byte in enumerate(others)}
    tokens = metadata["tokenizer.ggml.tokens"]
    spelled = "".join(tokens[i] for i in ids)
    return bytes(bytes_of[character] for character in spelled).decode()
