"""Early stopping as regularisation: EAGLE's iterates as a path, and generalised cross-validation to choose from it.

>>> import jax, eagle_jax
>>> keys = jax.random.split(jax.random.key(0), 3)
>>> A = jax.random.normal(keys[0], (20, 60)) * 0.5 ** jax.numpy.arange(20.0)[:, None]  # 60 observations of 20 features
>>> W = jax.random.normal(keys[1], (1, 20))
>>> B = W @ A + 0.1 * jax.random.normal(keys[2], (1, 60))
>>> path = eagle_jax.stopping_path(A, B, steps=30)
>>> print(path.W.shape, int(path.best), bool(path.dof[path.best] < 20))
(30, 1, 20) 19 True

After l steps W_l A = B H_l, where H_l keeps the fraction 1 - f_l(s) of A's right singular vector with singular value s;
f_l = Π (1 - gamma rho s_k²) over the steps, s_k the moved singular values. Large ones are fitted first. What ridge does
by s²/(s² + lambda), steps do with lambda falling by 2.25 a step (the paper's eta), only that f_l is sharper.

The trace of H_l comes from Update itself. The C block moves as C_l = N_l C_0 with N_l = Π (I - gamma rho E_k), and
tr(H_l) = d - tr(N_l).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.blocks import as_count, as_matrices, check_equal
from eagle_jax.linalg import matmul, varying_like
from eagle_jax.plain import scaled_state
from eagle_jax.scaling import step_budget
from eagle_jax.schedules import FixedSteps, resolve
from eagle_jax.update import update_estimate


class StoppingPath(NamedTuple):
    """Entry l of each history is the value after l+1 steps.

    Attributes:
      W: steps x d' x d.
      gcv: (‖B - W_l A‖² / (d' n)) / (1 - tr(H_l)/n)²; inf where no degree of freedom is left for the residual.
      dof: tr(H_l), the effective number of parameters in each row of W_l.
      best: index of the least gcv.
      W_best: W[best].
    """

    W: jax.Array
    gcv: jax.Array
    dof: jax.Array
    best: jax.Array
    W_best: jax.Array


def stopping_path(A, B, *, steps: int, schedule="paper", key=None, probes: int | None = None) -> StoppingPath:
    """`steps` plain Updates towards W = B A⁺, the estimated prediction error of each, and the best of them.

    Columns are observations: A is d x n features, B is d' x n targets. Centre the rows of both for an intercept. All
    rows of B share one stopping step. Works under jit, vmap and in float32 or float64.

    Args:
      steps: how far to go. l steps of the paper's fit singular values above about 1.5^-l ‖A‖.
      schedule: "paper", "emergent" or (eta, gamma).
      probes: None for the exact trace, which adds d rows to the d' of each step; a number for Hutchinson's estimate
        from that many rows of random signs.
      key: of the probes.
    """
    A, B = as_matrices(A=A, B=B)
    check_equal("columns", "B", B.shape[1], "A", A.shape[1])
    if 0 in A.shape or B.shape[0] == 0:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected at least one row and one column in each")
    fixed = resolve(schedule)
    if not isinstance(fixed, FixedSteps):
        raise ValueError('stopping_path follows the plain iteration; use schedule="paper", "emergent" or (eta, gamma)')
    limit = step_budget(fixed, float(jnp.finfo(A.dtype).eps))
    expected = (
        f"an integer from 1 to {limit}: by then this schedule has lifted singular values of eps*||A||, and further "
        f"steps fit {A.dtype} rounding"
    )
    steps = as_count("steps", steps, expected, limit)
    return _path(A, B, _probes(A, key, probes), steps, fixed)


def _probes(A, key, probes):
    """Rows g; the mean of g N gᵀ / g gᵀ is tr(N) / d."""
    d = A.shape[0]
    if probes is None:
        return jnp.eye(d, dtype=A.dtype)
    probes = as_count("probes", probes, "a positive integer, or None for the exact trace")
    if key is None:
        raise ValueError(f"probes={probes} without a key; pass key=jax.random.key(seed), or probes=None")
    return jax.random.rademacher(key, (probes, d), A.dtype)


@partial(jax.jit, static_argnums=(3, 4))
def _path(A, B, G, steps, fixed) -> StoppingPath:
    d, n = A.shape
    rows = len(B)
    # Rows without a right-hand side that start at g move to g N_l, beside the rows of B that move to W_l: N_l is a
    # polynomial in E = A Aᵀ, so symmetric, and this is C_l = N_l C_0 with C_0 = gᵀ.
    A_0, B_0, *_ = scaled_state(A, B, A[:, :0])
    zeros = partial(jnp.zeros, dtype=A.dtype)
    start = (A_0, jnp.concatenate([B_0, zeros((len(G), n))]), jnp.concatenate([zeros((rows, d)), G]))

    def step(iterate, _):
        A_l, B_l, W = update_estimate(*iterate, rho=1 / fixed.headroom, eta=fixed.eta, gamma=fixed.gamma)
        R = B - matmul(W[:rows], A)
        left = d * jnp.sum(W[rows:] * G) / jnp.sum(G * G)  # tr(N_l)
        return (A_l / fixed.contraction, B_l / fixed.contraction, W), (W[:rows], jnp.mean(R * R), left)

    _, (W, error, left) = lax.scan(step, varying_like(start, jnp.sum(A) + jnp.sum(B)), length=steps)
    free = (n - d + left) / n
    # Below that, `free` is rounding of n, d and the trace.
    determined = free > jnp.finfo(A.dtype).eps ** 0.5
    gcv = jnp.where(determined & jnp.isfinite(error), error / jnp.where(determined, free, 1) ** 2, jnp.inf)
    best = jnp.argmin(gcv)
    return StoppingPath(W, gcv, d - left, best, W[best])
