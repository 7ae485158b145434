"""Weights -> algorithm: a trained network read as a list of Updates, and written back.

    products -> sparsify -> cluster -> read_off          the paper's simplifications, each a small function
    extract(weights, architecture)                       all of it: an `Extracted`, with what each step leaves out
    extracted.as_schedule()                              a LayerSteps that `eagle_jax.solve` and `trajectory` run
    embed(schedule, architecture)                        the other way; extract(embed(s)).as_schedule() == s in float64
                                                         (on M machines up to the rounding of gamma / M, with a sketch
                                                         up to a rotation of S)
    fidelity(weights, extracted, blocks)                 how far network and algorithm are apart, layer by layer

The form that is looked for, in n + n' columns (A, B | C, D):

    W_QK = diag(a1 I, 0),   W_VP = diag(a2 I, a3 I)      eta rho = -a1 a2,  gamma rho = -a1 a3

On M machines the heads add where Update averages: gamma rho = -M a1 a3. With a sketch both I are S S^T.
Everything here is numpy in float64 on the host, but for running networks and Updates.
"""

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax import attention
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.schedules import LayerSteps, checked
from eagle_jax.transformer import Architecture
from eagle_jax.update import State, update

# Entries below this many times the mean entry are dropped; the paper's constant.
SPARSITY = 1.5
# The paper's numbers of values, 0 included, in W_QK and W_VP.
LEVELS = 2, 3
# Singular values above this fraction of the largest count towards a numerical rank.
RANK_CUT = 0.05


# ---- simplification -----------------------------------------------------------------------------------------


class Products(NamedTuple):
    """QK: layers x heads x w x w (one head if machines share it). VP: layers x heads x w x (machines w).

    bias: layers x 2 x w, or None.
    """

    QK: np.ndarray
    VP: np.ndarray
    bias: np.ndarray | None = None


def products(weights: Weights) -> Products:
    """W_QK and W_VP of a stack of layers, signs aligned: W_QK has a positive trace."""
    bias = None if weights.bias is None else np.asarray(weights.bias, np.float64)
    return align(Products(np.asarray(weights.QK, np.float64), np.asarray(weights.VP, np.float64), bias))


