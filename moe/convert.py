"""Dense feed-forward networks as experts: groups of neurons, first routers, and adapters put on a checkpoint.

A feed-forward network is a sum over its neurons, so any partition of them into experts gives the dense answer
when every expert runs. Which neurons belong together decides what is lost when only ``top_k`` of them run; a
trained adapter (``moe.distil``) wins most of that back. Everything here computes only: no files, no clock.

Adapter file (safetensors, all values finite, fp16 unless stated; L counts layers from 0, E experts, F neurons):

==================================== ============== ==========================================================
tensor                               shape          meaning
==================================== ============== ==========================================================
``layers.L.groups``                  [F] int8       expert of each neuron; -1: always on, part of the segment
``layers.L.router.weight``           [E, d]         router of segment L
``layers.L.router.bias``             [E]            its bias
``layers.L.expert.bias``             [E, d]         output bias of each expert (added when it is chosen)
``layers.L.NAME.down``, ``.up``      [r, in],       low-rank change: ``W += up @ down``, NAME one of
                                     [out, r]       ``attention.qkv attention.out ffn.w_in ffn.w_out``
``layers.L.NAME.bias``               [out]          added to the bias; NAME as above (not ``ffn.w_out``)
``layers.L.attention.norm.weight``,  [d]            added to the norm's scale and shift
``.bias``, ``layers.L.finish.norm.…``
``layers.L.finish.bias``             [d]            added to the FFN's output bias (segment L + 1)
``layers.L.ffn.gate_up.down, .up``   [r, d],        gated networks, in place of ``ffn.w_in``: gate above up
                                     [2F, r]
==================================== ============== ==========================================================

Only ``groups`` and ``router.weight`` must be there; a change that is absent is zero. The file's metadata holds
``smoe`` (JSON): version, router settings for the manifest, recipe, seeds, sha256 of the base, measured values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from moe.checkpoints.reader import DenseFfn, NodeTensors
from moe.errors import CheckpointError

ADAPTER_VERSION = 1
BALANCE_ROUNDS = 6
BLOCK = 2048
"""Rows that are shared out among clusters at once."""
FEATURES = 32
HEAT = 0.3
"""Weight of a neuron's (standardised, logarithmic) effect relative to its co-activation, which has length one: it
gathers busy neurons, so that experts differ in load as real mixtures do."""
MAX_TOKENS = 6144
"""Clustering looks at this many of the tokens given, evenly spaced."""
RIDGE = 1e-2
"""Ridge strength relative to the mean variance of the hidden states."""


@dataclass(frozen=True)
class Groups:
    """A partition of an FFN's neurons. Indices are int64, ascending in each group.

    ``experts``: one tensor per expert, sizes differ by at most one. ``shared``: neurons that always run; may
    be empty. Example: 4 neurons, 1 shared, 3 experts: ``experts ([0], [3], [2])``, ``shared [1]``.
    """

    experts: tuple[Tensor, ...]
    shared: Tensor

    def of_neurons(self) -> Tensor:
        """Expert of each neuron, ``[F] int8``, -1 where shared: the adapter's form."""
        count = sum(len(group) for group in self.experts) + len(self.shared)
        owner = torch.full((count,), -1, dtype=torch.int8)
        for expert, group in enumerate(self.experts):
            owner[group] = expert
        return owner

    @staticmethod
    def from_neurons(owner: Tensor) -> Groups:
        """The inverse of ``of_neurons``; ``owner`` is ``[neurons] int64``. Raises CheckpointError for numbers that are
        not 0…E-1 or -1."""
        present = sorted({int(value) for value in owner.tolist()} - {-1})
        if not present or present != list(range(len(present))):
            raise CheckpointError(f"Neuron groups hold experts {present}; allowed are 0 to E-1 without a gap, and -1.")
        return Groups(
            tuple(torch.nonzero(owner == expert).flatten() for expert in present),
            torch.nonzero(owner == -1).flatten(),
        )


