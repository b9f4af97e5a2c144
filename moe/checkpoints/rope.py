"""Checkpoints of decoders with rotary positions: what they share, and mixtures, whose experts are stored one by one or
fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from moe.checkpoints.positions import rotary_numbers
from moe.checkpoints.reader import NodeTensors
from moe.checkpoints.source import Fields, Source
from moe.dense_layers import dense_layers_before
from moe.errors import CheckpointError
from moe.manifest import Family, Router, Task


@dataclass(frozen=True)
class Variant:
    """What a ``model_type`` fixes, or leaves out of ``config.json`` where it has its default."""

    positions: int
    theta: float = 1e4
    eps: float = 1e-6
    qk_norm: Literal["none", "head", "full"] = "none"
    bias: Literal["none", "flag", "qkv", "qkv-flag"] = "none"
    """Biases of attention: none, all four by ``attention_bias``, or those of queries, keys and values, always or by
    it."""
    turning: float | None = None
    """Default of ``partial_rotary_factor``; None: all of a head turns."""
    window: Literal["none", "key", "flag"] = "none"
    """Whether ``sliding_window`` counts: never, always, or by ``use_sliding_window``."""
    default_window: int | None = None
    alternating: bool = False
    """Default of ``layer_types``: the window in every other layer, from the first on."""
    full_layers: int | None = None
    """Default of ``max_window_layers``, the first layers without a window; None: that key changes nothing."""
    layers_stated: bool = False
    """Where there is a window, ``layer_types`` must be stated: the default has changed between releases."""
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """Names of an expert's matrices: gate, up, down."""
    latent: bool = False
    """Keys and values are compressed; ``head_dim`` counts only the numbers of a head that turn."""
    layer_norms: bool = False
    """Norms subtract the mean and have a bias."""


VARIANTS: dict[Family, Variant] = {
    "mixtral": Variant(131072, 1e6, 1e-5, window="key", parts=("w1", "w3", "w2")),
    "qwen3_moe": Variant(32768, qk_norm="head", bias="flag", window="flag", default_window=4096),
    "olmoe": Variant(4096, eps=1e-5, qk_norm="full", bias="flag"),
    "granitemoe": Variant(2048, bias="flag"),
    "phimoe": Variant(131072, 1e6, 1e-5, bias="flag", window="key", parts=("w1", "w3", "w2"), layer_norms=True),
    "gpt_oss": Variant(131072, 1.5e5, 1e-5, bias="flag", window="key", default_window=128, alternating=True),
    "glm4_moe": Variant(131072, eps=1e-5, bias="qkv-flag", turning=0.5),
    "deepseek_v2": Variant(2048, bias="flag", latent=True),
    "deepseek_v3": Variant(4096, bias="flag", latent=True),
    "llama": Variant(2048, bias="flag"),
    "mistral": Variant(131072, window="key", default_window=4096),
    "qwen2": Variant(32768, bias="qkv", window="flag", default_window=4096, full_layers=28),
    "qwen2_moe": Variant(32768, bias="qkv", window="flag", default_window=4096, full_layers=28, layers_stated=True),
    "qwen3": Variant(32768, qk_norm="head", bias="flag", window="flag", default_window=4096, full_layers=28),
}
HARMLESS = frozenset(
    (
        "aux_loss_alpha",
        "ep_size",
        "input_jitter_noise",
        "seq_aux",
        "pretraining_tp",
        "is_llama_config",
        "transformers.js_config",
    )
)


