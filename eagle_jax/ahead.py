"""What the computation-limited network does: each layer conditions the columns that later layers read.

Layer l reads A S_l, as in the paper's form. But the columns that it changes are A T_l, and T_l lies in what the layers
after it read: they are cleared of A S_l by the step that clears C, which is deflation where S_l and T_l are disjoint.
`update.update_ahead` is the step, `extract` reads it from weights, `run` runs it beside the network.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax import extraction
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.extraction import Products
from eagle_jax.transformer import Architecture
from eagle_jax.update import State, update_ahead


class Ahead(NamedTuple):
    """S, T: layers x n x r, orthogonal columns with squared norms of mean 1. eta_rho, gamma_rho: one for each layer."""

    S: np.ndarray
    T: np.ndarray
    eta_rho: np.ndarray
    gamma_rho: np.ndarray

    def flat(self) -> "Ahead":
        """With orthonormal columns, as a sketch has."""
        unit = lambda X: X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), np.finfo(float).tiny)  # noqa: E731
        return self._replace(S=unit(self.S), T=unit(self.T))


def leading(p: Products, architecture: Architecture) -> tuple[np.ndarray, np.ndarray]:
    """The leading n x n blocks of W_QK, symmetrised, and W_VP: layers x n x n."""
    n = architecture.n
    G, H = p.QK[:, 0, :n, :n], p.VP[:, 0, :n, :n]
    return (G + G.swapaxes(-1, -2)) / 2, H


def read_later(S: np.ndarray) -> np.ndarray:
    """layers x n x n: projectors on the columns that later layers read; 0 for the last."""
    layers, n, _ = S.shape
    found = np.zeros((layers, n, n))
    for l in range(layers - 1):
        U, s, _ = np.linalg.svd(np.concatenate(S[l + 1 :], axis=1), full_matrices=False)
        U = U[:, s > 1e-6 * s[0]]
        found[l] = U @ U.T
    return found


def extract(weights: Weights, architecture: Architecture) -> Ahead:
    """S from W_QK; T from W_VP, of which what no later layer reads is left out. The last layer's eta is 0."""
    if architecture.regime != "computation_limited":
        raise ValueError(f"regime={architecture.regime!r}; expected 'computation_limited', the one with sketches")
    architecture.check(weights)
    p, r = extraction.products(weights), architecture.rank
    G, H = leading(p, architecture)
    later = read_later(extraction.sketches(p, architecture))
    H = later @ H @ later
    a1, S = _factor(G, r)
    a2, T = _factor(-(H + H.swapaxes(-1, -2)) / 2, r)
    T[-1] = S[-1]
    a3 = extraction.read_off(p, architecture)[:, 0, 2]
    return Ahead(S, T, a1 * a2, -a1 * a3)


def _factor(G: np.ndarray, r: int) -> tuple[np.ndarray, np.ndarray]:
    """(a, X): a X X^T is the nearest matrix of rank r that is not indefinite, a the mean eigenvalue."""
    values, vectors = np.linalg.eigh(G)
    values, vectors = np.maximum(values[:, -r:], 0), vectors[..., -r:]
    a = values.mean(-1)
    return a, vectors * np.sqrt(values / np.where(a > 0, a, 1)[:, None])[:, None]


def run(found: Ahead, blocks: Blocks) -> jax.Array:
    """Z before the first step and after each, (layers + 1) x tasks x ..., with the network's sign of D."""
    cast = partial(jnp.asarray, dtype=blocks.A.dtype)
    return _run(jax.tree.map(cast, found), blocks)


@jax.jit
def _run(found: Ahead, blocks: Blocks):
    def task(A, B, C):
        states = [State(A, B, C, jnp.zeros((B.shape[0], C.shape[1]), A.dtype))]
        for S, T, eta, gamma in zip(*found, strict=True):
            states.append(update_ahead(states[-1], 1.0, eta, gamma, S=S, T=T))
        return jnp.stack([Blocks(A, B, C, -D).join() for A, B, C, D in states])

    return jax.vmap(task, out_axes=1)(blocks.A, blocks.B, blocks.C)


class Shares(NamedTuple):
    """Of W_VP's energy, per layer but the last: what it reads and writes in later layers' columns and in its own.

    chance: of a random matrix in the later ones. overlap: layers x layers, ||S_i^T S_j||^2 / r of what layers read.
    """

    later_read: np.ndarray
    later_written: np.ndarray
    own: np.ndarray
    chance: np.ndarray
    overlap: np.ndarray


def shares(p: Products, architecture: Architecture) -> Shares:
    S = extraction.sketches(p, architecture)
    _, H = leading(p, architecture)
    later, own = read_later(S), S @ S.swapaxes(-1, -2)
    energy = lambda X: np.sum(X**2, axis=(1, 2))[:-1]  # noqa: E731
    overlap = np.array([[np.sum((a.T @ b) ** 2) / architecture.rank for b in S] for a in S])
    chance = np.trace(later, axis1=1, axis2=2)[:-1] / architecture.n
    return Shares(
        energy(later @ H) / energy(H), energy(H @ later) / energy(H), energy(own @ H) / energy(H), chance, overlap
    )