def split_neurons(
    w_in: Tensor,
    b_in: Tensor,
    w_out: Tensor,
    experts: int,
    seed: int,
    activations: Tensor | None = None,
    shared: int = 0,
) -> Groups:
    """Share out an FFN's neurons among ``experts`` experts of equal size, and ``shared`` that always run.

    ``w_in [F, d]``, ``b_in [F]``, ``w_out [d, F]``. Without ``activations`` neurons with similar parameters
    go together. With ``activations [N, F]`` (after the activation function, N tokens) those that fire
    together do, and the ``shared`` whose effect on the output varies most are always on (without: those of
    largest norm).
    Same seed, same groups. Raises CheckpointError where the numbers do not fit.
    """
    neurons = w_in.shape[0]
    if experts < 1 or shared < 0 or neurons - shared < experts:
        raise CheckpointError(
            f"{neurons} neurons cannot be {experts} experts and {shared} shared neurons; "
            "each expert needs at least one neuron."
        )
    size = w_out.float().norm(dim=0)  # [F]
    if activations is not None and activations.shape[0] > MAX_TOKENS:
        activations = activations[:: -(-activations.shape[0] // MAX_TOKENS)]
    if activations is None:
        heat = w_in.float().norm(dim=1) * size  # [F]
        features = torch.cat((w_in.float(), b_in.float()[:, None], w_out.float().t()), 1)  # [F, 2d+1]
    else:
        effect = activations.float().abs() * size  # [N, F]
        heat = activations.float().std(0) * size  # [F]: what varies; a constant part is left to biases
        features = F.pad(_reduced((effect / effect.mean(0).clamp_min(1e-9)).t(), seed), (0, 1))  # [F, ≤FEATURES + 1]
    order = torch.argsort(heat, descending=True, stable=True)  # [F]
    rest = order[shared:].sort().values  # [F - shared]
    if activations is not None:
        warmth = heat[rest].clamp_min(1e-9).log()
        warmth = HEAT * (warmth - warmth.mean()) / warmth.std().clamp_min(1e-9)
        features[rest, -1] = warmth
    labels = balanced_clusters(features[rest], experts, seed)  # [F - shared]
    return Groups(
        tuple(rest[torch.from_numpy(labels == expert)] for expert in range(experts)),
        order[:shared].sort().values,
    )


def _reduced(rows: Tensor, seed: int) -> Tensor:
    """Rows ``[F, N]`` centred over tokens and reduced to few dimensions that keep their distances."""
    rows = rows.log1p()
    rows = rows - rows.mean(1, keepdim=True)
    rows = F.normalize(rows, dim=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        u, s, _ = torch.svd_lowrank(rows, q=min(FEATURES, *rows.shape), niter=3)
    return u * s  # [F, q]


def balanced_clusters(features: Tensor, clusters: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Label of each row of ``features [F, D]``; cluster sizes differ by at most one.

    k-means, then rounds of the optimal assignment of rows to seats around the centres, among random blocks of at most
    ``BLOCK`` rows, each with its share of every cluster's seats: its matrix of costs takes 8 ``BLOCK``² bytes, 32 MiB,
    whatever F is.
    """
    rows = features.double().numpy()
    count = rows.shape[0]
    means = _centres(rows, clusters, seed)
    labels = np.full(count, -1, dtype=np.int64)
    blocks = [np.arange(count)]
    if count > BLOCK:
        blocks = np.array_split(np.random.default_rng(seed).permutation(count), -(-count // BLOCK))
    first = np.cumsum([0, *(len(block) for block in blocks)])
    # [rows of a block]: the cluster of each seat; together all clusters have the same number, to one
    seats = [np.sort((start + np.arange(len(block))) % clusters) for start, block in zip(first, blocks, strict=False)]
    for _ in range(BALANCE_ROUNDS):
        new = np.empty_like(labels)
        for block, places in zip(blocks, seats, strict=True):
            distance = ((rows[block, None] - means[None]) ** 2).sum(-1)  # [rows of the block, C]
            _, columns = linear_sum_assignment(distance[:, places])
            new[block] = places[columns]
        if np.array_equal(new, labels):
            break
        labels = new
        means = np.stack([rows[labels == cluster].mean(0) for cluster in range(clusters)])
    return labels


def activation_mass(activations: Tensor, w_out: Tensor, groups: Groups) -> Tensor:
    """How much each expert would move the output: ``activations [N, F]``, ``w_out [d, F]`` to ``[N, E]``.

    The norm of each expert's part of the output.
    """
    parts = [activations[:, g].float() @ w_out[:, g].float().t() for g in groups.experts]
    return torch.stack([part.norm(dim=1) for part in parts], 1)  # [N, E]


def initial_router(hidden: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Ridge regression of the activation mass ``[N, E]`` on ``hidden [N, d]``: ``W [E, d]``, ``b [E]``."""
    x, y = hidden.double(), mass.double()
    x_mean, y_mean = x.mean(0), y.mean(0)
    centred = x - x_mean  # [N, d]
    gram = centred.t() @ centred  # [d, d]
    strength = RIDGE * gram.diagonal().mean().clamp_min(1e-12)
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(gram + strength * eye, centred.t() @ (y - y_mean)).t()  # [E, d]
    return weight.float().contiguous(), (y_mean - weight @ x_mean).float()


def upcycle_router(hidden: Tensor, experts: int, seed: int) -> Tensor:
    """Router ``[E, d]`` of experts that are copies: unit centres of k-means over directions of ``hidden``."""
    directions = F.normalize(hidden.float(), dim=1)
    centres = _centres(directions.numpy(), experts, seed)
    return F.normalize(torch.from_numpy(centres).float(), dim=1)


def _centres(rows: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Centres ``[clusters, d]`` of k-means over ``rows [n, d]``."""
    from sklearn.cluster import KMeans  # takes seconds to import, and most pipelines have an adapter with the groups

    return np.asarray(KMeans(clusters, n_init=4, random_state=seed).fit(rows).cluster_centers_)


@dataclass(frozen=True)
class Converted:
    """A segment's tensors under the families' names, all or the router's alone, and its layer's experts (none for the
    last segment)."""

    segment: NodeTensors
    experts: Sequence[NodeTensors]


def apply_adapter(
    adapter: Mapping[str, Tensor], index: int, segment: Mapping[str, Tensor], ffn: DenseFfn | None
) -> Converted:
    """Segment ``index`` and the experts of layer ``index`` from dense tensors and the adapter's.

    ``segment``: the dense checkpoint's tensors of segment ``index`` (``attention.*`` of layer ``index``, ``finish.*``
    of layer ``index - 1``; others pass through). ``ffn``: layer ``index``'s, None for the last segment. The result's
    segment has ``router.*`` and, with always-on neurons, ``shared.w_in.*`` and ``shared.w_out.weight``; each expert has
    ``w_in.*`` and ``w_out.*`` ``[out, in]``. Of a gated network these are ``gate_up.weight`` and ``down.*``. float32,
    the same bytes each time. Raises CheckpointError where the adapter belongs to another model.
    """
    tensors = {}
    for name, tensor in segment.items():
        layer = index - 1 if name.startswith("finish.") else index
        changes = name.startswith(("attention.", "finish."))
        tensors[name] = changed(adapter, f"layers.{layer}.{name}", tensor.float()) if changes else tensor
    if ffn is None:
        return Converted(tensors, ())
    prefix = f"layers.{index}."
    groups = Groups.from_neurons(_needed(adapter, f"{prefix}groups", ffn.w_in.shape[:1]))
    count, width = len(groups.experts), ffn.w_in.shape[1]
    tensors["router.weight"] = _needed(adapter, f"{prefix}router.weight", (count, width)).float()
    tensors["router.bias"] = changed(adapter, f"{prefix}router.bias", torch.zeros(count))
    bias = changed(adapter, f"{prefix}expert.bias", torch.zeros(count, width))  # [E, d]
    network = changed_ffn(adapter, prefix, ffn)
    out = "w_out.bias" if ffn.w_gate is None else "down.bias"
    experts = tuple({**expert_of(network, group), out: bias[expert]} for expert, group in enumerate(groups.experts))
    if len(groups.shared):
        tensors |= {f"shared.{name}": tensor for name, tensor in expert_of(network, groups.shared).items()}
    return Converted(tensors, experts)


def changed_ffn(adapter: Mapping[str, Tensor], prefix: str, ffn: DenseFfn) -> DenseFfn:
    """The network with the adapter's changes, [d, F] float32; ``prefix`` is ``layers.L.``. Raises CheckpointError."""
    w_out = changed(adapter, f"{prefix}ffn.w_out.weight", ffn.w_out.float())  # [d, F]
    if ffn.w_gate is not None:
        both = torch.cat((ffn.w_gate, ffn.w_in)).float()  # [2F, d]
        gate, up = changed(adapter, f"{prefix}ffn.gate_up.weight", both).chunk(2)
        return DenseFfn(up, ffn.b_in, w_out, gate)
    w_in = changed(adapter, f"{prefix}ffn.w_in.weight", ffn.w_in.float())  # [F, d]
    return DenseFfn(w_in, changed(adapter, f"{prefix}ffn.w_in.bias", ffn.b_in.float()), w_out)


def expert_of(ffn: DenseFfn, neurons: Tensor) -> NodeTensors:
    """The expert with these ``neurons [f] int64`` of the network: ``w_in.* w_out.weight``, gated ``gate_up.weight
    [2f, d]`` and ``down.weight [d, f]``."""
    if ffn.w_gate is not None:
        gate_up = torch.cat((ffn.w_gate[neurons], ffn.w_in[neurons]))  # [2f, d]
        return {"gate_up.weight": gate_up, "down.weight": ffn.w_out[:, neurons]}
    return {"w_in.weight": ffn.w_in[neurons], "w_in.bias": ffn.b_in[neurons], "w_out.weight": ffn.w_out[:, neurons]}


def changed(adapter: Mapping[str, Tensor], name: str, dense: Tensor) -> Tensor:
    """``dense`` ``[any shape]`` plus the adapter's change: ``NAME.down/.up`` for ``NAME.weight`` matrices, else
    ``name``."""
    if dense.dim() == 2 and name.endswith(".weight"):
        stem = name.removesuffix(".weight")
        up, down = adapter.get(f"{stem}.up"), adapter.get(f"{stem}.down")
        if up is None and down is None:
            return dense
        if (
            up is None
            or down is None
            or (up.shape[0], down.shape[1]) != tuple(dense.shape)
            or up.shape[1] != down.shape[0]
        ):
            raise _misfit(stem, dense.shape)
        return dense + up.float() @ down.float()
    change = adapter.get(name)
    if change is None:
        return dense
    if change.shape != dense.shape:
        raise _misfit(name, dense.shape)
    return dense + change.float()


def _needed(adapter: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = adapter.get(name)
    if tensor is None or tuple(tensor.shape) != tuple(shape):
        raise _misfit(name, shape)
    return tensor


def _misfit(name: str, shape: tuple[int, ...]) -> CheckpointError:
    return CheckpointError(
        f"Adapter tensor {name!r} is missing or does not fit the checkpoint's {list(shape)}; "
        "the adapter belongs to another model."
    )
