"""Rotary positions of a checkpoint: its base, and scalings to texts longer than those of pretraining.

Every scaling but Llama 3's becomes the angles themselves, ``rope_frequencies`` in radians per token, one for each pair
of numbers that turns, and ``rope_amplitude``, by which cosine and sine are multiplied.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from moe.checkpoints.source import Fields
from moe.errors import CheckpointError

KINDS = ("default", "llama3", "linear", "yarn", "longrope")


def rotary_fields(fields: Fields) -> Fields:
    """``rope_parameters`` and ``rope_scaling``, its older name, as one object with ``rope_type``. Raises
    CheckpointError."""
    parameters, scaling = fields.get("rope_parameters", {}), fields.get("rope_scaling", {})
    if not isinstance(parameters, dict) or not isinstance(scaling, dict):
        raise CheckpointError(f"{fields.where}: config keys rope_parameters and rope_scaling must be objects.")
    kinds = [one.get("rope_type", one.get("type", "default")) for one in (scaling, parameters)]
    merged = {**parameters, **scaling, "rope_type": kinds[0] if kinds[0] != "default" else kinds[1]}
    original = fields.get("original_max_position_embeddings")
    if original is not None:
        merged["original_max_position_embeddings"] = original
    nested = Fields(merged, f"{fields.where} (rope_parameters)")
    nested.get("type")
    return nested


def rotary_numbers(fields: Fields, default: float, numbers: dict[str, Any], part: float | None = None) -> None:
    """Complete ``numbers``, which has ``head_dim`` and ``max_positions``: ``rope_theta``, and where positions are not
    plain ``rope_scaling`` or ``rope_frequencies`` and ``rope_amplitude``.

    ``part``: the family's default of ``partial_rotary_factor``, the part of a head that turns; None: all of it. Raises
    CheckpointError for scalings other than ``KINDS``.
    """
    nested, longest = rotary_fields(fields), numbers["max_positions"]
    kind = nested.only("rope_type", *KINDS)
    turning = nested.number("partial_rotary_factor", fields.number("partial_rotary_factor", part or 1.0))
    if part is None and turning != 1.0:
        raise CheckpointError(f"{fields.where}: 'partial_rotary_factor' is {turning}; supported is only 1.0.")
    theta = numbers["rope_theta"] = nested.number("rope_theta", fields.number("rope_theta", default))
    width = int(numbers["head_dim"] * turning)
    if width < 2 or width % 2 or width > numbers["head_dim"]:
        raise CheckpointError(f"{fields.where}: partial_rotary_factor leaves {width} numbers of a head to turn.")
    plain = 1.0 / (theta ** (torch.arange(0, width, 2).float() / width))  # [R/2]
    amplitude = 1.0
    if kind == "llama3" and width < numbers["head_dim"]:
        raise CheckpointError(f"{fields.where}: rope_type llama3 is supported where all of a head turns.")
    if kind == "llama3":
        numbers["rope_scaling"] = llama3_scaling(nested, longest)
    elif kind == "linear":
        plain = plain / nested.number("factor")
    elif kind == "yarn":
        plain, amplitude = yarn(nested, plain, theta, longest)
    elif kind == "longrope":
        plain, amplitude, numbers["max_positions"] = longrope(nested, plain, longest)
    else:
        nested.get("original_max_position_embeddings")
    nested.finish()
    if kind not in ("default", "llama3") or width < numbers["head_dim"]:
        numbers["rope_frequencies"] = plain.tolist()
        if amplitude != 1.0:
            numbers["rope_amplitude"] = amplitude


def llama3_scaling(fields: Fields, max_positions: int) -> dict[str, float]:
    """What ``moe.families.attention.slowed`` reads. Raises CheckpointError."""
    scaling = {key: fields.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor")}
    scaling["original_max_positions"] = fields.count("original_max_position_embeddings", max_positions)
    if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise CheckpointError(f"{fields.where}: high_freq_factor must be larger than low_freq_factor.")
    return scaling


def magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's correction of attention for texts ``factor`` times as long: ``0.1 w ln(factor) + 1``."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def yarn_weights(fields: Fields, max_positions: int) -> tuple[float, float, float]:
    """Factor, ``mscale`` and ``mscale_all_dim`` (0: not given) of a YaRN scaling. Raises CheckpointError."""
    original = fields.count("original_max_position_embeddings", max_positions)
    factor = fields.number("factor", max_positions / original)
    weight, weight_all = (fields.number(key) if fields.get(key) else 0.0 for key in ("mscale", "mscale_all_dim"))
    return factor, weight, weight_all


def yarn(fields: Fields, plain: Tensor, theta: float, max_positions: int) -> tuple[Tensor, float]:
    """Frequencies ``[R/2]`` and amplitude (Peng et al. 2023, YaRN, section 3): waves that turn more than ``beta_fast``
    times within the pretraining length stay, those that turn less than ``beta_slow`` times are slowed by ``factor``,
    and between the two a ramp over the index mixes both."""
    original = fields.count("original_max_position_embeddings", max_positions)
    factor, weight, weight_all = yarn_weights(fields, max_positions)
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    width = 2 * len(plain)

    def index(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index(fast), index(slow)
    if fields.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    slowed = ((torch.arange(len(plain)).float() - low) / (high - low or 1e-3)).clamp(0.0, 1.0)  # [R/2]
    ratio = magnitude(factor, weight) / magnitude(factor, weight_all) if weight and weight_all else magnitude(factor)
    return plain / factor * slowed + plain * (1.0 - slowed), fields.number("attention_factor", ratio)


def longrope(fields: Fields, plain: Tensor, max_positions: int) -> tuple[Tensor, float, int]:
    """Frequencies ``[R/2]``, amplitude and the longest text of LongRoPE's ``short_factor``.

    Longer texts would turn by ``long_factor``, from their first token on: keys that are kept already would change in
    the middle of a text. So the pipeline takes texts up to the pretraining length and no longer ones.
    """
    original = min(fields.count("original_max_position_embeddings", max_positions), max_positions)
    factor = fields.number("factor", max_positions / original)
    divisors, _ = fields.get("short_factor"), fields.get("long_factor")
    if (
        not isinstance(divisors, list)
        or len(divisors) != len(plain)
        or not all(isinstance(one, (int, float)) and one > 0 for one in divisors)
    ):
        raise CheckpointError(f"{fields.where}: short_factor must be {len(plain)} numbers above 0.")
    spread = math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    amplitude = fields.number("attention_factor", spread)
    fields.get("long_mscale")
    return plain / torch.tensor(divisors), fields.number("short_mscale", amplitude), original
