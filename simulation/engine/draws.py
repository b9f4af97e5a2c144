"""Random draws as hashes of (seed, stream, number), and the routing of tokens that is made from them.

A draw depends on nothing but its name, so results depend neither on order nor on threads.
"""

from __future__ import annotations

import numpy as np

from simulation.arrays import Floats, Ints, Tokens
from simulation.engine.compiled import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
_MIX_TWO = np.uint64(0x94D049BB133111EB)
DISPATCH, PASS, SERVICE, COLD_START, LENGTH = 5_000_000, 4_000_000, 3_000_000, 2_000_000, 1_000_000
"""Streams of dispatch at random, of the noise of passes and of calls (numbered by request), of cold starts and of
requests' lengths; layers' routing has the streams from 0."""
ATOMS = 1024
"""Values in a noise table, equally likely, chosen by the upper ten bits of a draw."""
ATOM_SHIFT = np.uint64(54)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@compiled
def mixed(value: np.uint64) -> np.uint64:
    """Finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 bits to 64 bits that look independent."""
    value = (value ^ (value >> _S30)) * _MIX_ONE
    value = (value ^ (value >> _S27)) * _MIX_TWO
    return value ^ (value >> _S31)


@compiled
def stream_key(seed: int, stream: int, index: int) -> np.uint64:
    """Key of one stream of draws; the same on every machine and in every order of drawing."""
    key = mixed(np.uint64(seed) + _GOLDEN)
    key = mixed(key ^ (np.uint64(stream) + np.uint64(1)) * _GOLDEN)
    return mixed(key ^ (np.uint64(index) + np.uint64(1)) * _MIX_ONE)


@compiled
def draw_bits(key: np.uint64, index: int) -> np.uint64:
    """Draw number ``index`` of a stream, 64 bits."""
    return mixed(key + (np.uint64(index) + np.uint64(1)) * _GOLDEN)


@compiled
def uniform(key: np.uint64, index: int) -> float:
    """The same as a number from 0 to below 1."""
    return float(draw_bits(key, index) >> _S11) * 1.1102230246251565e-16


@compiled
def draw(seed: int, stream: int, index: int, number: int) -> float:
    """Draw ``number`` of the stream ``(seed, stream, index)``, 0 to below 1."""
    return uniform(stream_key(seed, stream, index), number)


@compiled
def quantile(tables: Floats, row: int, probability: float) -> float:
    """Inverse distribution function ``row`` of ``tables [rows, Q]``, on an even grid and linear in between."""
    at = probability * (tables.shape[1] - 1)
    low = int(at)
    return float(tables[row, low] + (at - low) * (tables[row, low + 1] - tables[row, low]))


@compiled
def route(
    seed: int, arrival_s: Floats, tokens: Ints, popularity: Floats, spread: Ints, factors: Floats, phase_s: float,
    experts: Ints, top_k: int, shared: int, counts: Tokens,
) -> None:  # fmt: skip
    """Token routing of every request (see :mod:`simulation.workloads.routing`): ``counts [1 + all experts, requests]``
    gets the tokens of the request in row 0 and below the tokens that each expert gets of it, in order of layer and
    number; the last ``shared`` experts of a layer get all of them."""
    weights = np.empty(popularity.shape[2])
    drawn = np.empty(popularity.shape[2], dtype=np.int64)
    chosen = np.empty(popularity.shape[2], dtype=np.uint8)
    for request in range(arrival_s.size):
        counts[0, request] = tokens[request]
        at = arrival_s[request] / phase_s
        phase = int(at)
        part = at - phase
        before, after = phase % popularity.shape[0], (phase + 1) % popularity.shape[0]
        first = 1
        for layer in range(experts.size):
            key = stream_key(seed, layer, request)
            size, whole = experts[layer] - shared, 0.0
            for j in range(size):
                weight = popularity[before, layer, j] * (1 - part) + popularity[after, layer, j] * part
                weights[j] = weight * quantile(factors, spread[layer, j], uniform(key, j))
                whole += weights[j]
                drawn[j] = 0
            for token in range(tokens[request]):
                left = whole
                chosen[:size] = 0
                for k in range(min(top_k, size)):
                    point, expert = uniform(key, size + token * top_k + k) * left, -1
                    for j in range(size):
                        if chosen[j] == 0:
                            expert = j
                            point -= weights[j]
                            if point < 0:
                                break
                    chosen[expert] = 1
                    drawn[expert] += 1
                    left -= weights[expert]
            for j in range(size):
                counts[first + j, request] = drawn[j]
            for j in range(size, size + shared):
                counts[first + j, request] = tokens[request]
            first += size + shared
