"""Masked linear attention: pure functions on arrays, with any leading batch dimensions. Rows of Z are tokens.

    Z <- Z + sum_h ((Z W_QK + W_B) Z^T o M) Z W_VP,     W_QK = W_Q W_K^T,  W_VP = W_V W_P^T,  M = [1_d 0]

The mask M makes the first d tokens the keys. Without a softmax that is (Z W_QK + W_B) Z_d^T Z_d W_VP, with the small
Gram matrix of the key rows Z_d in the middle.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.linalg import matmul


class Weights(NamedTuple):
    """One layer's factors; with a leading axis, a stack of layers. H heads on tokens of width w:

    query, key, value: H x w x k. projection: H x w x k as well; for M machines M x (M w) x k.
    bias: None, or 2 x w: added to the queries of the keys, and to those of the other tokens.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    projection: jax.Array
    bias: jax.Array | None = None

    @property
    def QK(self) -> jax.Array:
        return matmul(self.query, self.key.mT)

    @property
    def VP(self) -> jax.Array:
        return matmul(self.value, self.projection.mT)

    def layers(self) -> list["Weights"]:
        return [jax.tree.map(lambda w, i=i: w[i], self) for i in range(self.query.shape[0])]


def layer(Z, weights: Weights, d: int, machines: int = 1, first: int = 0, metric=None):
    """Z plus the sum over the heads, for the tokens from `first` on.

    With several machines Z is their blocks side by side. There is then one head per machine, which reads that
    machine's block through the shared W_QK and W_V, and writes into every block through its own projection.

    A layer is linear in a token's row, and sees the keys through their Gram matrix alone. Keys F Y of low rank may
    therefore be given as the few rows Y, with metric = F^T F; `d` is then the number of those rows.
    """
    heads, w, k = weights.query.shape
    if heads == machines == 1 and weights.bias is None and k + weights.value.shape[-1] <= w:
        return _narrow(Z, weights, d, first, metric)
    blocks = split(Z, machines)
    tokens = blocks[..., first:, :]
    queries = _right(tokens, jnp.moveaxis(weights.QK, 0, 1).reshape(w, heads * w))
    if weights.bias is not None:
        queries = queries + jnp.where(jnp.arange(first, Z.shape[-2])[:, None] < d, *weights.bias)
    if metric is not None:
        metric = jnp.broadcast_to(metric[..., None, :, :], (*blocks.shape[:-2], d, d))
    seen = attended(queries.reshape(*queries.shape[:-2], -1, w), blocks[..., :d, :], metric)
    seen = merge(seen.reshape(*tokens.shape[:-1], heads * w))
    return Z[..., first:, :] + _right(seen, weights.VP.reshape(seen.shape[-1], Z.shape[-1]))


def _narrow(Z, weights: Weights, d: int, first: int, metric):
    """`layer` for one head of few queries and values: Z + (Z W_Q) (Z_d W_K)^T (Z_d W_V) W_P^T.

    With the batch in the last axis the weights multiply one long matrix from the left, and the small products
    between them are sums of vectors; XLA's CPU backend runs a batch of products of 5 columns several times slower.
    """
    *batch, tokens, w = Z.shape
    Zt = Z.reshape(-1, tokens, w).T
    read = jnp.concatenate([weights.query[0], weights.key[0], weights.value[0]], axis=-1)
    queries, keys, values = jnp.split(_left(read.T, Zt), np.cumsum([weights.query.shape[-1]] * 2), axis=0)
    queries, keys, values = queries[:, first:], keys[:, :d], values[:, :d]
    if metric is not None:
        values = jnp.sum(metric.reshape(-1, d, d).T * values[:, None], axis=2)
    scores = jnp.sum(keys[:, None] * values, axis=2)
    seen = jnp.sum(scores[:, :, None] * queries[:, None], axis=0)
    return (Zt[:, first:] + _left(weights.projection[0], seen)).T.reshape(*batch, tokens - first, w)


def stack(Z, weights: Weights, d: int, machines: int = 1):
    """All layers; `weights` has a leading layer axis."""
    for one in weights.layers():
        Z = layer(Z, one, d, machines)
    return Z


def activations(Z, weights: Weights, d: int, machines: int = 1):
    """Z before the first layer and after each: (layers + 1) x the shape of Z."""
    history = [Z]
    for one in weights.layers():
        history.append(layer(history[-1], one, d, machines))
    return jnp.stack(history)


def masked(Z, QK, VP, mask, bias=0):
    """One head as the paper writes it: ((Z W_QK + W_B) Z^T o M) Z W_VP."""
    return matmul(matmul(matmul(matmul(Z, QK) + bias, Z.mT) * mask, Z), VP)


def split(Z, machines: int):
    """tokens x (M w) -> M x tokens x w, behind the batch dimensions."""
    *batch, tokens, width = Z.shape
    return jnp.moveaxis(Z.reshape(*batch, tokens, machines, width // machines), -2, -3)


def merge(blocks):
    """The inverse of `split`."""
    *batch, machines, tokens, width = blocks.shape
    return jnp.moveaxis(blocks, -3, -2).reshape(*batch, tokens, machines * width)


def attended(queries, keys, metric=None):
    """queries keys^T metric keys, by way of the smaller of the two products in the middle."""
    if queries.shape[-2] < keys.shape[-2]:
        return matmul(matmul(queries, keys.mT), _weighted(keys, metric))
    return _through_gram(queries, keys, metric)


@jax.custom_vjp
def _through_gram(queries, keys, metric):
    """Its gradient has no transposed batched products, which XLA's CPU backend does slowly."""
    return _through_gram_fwd(queries, keys, metric)[0]


def _through_gram_fwd(queries, keys, metric):
    weighted = _weighted(keys, metric)
    gram = matmul(_transposed(keys), weighted)
    return matmul(queries, gram), (queries, keys, metric, weighted, gram)


def _through_gram_bwd(residuals, cotangent):
    queries, keys, metric, weighted, gram = residuals
    d_gram = matmul(_transposed(queries), cotangent)
    d_metric = None if metric is None else matmul(keys, matmul(d_gram, keys.mT))
    return matmul(cotangent, gram), matmul(weighted, d_gram + d_gram.mT), d_metric


_through_gram.defvjp(_through_gram_fwd, _through_gram_bwd)


def _weighted(keys, metric):
    return keys if metric is None else matmul(metric, keys)


def _transposed(x):
    """The transpose in memory. The barrier keeps XLA from folding it into the product again."""
    return jax.lax.optimization_barrier(x.mT)


def _left(W, Zt):
    """W Z for Z of shape width x tokens x batch."""
    return matmul(W, Zt.reshape(Zt.shape[0], -1)).reshape(W.shape[0], *Zt.shape[1:])


def _right(Z, W):
    """Z W as one product of two matrices, however many batch dimensions Z has."""
    return matmul(Z.reshape(-1, Z.shape[-1]), W).reshape(*Z.shape[:-1], W.shape[-1])