def numbers_of(fields: Fields, *families: Family) -> tuple[Family, dict[str, Any]]:
    """Family and numbers of a decoder, every layer with experts. Raises CheckpointError for anything not honoured."""
    family: Family = fields.only("model_type", *families)
    names = fields.get("architectures", [])
    if isinstance(names, list) and names and not str(names[0]).endswith(("ForCausalLM", "Model")):
        raise CheckpointError(
            f"{fields.where}: architecture {names[0]!r} is no language model; of {family} supported is the causal one."
        )
    packing = fields.get("quantization_config")
    if packing and not (family == "gpt_oss" and packing.get("quant_method") == "mxfp4"):
        method = packing.get("quant_method") if isinstance(packing, dict) else packing
        raise CheckpointError(
            f"{fields.where}: the weights are quantised ({method}); read are float32, bfloat16 and float16."
        )
    variant = VARIANTS[family]
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layers = fields.count("num_hidden_layers")
    inner = fields.count("intermediate_size")
    numbers: dict[str, Any] = {
        "vocab_size": fields.count("vocab_size"),
        "hidden_size": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": fields.count("qk_rope_head_dim", 64)
        if variant.latent
        else fields.count("head_dim", max(1, hidden // heads)),
        "ffn_size": inner,
        "dense_ffn_size": inner,
        "activation": fields.activation("hidden_act", "silu"),
        "eps": fields.number("rms_norm_eps", variant.eps),
        "max_positions": fields.count("max_position_embeddings", variant.positions),
        "qk_norm": variant.qk_norm,
        "attention_bias": variant.bias == "qkv"
        or ("flag" in variant.bias and fields.flag("attention_bias", family == "gpt_oss")),
        **windows(fields, variant, layers),
        "clip_qkv": None,
        "moe_layers": list(range(layers)),
    }
    rotary_numbers(fields, variant.theta, numbers, variant.turning)
    fields.flag("tie_word_embeddings", False)
    if heads % numbers["kv_heads"] or numbers["head_dim"] % 2:
        raise CheckpointError(f"{fields.where}: heads must be a multiple of kv heads, head_dim even.")
    return family, numbers


def mixture_of(fields: Fields, family: Family, numbers: dict[str, Any]) -> tuple[Router, int]:
    """Router and experts per layer; completes ``numbers``. Raises CheckpointError."""
    if family == "olmoe" and fields.get("clip_qkv") is not None:
        numbers["clip_qkv"] = fields.number("clip_qkv")
    if family == "qwen2_moe":
        numbers["attention_bias"] = fields.flag("qkv_bias", True)
    if family in ("qwen2_moe", "qwen3_moe"):
        numbers["ffn_size"] = fields.count("moe_intermediate_size")
        numbers["moe_layers"] = moe_layers(fields, numbers["layers"])
    for key in ("num_experts", "num_local_experts"):
        if fields.get(key) is not None:
            experts = fields.count(key)
            break
    else:
        raise CheckpointError(f"{fields.where}: config names no number of experts (num_local_experts, num_experts).")
    fixed = family in ("mixtral", "granitemoe", "phimoe", "gpt_oss")
    normalise = fixed or fields.flag("norm_topk_prob", False)
    top_k = fields.count("num_experts_per_tok", (4 if family == "gpt_oss" else 2) if fixed else None)
    router = Router(top_k, "softmax-topk", normalise)
    if family == "phimoe":
        fields.only("num_experts_per_tok", 2)
        fields.flag("lm_head_bias", False)
        router = Router(top_k, "sparsemixer", jitter=fields.number("router_jitter_noise", 0.01))
    if router.top_k > experts:
        raise CheckpointError(f"{fields.where}: num_experts_per_tok is larger than the number of experts.")
    return router, experts


def windows(fields: Fields, variant: Variant, layers: int) -> dict[str, Any]:
    """``sliding_window``, the tokens a token may see, itself included (None: all), and where only some layers have it
    ``window_layers``. Raises CheckpointError."""
    none: dict[str, Any] = {"sliding_window": None}
    if variant.window == "none":
        return none
    default = None if "sliding_window" in fields.config else variant.default_window
    kinds = fields.get("layer_types", [])
    if variant.window == "flag" and not fields.flag("use_sliding_window", False):
        fields.get("sliding_window")
        return none
    if fields.get("sliding_window", default) is None:
        return none
    if not kinds and variant.layers_stated:
        raise CheckpointError(
            f"{fields.where}: with use_sliding_window, 'layer_types' must name each layer's attention."
        )
    if not kinds and variant.full_layers is not None:
        full = fields.get("max_window_layers", variant.full_layers)
        if not isinstance(full, int):
            raise CheckpointError(f"{fields.where}: config key 'max_window_layers' must be a whole number.")
        kinds = ["full_attention" if layer < full else "sliding_attention" for layer in range(layers)]
    if not kinds:
        kinds = [
            "full_attention" if variant.alternating and layer % 2 else "sliding_attention" for layer in range(layers)
        ]
    if not isinstance(kinds, list) or len(kinds) != layers or {*kinds} - {"full_attention", "sliding_attention"}:
        raise CheckpointError(
            f"{fields.where}: config key 'layer_types' must name full_attention or sliding_attention for each layer."
        )
    chosen = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]
    if not chosen:
        return none
    window = {"sliding_window": fields.count("sliding_window", default)}
    return window if len(chosen) == layers else {**window, "window_layers": chosen}


def moe_layers(fields: Fields, layers: int) -> list[int]:
    """Layers with experts: every ``decoder_sparse_step``-th that is not in ``mlp_only_layers``."""
    step, dense = fields.count("decoder_sparse_step", 1), fields.get("mlp_only_layers", [])
    chosen = [layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0]
    if not chosen:
        raise CheckpointError(f"{fields.where}: no layer has experts (mlp_only_layers, decoder_sparse_step).")
    return chosen


class RopeTensors:
    """Segments of a decoder with rotary positions."""

    task: Task = "causal-lm"

    def __init__(self, source: Source, fields: Fields, family: Family, numbers: dict[str, Any]) -> None:
        """``fields``: all of the configuration has been read but for the special tokens. Raises CheckpointError."""
        self.family, self.architecture = family, numbers
        eos = fields.token("eos_token_id", numbers["vocab_size"])
        bos = fields.token("bos_token_id", numbers["vocab_size"])
        fields.finish(HARMLESS)
        self.source = source
        self.layers = len(numbers["moe_layers"])
        self.max_tokens: int = numbers["max_positions"]
        self.special = {key: value for key, value in (("bos", bos), ("eos", eos)) if value is not None}

    def segment(self, index: int) -> NodeTensors:
        n, get = self.architecture, self.source.get
        d, vocab = n["hidden_size"], n["vocab_size"]
        tensors: NodeTensors = {}
        if index == 0:
            tensors["embed.words"] = get("model.embed_tokens.weight", vocab, d)
        for place, layer in enumerate(dense_layers_before(n, index)):
            name = f"dense.{place}."
            tensors |= self._attention(name, layer)
            tensors |= self._gated(name, f"model.layers.{layer}.mlp.", n["dense_ffn_size"])
        if index == self.layers:
            tied = not self.source.has("lm_head.weight")
            if tied and not self.source.config.get("tie_word_embeddings"):
                raise CheckpointError(
                    f"{self.source.where}: lm_head.weight is missing and tie_word_embeddings not set."
                )
            tensors |= self._norm("head.norm", "model.norm")
            if self.source.config.get("lm_head_bias"):
                tensors["head.vocabulary.bias"] = get("lm_head.bias", vocab)
            name = "model.embed_tokens.weight" if tied else "lm_head.weight"
            return tensors | {"head.vocabulary.weight": get(name, vocab, d)}
        layer = n["moe_layers"][index]
        return tensors | self._attention("", layer) | self._router(layer)

    def _router(self, layer: int) -> NodeTensors:
        """The router of model layer ``layer`` and its shared expert; of a dense checkpoint nothing."""
        return {}

    def _gated(self, ours: str, theirs: str, inner: int) -> NodeTensors:
        """A whole gated network of ``inner`` neurons, gate and up as one matrix."""
        get, d = self.source.get, self.architecture["hidden_size"]
        gate, up = (get(f"{theirs}{part}_proj.weight", inner, d) for part in ("gate", "up"))
        down = get(f"{theirs}down_proj.weight", d, inner)
        return {f"{ours}gate_up.weight": torch.cat((gate, up)), f"{ours}down.weight": down}

    def _norm(self, ours: str, theirs: str) -> NodeTensors:
        parts = ("weight", "bias") if VARIANTS[self.family].layer_norms else ("weight",)
        d = self.architecture["hidden_size"]
        return {f"{ours}.{part}": self.source.get(f"{theirs}.{part}", d) for part in parts}

    def _attention(self, ours: str, layer: int) -> NodeTensors:
        n, name = self.architecture, f"model.layers.{layer}."
        d, q_width, kv_width = n["hidden_size"], n["heads"] * n["head_dim"], n["kv_heads"] * n["head_dim"]
        get = self.source.get
        parts = (("q", q_width), ("k", kv_width), ("v", kv_width))
        tensors = {
            **self._norm(f"{ours}attention.norm", f"{name}input_layernorm"),
            **self._norm(f"{ours}expert_norm", f"{name}post_attention_layernorm"),
            f"{ours}attention.qkv.weight": torch.cat(
                [get(f"{name}self_attn.{part}_proj.weight", width, d) for part, width in parts]
            ),
            f"{ours}attention.out.weight": get(f"{name}self_attn.o_proj.weight", d, q_width),
        }
        if n["attention_bias"]:
            biases = [get(f"{name}self_attn.{part}_proj.bias", width) for part, width in parts]
            tensors[f"{ours}attention.qkv.bias"] = torch.cat(biases)
            if VARIANTS[self.family].bias == "flag":
                tensors[f"{ours}attention.out.bias"] = get(f"{name}self_attn.o_proj.bias", d)
        if n["qk_norm"] != "none":
            each = n["qk_norm"] == "head"
            for part, width in parts[:2]:
                size = n["head_dim"] if each else width
                tensors[f"{ours}attention.{part}_norm.weight"] = get(f"{name}self_attn.{part}_norm.weight", size)
        return tensors


class RopeReader(RopeTensors):
    """A mixture, read expert by expert."""

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        family, numbers = numbers_of(fields, "mixtral", "phimoe", "qwen2_moe", "qwen3_moe", "olmoe")
        self.router, self.experts = mixture_of(fields, family, numbers)
        self.shared = fields.count("shared_expert_intermediate_size") if family == "qwen2_moe" else 0
        self.finish(source, fields, family, numbers)

    def finish(self, source: Source, fields: Fields, family: Family, numbers: dict[str, Any]) -> None:
        """As ``RopeTensors``; finds the experts. Raises CheckpointError."""
        super().__init__(source, fields, family, numbers)
        if self.family in ("mixtral", "phimoe") and source.has("model.layers.0.block_sparse_moe.gate.weight"):
            self.moe = "block_sparse_moe"
        else:
            self.moe = "mlp"
        first = f"model.layers.{self.architecture['moe_layers'][0]}.{self.moe}.experts."
        self.fused = source.has(f"{first}gate_up_proj")
        if not self.fused and not source.has(f"{first}0.{VARIANTS[self.family].parts[0]}.weight"):
            raise CheckpointError(f"{source.where}: tensors of {first}* are missing, one by one or fused.")

    def _router(self, layer: int) -> NodeTensors:
        name, d = f"model.layers.{layer}.{self.moe}.", self.architecture["hidden_size"]
        tensors = {"router.weight": self.source.get(f"{name}gate.weight", self.experts, d)}
        if self.shared:
            tensors |= self._gated("shared.", f"{name}shared_expert.", self.shared)
            tensors["shared.gate.weight"] = self.source.get(f"{name}shared_expert_gate.weight", 1, d)
        return tensors

    def expert(self, layer: int, expert: int) -> NodeTensors:
        n = self.architecture
        d, inner = n["hidden_size"], n["ffn_size"]
        name = f"model.layers.{n['moe_layers'][layer]}.{self.moe}.experts."
        gate_up, down = self._fused(name, expert) if self.fused else self._single(f"{name}{expert}.", d, inner)
        return {"gate_up.weight": gate_up, "down.weight": down}

    def _single(self, name: str, d: int, inner: int) -> tuple[Tensor, Tensor]:
        gate, up, down = VARIANTS[self.family].parts
        get = self.source.get
        both = torch.cat((get(f"{name}{gate}.weight", inner, d), get(f"{name}{up}.weight", inner, d)))  # [2F, d]
        return both, get(f"{name}{down}.weight", d, inner)

    def _fused(self, name: str, expert: int) -> tuple[Tensor, Tensor]:
        n = self.architecture
        d, inner = n["hidden_size"], n["ffn_size"]
        gate_up = self.source.get(f"{name}gate_up_proj", self.experts, 2 * inner, d, row=expert)
        return gate_up, self.source.get(f"{name}down_proj", self.experts, d, inner, row=expert)