def align(p: Products) -> Products:
    """Only W_QK times W_VP matters, so each head has a free sign."""
    sign = np.where(np.trace(p.QK, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[..., None, None]
    return Products(p.QK * sign, p.VP * sign, None if p.bias is None else p.bias * sign[:, 0])


def as_weights(p: Products, dtype=jnp.float32) -> Weights:
    """A network with these products: W_K = W_V = I."""
    cast = partial(jnp.asarray, dtype=dtype)
    eye = cast(np.broadcast_to(np.eye(p.QK.shape[-1]), p.QK.shape))
    bias = None if p.bias is None else cast(p.bias)
    return Weights(cast(p.QK), eye, eye, cast(p.VP.swapaxes(-1, -2)), bias)


def simplify(p: Products, QK, VP) -> Products:
    """Applies one function to every matrix W_QK, another to every W_VP."""
    each = lambda f, W: np.stack([f(w) for w in W.reshape(-1, *W.shape[-2:])]).reshape(W.shape)  # noqa: E731
    return p._replace(QK=each(QK, p.QK), VP=each(VP, p.VP))


def sparsify(W: np.ndarray, factor: float = SPARSITY) -> np.ndarray:
    """Zeroes what is below tau = factor ||W||_1 / #entries."""
    return np.where(np.abs(W) < factor * np.mean(np.abs(W)), 0.0, W)


def cluster(W: np.ndarray, levels: int) -> np.ndarray:
    """Every entry replaced by the mean of its cluster, in the best partition into at most `levels` clusters.

    Least squares in one dimension: the best clusters are runs of the sorted entries, found by dynamic programming.
    """
    if levels < 1:
        raise ValueError(f"levels={levels}; expected at least 1")
    values, inverse = np.unique(W, return_inverse=True)
    count = np.bincount(inverse.ravel()).astype(float)
    cuts = _cuts(values, count, min(levels, values.size))
    for low, high in itertools.pairwise(cuts):
        values[low:high] = mean(values[low:high], count[low:high])
    return values[inverse].reshape(W.shape)


def _cuts(values: np.ndarray, count: np.ndarray, levels: int) -> list[int]:
    """Where to cut the sorted values so that the weighted squared distances to the means of the runs are least."""
    first, second, number = (np.concatenate([[0], np.cumsum(x)]) for x in (count * values, count * values**2, count))
    i, j = np.arange(values.size + 1)[:, None], np.arange(values.size + 1)
    size = number[j] - number[i]
    cost = np.where(j > i, second[j] - second[i] - (first[j] - first[i]) ** 2 / np.where(size > 0, size, 1), np.inf)
    best, back = cost[0], []
    for _ in range(levels - 1):
        total = best[:, None] + cost
        back.append(np.argmin(total, axis=0))
        best = np.min(total, axis=0)
    cuts = [values.size]
    for choice in reversed(back):
        cuts.append(int(choice[cuts[-1]]))
    return [0, *reversed(cuts)] if cuts[-1] else list(reversed(cuts))


def mean(x: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The mean, exact when all entries are equal."""
    return float(x.flat[0] + np.average(x - x.flat[0], weights=weights))


# ---- the block form -----------------------------------------------------------------------------------------


class Residuals(NamedTuple):
    """Relative Frobenius distance to the products, per layer: after each simplification, and of the block form."""

    sparse_QK: np.ndarray
    sparse_VP: np.ndarray
    clustered_QK: np.ndarray
    clustered_VP: np.ndarray
    form_QK: np.ndarray
    form_VP: np.ndarray


class Extracted(NamedTuple):
    """What a network does, as Updates.

    Attributes:
      architecture: of the network.
      alphas: layers x heads x 3, the (a1, a2, a3); on machines, which share them, one head. The loss does not see the
        last layer's a2: nothing reads A and B after it.
      S: layers x n x r, orthonormal sketches ("computation_limited"), or None.
      residuals: what the simplifications leave out.
    """

    architecture: Architecture
    alphas: np.ndarray
    S: np.ndarray | None
    residuals: Residuals

    @property
    def eta_rho(self) -> np.ndarray:
        return -np.sum(self.alphas[..., 0] * self.alphas[..., 1], axis=-1)

    @property
    def gamma_rho(self) -> np.ndarray:
        return -self.architecture.blocks * np.sum(self.alphas[..., 0] * self.alphas[..., 2], axis=-1)

    def as_schedule(self) -> LayerSteps:
        """For `solve` and `trajectory`, which run it on A of any width; with sketches, of the network's."""
        S = () if self.S is None else self.S.tolist()
        return checked(LayerSteps(tuple(self.eta_rho.tolist()), tuple(self.gamma_rho.tolist()), S))


def extract(weights: Weights, architecture: Architecture) -> Extracted:
    """The nearest list of Updates, and how near it is. For "estimation" see `extract_estimation`."""
    if architecture.regime == "estimation":
        raise ValueError("regime='estimation'; use estimation_network.extract, whose Updates have another form")
    architecture.check(weights)
    p = products(weights)
    if not (np.isfinite(p.QK).all() and np.isfinite(p.VP).all()):
        raise ValueError("weights have entries that are NaN or infinite; there is no algorithm to read")
    S = sketches(p, architecture) if architecture.regime == "computation_limited" else None
    alphas = read_off(p, architecture, S)
    stages = sparse(p), clustered(p), block_form(alphas, architecture, S)
    residuals = (distance(getattr(q, name), getattr(p, name)) for q in stages for name in ("QK", "VP"))
    return Extracted(architecture, alphas, S, Residuals(*residuals))


def sparse(p: Products) -> Products:
    return simplify(p, sparsify, sparsify)


def clustered(p: Products, levels: tuple[int, int] = LEVELS) -> Products:
    """The paper's order: sparsified first, then clustered."""
    return simplify(sparse(p), partial(cluster, levels=levels[0]), partial(cluster, levels=levels[1]))


def read_off(p: Products, architecture: Architecture, S: np.ndarray | None = None) -> np.ndarray:
    """(a1, a2, a3): layers x heads x 3. Means over the diagonals of the blocks (of S^T block S with a sketch)."""
    n, own = architecture.width - architecture.n_out, own_blocks(p, architecture)
    alphas = []
    for layer in range(len(p.QK)):
        basis = np.eye(n) if S is None else S[layer]
        along = lambda W: np.einsum("...ir,...ij,...jr->...r", basis, W[..., :n, :n], basis)  # noqa: B023, E731
        answers = np.diagonal(blocks_of(p.VP[layer], architecture)[..., n:, n:], axis1=-2, axis2=-1)
        if architecture.blocks > 1:  # all machines share one (a1, a2, a3)
            alphas.append([[mean(along(p.QK[layer])), mean(along(own[layer])), mean(answers)]])
        else:
            heads = zip(along(p.QK[layer]), along(own[layer]), answers, strict=True)
            alphas.append([[mean(q), mean(v), mean(c)] for q, v, c in heads])
    return np.array(alphas)


def blocks_of(VP: np.ndarray, architecture: Architecture) -> np.ndarray:
    """... x w x (M w) -> ... x M x w x w: what a head writes into each machine's block."""
    M, w = architecture.blocks, architecture.width
    return np.moveaxis(VP.reshape(*VP.shape[:-1], M, w), -2, -3)


def own_blocks(p: Products, architecture: Architecture) -> np.ndarray:
    """layers x heads x w x w: what each head writes into the block that it reads."""
    blocks = blocks_of(p.VP, architecture)
    if architecture.blocks == 1:
        return blocks[..., 0, :, :]
    machines = np.arange(architecture.blocks)
    return blocks[:, machines, machines]


def block_form(alphas: np.ndarray, architecture: Architecture, S: np.ndarray | None = None) -> Products:
    """The products of a network that has exactly these alphas and sketches."""
    M, w, n = architecture.blocks, architecture.width, architecture.width - architecture.n_out
    layers, heads, _ = alphas.shape
    lead = np.broadcast_to(np.eye(n), (layers, n, n)) if S is None else S @ S.swapaxes(-1, -2)
    lead, ones = lead[:, None], np.eye(architecture.n_out)
    a1, a2, a3 = np.moveaxis(alphas, -1, 0)[..., None, None]
    QK, VP = np.zeros((layers, heads, w, w)), np.zeros((layers, heads if M == 1 else M, M, w, w))
    QK[..., :n, :n] = a1 * lead
    VP[..., n:, n:] = a3[:, :, None] * ones
    for u in range(M):
        VP[:, u if M > 1 else slice(None), u, :n, :n] = (a2 * lead)[:, 0] if M > 1 else a2 * lead
    return Products(QK, np.moveaxis(VP, -3, -2).reshape(layers, -1, w, M * w))


def embed(schedule: LayerSteps, architecture: Architecture, dtype=None) -> Weights:
    """Weights of the given architecture that are exactly this schedule: a1 = 1, in the first head.

    dtype: JAX's default float, if None. "computation_limited" takes a schedule with sketches, orthonormal columns.
    """
    schedule = checked(schedule)
    if architecture.regime == "estimation":
        raise ValueError("regime='estimation' has no place for a schedule of (eta, gamma): there gamma = eta")
    M, w, n_out, heads = architecture.blocks, architecture.width, architecture.n_out, architecture.heads
    n, layers, limited = w - n_out, architecture.layers, architecture.regime == "computation_limited"
    if len(schedule.eta_rho) != layers:
        raise ValueError(f"schedule has {len(schedule.eta_rho)} steps; expected layers={layers} of the architecture")
    S = np.asarray(schedule.S) if schedule.S else np.broadcast_to(np.eye(n), (layers, n, n))
    shape = (layers, n, architecture.rank if limited else n)
    if bool(schedule.S) != limited or S.shape != shape:
        found = f"of shape {S.shape}" if schedule.S else "empty"
        wanted = f"{shape}" if limited else "none"
        raise ValueError(f"schedule.S is {found} with regime={architecture.regime!r}; expected {wanted}")
    if np.abs(S.swapaxes(-1, -2) @ S - np.eye(shape[-1])).max() > 1e-4:
        raise ValueError("schedule.S does not have orthonormal columns; a sketch has")
    r = S.shape[-1]
    # Without a sketch Q, K are as wide as the tokens; their columns for C and D stay 0.
    query = np.zeros((layers, heads, w, r if limited else w))
    value, projection = np.zeros((layers, heads, w, r + n_out)), np.zeros((layers, max(heads, M), M, w, r + n_out))
    query[:, 0, :n, :r] = value[:, 0, :n, :r] = S
    value[:, 0, n:, r:] = np.eye(n_out)
    eta, gamma = (np.asarray(x)[:, None, None] for x in schedule[:2])
    for u in range(M):
        projection[:, u, :, n:, r:] = -(gamma / M * np.eye(n_out))[:, None]
        projection[:, u, u, :n, :r] = -eta * S
    projection = projection.reshape(layers, -1, M * w, r + n_out)
    dtype = jnp.result_type(float) if dtype is None else dtype
    return Weights(*(jnp.asarray(x, dtype) for x in (query, query, value, projection)))


def distance(W: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """||W - reference|| / ||reference|| per layer; 0 where both are."""
    size = lambda x: np.linalg.norm(x.reshape(len(x), -1), axis=1)  # noqa: E731
    return size(W - reference) / np.maximum(size(reference), np.finfo(float).tiny)


# ---- sketches -----------------------------------------------------------------------------------------------


def sketches(p: Products, architecture: Architecture) -> np.ndarray:
    """layers x n x r: the leading eigenvectors of the symmetric part of W_QK's leading block. Unique up to rotation."""
    n = architecture.width - architecture.n_out
    lead = p.QK[:, 0, :n, :n]
    return np.linalg.eigh((lead + lead.swapaxes(-1, -2)) / 2)[1][..., -architecture.rank :]


def two_sketches(p: Products, architecture: Architecture) -> Products:
    """The most general network of Updates: matrices G, H where the block form has multiples of I or of one S S^T.

        A' = A + A G A^T A H,   C' = C + a3 A G A^T C        (B', D' alike)

    G is W_QK's leading block, symmetrised; H is W_VP's own one, averaged over machines; both cut to rank r if there is
    a sketch. Cross blocks are dropped, and what is left of the rest is a3 I.
    """
    n, M = architecture.width - architecture.n_out, architecture.blocks
    kept = block_form(read_off(p, architecture), architecture)
    G, H = p.QK[..., :n, :n], own_blocks(p, architecture)[..., :n, :n]
    G = (G + G.swapaxes(-1, -2)) / 2
    H = np.mean(H, axis=1, keepdims=True) if M > 1 else H
    if architecture.regime == "computation_limited":
        G, H = _truncated(G, architecture.rank), _truncated(H, architecture.rank)
    kept.QK[..., :n, :n] = G
    VP = kept.VP.reshape(*kept.VP.shape[:-1], M, -1)
    for u in range(M):
        heads = slice(u, u + 1) if M > 1 else slice(None)
        VP[:, heads, :n, u, :n] = H
    return kept._replace(VP=VP.reshape(kept.VP.shape))


def _truncated(W: np.ndarray, rank: int) -> np.ndarray:
    U, s, Vt = np.linalg.svd(W)
    return (U[..., :rank] * s[..., None, :rank]) @ Vt[..., :rank, :]


class LookAhead(NamedTuple):
    """Which columns a layer's W_VP block H conditions; one entry for each layer but the last.

    own, next: min over c of ||H T - c T|| / ||H T|| for T the sketch that this layer, or the next one, reads through.
      0 where H is a multiple of the identity on what T sees.
    read: share ||X T||² / ||X||² of the lower left block X (C, D into A, B) that the next layer reads; r/n by chance.
    """

    own: np.ndarray
    next: np.ndarray
    read: np.ndarray


def look_ahead(p: Products, architecture: Architecture) -> LookAhead:
    n, S = architecture.width - architecture.n_out, sketches(p, architecture)
    H, X = p.VP[:, 0, :n, :n], p.VP[:, 0, n:, :n]

    def off(H, T):
        HT = H @ T
        c = np.trace(T.T @ HT) / T.shape[1]
        return np.linalg.norm(HT - c * T) / np.linalg.norm(HT)

    layers = range(len(S) - 1)
    share = [np.sum((X[i] @ S[i + 1]) ** 2) / max(np.sum(X[i] ** 2), np.finfo(float).tiny) for i in layers]
    return LookAhead(*map(np.array, ([off(H[i], S[i]) for i in layers], [off(H[i], S[i + 1]) for i in layers], share)))


def random_projectors(seed: int, n: int, r: int, count: int) -> np.ndarray:
    """count x n x n: S S^T of random orthonormal S, the reference for a sketch's eigenvalues and entries."""
    S = np.linalg.qr(np.random.default_rng(seed).standard_normal((count, n, r)))[0]
    return S @ S.swapaxes(-1, -2)


# ---- properties and laws ------------------------------------------------------------------------------------


class Properties(NamedTuple):
    """Of one matrix with leading block n x n: shares of ||W||_F² on the diagonal and outside the two diagonal blocks,
    the leading block's singular values, and how many of them are above RANK_CUT of the largest."""

    diagonality: float
    off_block: float
    spectrum: np.ndarray
    rank: int


def properties(W: np.ndarray, n: int) -> Properties:
    energy = np.sum(W**2)
    spectrum = np.linalg.svd(W[:n, :n], compute_uv=False)
    off = np.sum(W[:n, n:] ** 2) + np.sum(W[n:, :n] ** 2)
    rank = int(np.sum(spectrum > RANK_CUT * spectrum[0]))
    return Properties(float(np.sum(np.diag(W) ** 2) / energy), float(off / energy), spectrum, rank)


def relative_difference(Q: np.ndarray, V: np.ndarray) -> float:
    """Of two blocks that should be opposite, scaled to spectral norm 1: ||Q + V|| / ||Q||."""
    Q, V = (W / np.linalg.norm(W, 2) for W in (Q, V))
    return float(np.linalg.norm(Q + V) / np.linalg.norm(Q))


class Scaling(NamedTuple):
    """Per layer: eta = eta_rho ||A_l||² and gamma alike, for the largest ||A_l|| of a batch and for the median one."""

    eta_largest: np.ndarray
    eta_median: np.ndarray
    gamma_largest: np.ndarray
    gamma_median: np.ndarray


def scaling(extracted: Extracted, norms: np.ndarray, batch: int = 1024) -> Scaling:
    """norms: layers x tasks, from `norms_of`. The largest is the mean over batches of each one's largest."""
    batch = min(batch, norms.shape[1])
    whole = norms[:, : norms.shape[1] // batch * batch].reshape(len(norms), -1, batch)
    largest, median = np.mean(np.max(whole, axis=-1) ** 2, axis=-1), np.median(norms, axis=-1) ** 2
    eta, gamma = extracted.eta_rho, extracted.gamma_rho
    return Scaling(eta * largest, eta * median, gamma * largest, gamma * median)


def norms_of(extracted: Extracted, activations) -> np.ndarray:
    """layers x tasks: ||A_l S_l||_2 before each layer, the largest over the machines."""
    A = machine_blocks(extracted.architecture, activations[:-1]).A
    if extracted.S is not None:
        A = A @ extracted.S.astype(A.dtype)[:, None, None]
    return np.linalg.norm(A, ord=2, axis=(-2, -1)).max(axis=-1)


def machine_blocks(architecture: Architecture, Z) -> Blocks:
    """Z as the blocks of the machines: A is ... x M x d x (n/M)."""
    Z = np.asarray(attention.split(jnp.asarray(Z), architecture.blocks))
    return Blocks.split(Z, architecture.d, architecture.width - architecture.n_out)


# ---- network against algorithm ------------------------------------------------------------------------------


def algorithm(extracted: Extracted, blocks: Blocks) -> jax.Array:
    """Z before the first Update and after each, (layers + 1) x tasks x ..., as the network would have it.

    blocks: a batch of problems. The network's D has the other sign: its layers move C and D alike.
    """
    cast = partial(jnp.asarray, dtype=blocks.A.dtype)
    S = None if extracted.S is None else cast(extracted.S)
    return run_updates(extracted.architecture, cast(extracted.eta_rho), cast(extracted.gamma_rho), S, blocks)


@partial(jax.jit, static_argnums=0)
def run_updates(architecture: Architecture, eta_rho, gamma_rho, S, blocks: Blocks):
    """`algorithm` on arrays, one entry per layer: what it can be differentiated by."""
    M = architecture.blocks

    def machine(A, B, C):
        states = [State(A, B, C, jnp.zeros((B.shape[0], C.shape[1]), A.dtype))]
        for layer in range(architecture.layers):
            sketch = None if S is None else S[layer]
            reduce = lambda x: jax.lax.pmean(x, "machines")  # noqa: E731
            states.append(update(states[-1], 1.0, eta_rho[layer], gamma_rho[layer], S=sketch, reduce=reduce))
        return jnp.stack([Blocks(A, B, C, -D).join() for A, B, C, D in states])

    together = jax.vmap(machine, in_axes=(0, 0, None), out_axes=1, axis_name="machines")
    A, B = (attention.split(x, M) for x in (blocks.A, blocks.B))
    return attention.merge(jax.vmap(together, out_axes=1)(A, B, blocks.C))


class Gap(NamedTuple):
    """Mean squared difference of two runs, (layers + 1) x tasks: over all of Z, and over the D blocks alone."""

    Z: np.ndarray
    D: np.ndarray


def fidelity(weights: Weights, extracted: Extracted, blocks: Blocks) -> Gap:
    """Network against extracted algorithm, after every layer, on a batch of problems."""
    if blocks.A.ndim != 3:
        raise ValueError(f"blocks.A has shape {blocks.A.shape}; expected a batch of problems, tasks x d x n")
    architecture = extracted.architecture
    architecture.check(weights)
    network = architecture.activations(weights, architecture.tokens(blocks))
    return gap(architecture, network, algorithm(extracted, blocks))


def gap(architecture: Architecture, one, other) -> Gap:
    difference = np.asarray(one) - np.asarray(other)
    D = machine_blocks(architecture, difference).D
    return Gap(np.mean(difference**2, axis=(-2, -1)), np.mean(D**2, axis=(-3, -2, -1)))
