"""Which dense method answers: chosen by A's shape, before tracing."""

from eagle_jax.linalg import adjoint
from eagle_jax.methods import gram
from eagle_jax.methods.factor import Answer, Factor

# Gram matrices pay when A is at least this many times wider than high, or the other way round for A⁺ C.
_LONG = 8


def estimate(A, B, rtol, rcond=None) -> Answer:
    """W = B A⁺ of finite A and B."""
    d, n = A.shape
    return gram.estimate(A, B, rtol, rcond) if n >= _LONG * d and d >= 1 else Factor.of(A, rcond).estimate(B, rtol)


def right(A, C, rtol, rcond=None) -> Answer:
    """Y = A⁺ C."""
    answer = estimate(adjoint(A), adjoint(C), rtol, rcond)
    return answer._replace(value=adjoint(answer.value))
