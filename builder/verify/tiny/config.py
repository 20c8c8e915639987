"""The sizes of the tiny model (presets) and the `glm_moe_dsa` configuration that says them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ROPE_THETA = 1_000_000.0
RMS_NORM_EPS = 1e-5
ROUTED_SCALING_FACTOR = 2.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """The sizes of a tiny model, under the names that its config.json gives them, and the requests that prove it.

    `offsets[l]` is how many positions layer l looks back with RoPE; None: it looks for a position by its content.
    `vocab_size` is a power of two: a token's code is a row of the Hadamard matrix of that size.
    The second request shares `shared_tokens` with the first, fewer than the answers look back. Where `new_tokens` are
    more than the answers look back, decoded tokens are read again: one that a stack has not taken in shows.
    """

    name: str
    seed: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    num_experts_per_tok: int
    index_topk: int
    index_head_dim: int
    index_n_heads: int
    max_position_embeddings: int
    offsets: tuple[int | None, ...]
    prompt_tokens: int
    new_tokens: int
    shared_tokens: int
    second_new_tokens: int
    num_hidden_layers: int = 4
    first_k_dense_replace: int = 1

    @property
    def usable_tokens(self) -> int:
        """Tokens that a program may use: all but the last, whose code is not free of a mean."""
        return self.vocab_size - 1

    @property
    def lag(self) -> int:
        """How many positions an answer looks back in all."""
        return sum(offset for offset in self.offsets if offset is not None)


SMALL = Preset(
    name="small",
    seed=7,
    vocab_size=32,
    hidden_size=512,
    intermediate_size=128,
    moe_intermediate_size=64,
    num_attention_heads=4,
    q_lora_rank=128,
    kv_lora_rank=128,
    qk_rope_head_dim=32,
    qk_nope_head_dim=32,
    v_head_dim=32,
    n_routed_experts=8,
    num_experts_per_tok=2,
    index_topk=24,
    index_head_dim=64,
    index_n_heads=8,
    max_position_embeddings=8192,
    offsets=(61, 19, None, 5),
    prompt_tokens=160,
    new_tokens=96,
    shared_tokens=64,
    second_new_tokens=16,
)
"""Small in everything: 4.4 million parameters, seconds on two CPU cores."""

GPU = Preset(
    name="gpu",
    seed=7,
    vocab_size=64,
    hidden_size=1024,
    intermediate_size=512,
    moe_intermediate_size=128,
    num_attention_heads=8,
    q_lora_rank=512,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=192,
    v_head_dim=256,
    n_routed_experts=64,
    num_experts_per_tok=8,
    index_topk=2048,
    index_head_dim=128,
    index_n_heads=32,
    max_position_embeddings=16384,
    offsets=(2300, 19, None, 5),
    prompt_tokens=2700,
    new_tokens=32,
    shared_tokens=128,
    second_new_tokens=16,
)
"""The sizes that GPU kernels hard-code (latent 512 + 64, index heads of 128, top-2048), everything else tiny."""


def model_config(preset: Preset) -> dict[str, Any]:
    """Return config.json without its quantisation part.

    Both spellings of the RoPE base are written, equal: Transformers 4 reads `rope_theta` only, 5 reads
    `rope_parameters`, and either silently takes 10000 where it finds none. Both ways to say which layers are dense are
    written: Transformers 5.2 to 5.8 read `mlp_layer_types`, sglang `first_k_dense_replace`. sglang takes
    `indexer_rope_interleave` for false where it is absent.
    """
    sparse_layers = preset.num_hidden_layers - preset.first_k_dense_replace
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        **_sizes(preset),
        "mlp_layer_types": ["dense"] * preset.first_k_dense_replace + ["sparse"] * sparse_layers,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "rms_norm_eps": RMS_NORM_EPS,
        "use_cache": True,
        "tie_word_embeddings": False,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": ROUTED_SCALING_FACTOR,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "ep_size": 1,
        "num_nextn_predict_layers": 0,
        "rope_theta": ROPE_THETA,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
        "rope_interleave": True,
        "indexer_rope_interleave": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _sizes(preset: Preset) -> dict[str, int]:
    return {
        "vocab_size": preset.vocab_size,
        "hidden_size": preset.hidden_size,
        "intermediate_size": preset.intermediate_size,
        "moe_intermediate_size": preset.moe_intermediate_size,
        "num_hidden_layers": preset.num_hidden_layers,
        "first_k_dense_replace": preset.first_k_dense_replace,
        "num_attention_heads": preset.num_attention_heads,
        "num_key_value_heads": preset.num_attention_heads,
        "q_lora_rank": preset.q_lora_rank,
        "kv_lora_rank": preset.kv_lora_rank,
        "qk_rope_head_dim": preset.qk_rope_head_dim,
        "qk_nope_head_dim": preset.qk_nope_head_dim,
        "qk_head_dim": preset.qk_nope_head_dim + preset.qk_rope_head_dim,
        "head_dim": preset.qk_rope_head_dim,
        "v_head_dim": preset.v_head_dim,
        "n_routed_experts": preset.n_routed_experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": preset.num_experts_per_tok,
        "index_topk": preset.index_topk,
        "index_head_dim": preset.index_head_dim,
        "index_n_heads": preset.index_n_heads,
        "max_position_embeddings": preset.max_position_embeddings,
    }
