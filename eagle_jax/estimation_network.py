"""What an estimation network computes, as a list of estimation Updates. `extraction` reads the others."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks
from eagle_jax.extraction import Gap, distance, mean, products
from eagle_jax.transformer import Architecture
from eagle_jax.update import update_estimate


class Estimation(NamedTuple):
    """The estimation network as Updates: keys are data points (a, b), the last token is (w, 0).

        W_QK = diag(a1 I, 0),  W_VP = diag(a2 I, a3),  query bias (0, -beta) of the last token
        A' = A + a1 a2 A A^T A,   B' = B + a1 a3 B A^T A,   W' = W + a2 (a1 W A - beta B) A^T

    That is `update_estimate` with eta rho = -a1 a2 and gamma rho = -beta a2 where a3 = a2, and beta = a1 or W = 0.

    Attributes:
      alphas: layers x 3. The loss does not see the last layer's a3.
      beta: per layer.
      residuals: relative distances of W_QK, W_VP and the bias rows to this form, layers x 3.
    """

    architecture: Architecture
    alphas: np.ndarray
    beta: np.ndarray
    residuals: np.ndarray

    @property
    def eta_rho(self) -> np.ndarray:
        return -self.alphas[:, 0] * self.alphas[:, 1]

    @property
    def gamma_rho(self) -> np.ndarray:
        return -self.beta * self.alphas[:, 1]


def extract(weights: Weights, architecture: Architecture) -> Estimation:
    if weights.bias is None:
        raise ValueError("weights without a query bias; the estimation network has one")
    p, d = products(weights), architecture.d
    a1, a2 = (np.array([mean(np.diag(W)[:d]) for W in P[:, 0]]) for P in (p.QK, p.VP))
    a3, bias = p.VP[:, 0, d, d], np.asarray(p.bias)
    form = np.zeros_like(p.QK), np.zeros_like(p.VP), np.zeros_like(bias)
    form[0][:, 0, :d, :d], form[1][:, 0, :d, :d] = (a[:, None, None] * np.eye(d) for a in (a1, a2))
    form[1][:, 0, d, d], form[2][:, 1, d] = a3, bias[:, 1, d]
    residuals = [distance(f, W) for f, W in zip(form, (p.QK, p.VP, bias), strict=True)]
    return Estimation(architecture, np.stack([a1, a2, a3], axis=1), -bias[:, 1, d], np.stack(residuals, axis=1))


def fidelity(weights: Weights, extracted: Estimation, blocks: Blocks) -> Gap:
    """Network against `update_estimate`: over A, B and W (`Z`), and over W alone (`D`).

    The last entry of the last token, which belongs to no block and is not read, is left out.
    """
    architecture, cast = extracted.architecture, partial(jnp.asarray, dtype=blocks.A.dtype)
    network = architecture.activations(weights, architecture.tokens(blocks))
    other = _estimates(cast(extracted.eta_rho), cast(extracted.gamma_rho), blocks)
    difference = np.array(network - other)
    difference[..., -1, -1] = 0
    W = difference[..., -1, : architecture.d]
    return Gap(np.mean(difference**2, axis=(-2, -1)), np.mean(W**2, axis=-1))


@jax.jit
def _estimates(eta_rho, gamma_rho, blocks: Blocks):
    def one(A, B):
        states = [(A, B, jnp.zeros((B.shape[0], A.shape[0]), A.dtype))]
        for eta, gamma in zip(eta_rho, gamma_rho, strict=True):
            states.append(update_estimate(*states[-1], rho=1.0, eta=eta, gamma=gamma))
        corner = jnp.zeros((B.shape[0], B.shape[0]), A.dtype)
        return jnp.stack([Blocks(A.T, W, B.T, corner).join() for A, B, W in states])

    return jax.vmap(one, out_axes=1)(blocks.A, blocks.B)
