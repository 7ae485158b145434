"""Nyström extrapolation of a kernel matrix from its columns at a few landmarks.

K ~ K_XL K_LL⁺ K_LX is the hidden block of [[K_LL, K_LX], [K_XL, K]] with landmarks L, and W = B A⁺ is K_XL K_LL⁺:

>>> import jax.numpy as jnp, eagle_jax
>>> X = jnp.linspace(-1, 1, 50)[:, None]
>>> kernel = lambda X, Y: (1 + X @ Y.T) ** 2  # of rank 3
>>> K = eagle_jax.nystrom(kernel, X, landmarks=X[::10])
>>> v = jnp.ones(50)
>>> print(K.W.shape, bool(jnp.allclose(K.matvec(v), kernel(X, X) @ v, rtol=1e-4)))
(50, 5) True

K_LL is often deficient to working precision; `estimate` takes it as it is. W has a small backward error,
W (K_LL + δ) = K_XL, hence an error of W δ K_LL⁺ K_LY in W K_LY: about eps ‖K_LL‖ ‖W‖ ‖K_LL⁺ K_LY‖, with weights of
moderate size however large the condition number is. It is an explicit K_LL⁺ that loses with kappa. In float64, rank 10,
30 of 100 points as landmarks (`tests/test_nystrom.py::test_floor_does_not_grow_with_kappa`), relative errors of K v:

    kappa                       1e2      1e6      1e10     1e14
    W (K_LX v), as here         9e-17    2e-16    4e-17    1e-15
    K_XL (pinv(K_LL) K_LX v)    2e-16    4e-13    5e-09    2e-05
    scikit-learn's features     4e-11    2e-11    1e-11    5e-11
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from eagle_jax.blocks import as_matrices
from eagle_jax.linalg import matmul
from eagle_jax.solution import Solution
from eagle_jax.solve import estimate


class Nystrom(NamedTuple):
    """The approximation W K_LX of the n x n kernel matrix, from m landmarks.

    Attributes:
      estimate: the `Solution` with W in `value`, and its status.
      K_XL: n x m, the kernel between points and landmarks.
    """

    estimate: Solution
    K_XL: jax.Array

    @property
    def W(self) -> jax.Array:
        """K_XL K_LL⁺, n x m: the weights of the landmarks at every point."""
        return self.estimate.value

    def block(self, K_LY) -> jax.Array:
        """k(X, Y) for other points Y, from their kernel with the landmarks: n x (number of Y)."""
        K_LY = jnp.asarray(K_LY)
        if K_LY.ndim != 2 or K_LY.shape[0] != self.W.shape[1]:
            raise ValueError(
                f"K_LY has shape {K_LY.shape}; expected ({self.W.shape[1]}, number of points Y), a row for each "
                "landmark: K_LY = kernel(landmarks, Y)"
            )
        return matmul(self.W, K_LY)

    def matvec(self, v) -> jax.Array:
        """The approximation times v (n, or n x p), without forming it: O(n m) each."""
        v = jnp.asarray(v)
        if v.ndim not in (1, 2) or v.shape[0] != self.W.shape[0]:
            raise ValueError(
                f"v has shape {v.shape}; expected ({self.W.shape[0]},) or ({self.W.shape[0]}, p): a row for each point"
            )
        return matmul(self.W, matmul(self.K_XL.T, v))


def nystrom(kernel, X, landmarks, *, rtol=None, rcond=None) -> Nystrom:
    """The kernel matrix of the points X, extrapolated from the landmarks.

    Args:
      kernel: kernel(X, Y) is the matrix of k(x_i, y_j), symmetric in its arguments.
      X, landmarks: anything that `kernel` takes, for example n x p and m x p; landmarks may repeat.
      rtol, rcond: as in `estimate`.
    """
    if not callable(kernel):
        raise TypeError(
            f"kernel is {type(kernel).__name__} and not callable; expected a function of (X, Y) that returns the "
            "matrix of k(x_i, y_j). For given matrices, use nystrom_blocks(K_LL, K_XL)"
        )
    return nystrom_blocks(kernel(landmarks, landmarks), kernel(X, landmarks), rtol=rtol, rcond=rcond)


def nystrom_blocks(K_LL, K_XL, *, rtol=None, rcond=None) -> Nystrom:
    """`nystrom` from the kernel between landmarks (m x m) and between points and landmarks (n x m)."""
    K_LL, K_XL = as_matrices(K_LL=K_LL, K_XL=K_XL)
    m = K_LL.shape[0]
    if K_LL.shape != (m, m):
        raise ValueError(f"K_LL has shape {K_LL.shape}; expected a square matrix, kernel(landmarks, landmarks)")
    if K_XL.shape[1] != m:
        raise ValueError(
            f"K_XL has shape {K_XL.shape}; expected ({K_XL.shape[0]}, {m}), a column for each of the {m} landmarks of "
            "K_LL: K_XL = kernel(X, landmarks)"
        )
    return Nystrom(estimate(K_LL, K_XL, rtol=rtol, rcond=rcond), K_XL)
