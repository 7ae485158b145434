"""Which dense method answers: chosen by A's shape, before tracing."""

import jax

from eagle_jax.methods import gram
from eagle_jax.methods.factor import Answer, Factor

# Gram matrices pay when A is at least this many times wider than high.
_LONG = 8
# Problems of more entries than that go one after the other under vmap: each keeps the cores busy, and branches that a
# batch would take for all lanes stay branches.
_BATCHED = 64 * 64


def estimate(A, B, rtol: float, rcond: float | None) -> Answer:
    """W = B A⁺ of finite A and B."""

    def one(A, B) -> Answer:
        d, n = A.shape
        return gram.estimate(A, B, rtol, rcond) if n >= _LONG * d else Factor.of(A, rcond).estimate(B, rtol)

    return (one if A.size <= _BATCHED else jax.custom_batching.sequential_vmap(one))(A, B)


def factor(A, rcond: float | None) -> Factor:
    def one(A) -> Factor:
        return Factor.of(A, rcond)

    return (one if A.size <= _BATCHED else jax.custom_batching.sequential_vmap(one))(A)
