"""The paper's four networks: how data becomes tokens, which weights there are, what is read out.

`Architecture` is the description, `Transformer` a thin Flax container of its weights. The mathematics is in
attention.py, on plain arrays.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from eagle_jax import attention
from eagle_jax.attention import Weights
from eagle_jax.blocks import Blocks

REGIMES = ("unconstrained", "computation_limited", "distributed", "estimation")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Sizes as in the paper. A: d x n, B: d' x n, C: d x n', with d' = d_out and n' = n_out.

    Attributes:
      heads: for "unconstrained".
      rank: the width r of queries and keys in "computation_limited"; values have r + n'.
      machines: M in "distributed"; each holds n / M columns of A and B.
      sign: the prediction is sign * D_L. A layer moves C and D by the same sign, where Update subtracts from C and
        adds to D: contraction of C makes the network's D block tend to -D. For "estimation" it is not used.
    """

    regime: str = "unconstrained"
    n: int = 18
    d: int = 18
    n_out: int = 2
    d_out: int = 2
    layers: int = 4
    heads: int = 1
    rank: int = 5
    machines: int = 3
    sign: int = -1

    def __post_init__(self):
        if self.regime not in REGIMES:
            raise ValueError(f"regime={self.regime!r}; expected one of {REGIMES}")
        for name in ("n", "d", "n_out", "d_out", "layers", "heads", "rank", "machines"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}; expected a positive integer")
        if self.sign not in (-1, 1):
            raise ValueError(f"sign={self.sign}; expected -1 or 1")
        if self.heads != 1 and self.regime != "unconstrained":
            raise ValueError(f"heads={self.heads} with regime={self.regime!r}; only 'unconstrained' has several heads")
        if self.regime == "distributed" and self.n % self.machines:
            raise ValueError(f"n={self.n} columns cannot be shared out evenly to machines={self.machines}")
        if self.regime == "estimation" and self.d_out != 1:
            raise ValueError(f"d_out={self.d_out} with regime='estimation'; expected 1, the scalar case")

    @property
    def blocks(self) -> int:
        return self.machines if self.regime == "distributed" else 1

    @property
    def keys(self) -> int:
        """How many tokens are keys."""
        return self.n if self.regime == "estimation" else self.d

    @property
    def width(self) -> int:
        """Token width that one head reads."""
        if self.regime == "estimation":
            return self.d + self.d_out
        return self.n // self.blocks + self.n_out

    @property
    def shapes(self) -> Weights:
        """The shape of each weight, layer axis first."""
        w, H, M = self.width, self.heads, self.blocks
        k, v = (self.rank, self.rank + self.n_out) if self.regime == "computation_limited" else (w, w)
        found: list[tuple[int, ...]] = [(H, w, k), (H, w, k), (H, w, v), (H if M == 1 else M, M * w, v)]
        if self.regime == "estimation":
            found.append((2, w))
        return Weights(*((self.layers, *shape) for shape in found))  # pyright: ignore[reportArgumentType]

    def check(self, weights: Weights) -> None:
        for name, wanted in self.shapes._asdict().items():
            shape = getattr(getattr(weights, name), "shape", None)
            if shape != wanted:
                raise ValueError(f"weights.{name} has shape {shape}; expected {wanted} for {self}")

    def init(self, key: jax.Array, std: float) -> Weights:
        """Normal weights of standard deviation std."""
        shapes = [shape for shape in self.shapes if shape is not None]
        keys = jax.random.split(key, len(shapes))
        return Weights(
            *(std * jax.random.normal(k, shape, jnp.float32) for k, shape in zip(keys, shapes, strict=True))  # pyright: ignore
        )

    def tokens(self, blocks: Blocks):
        """Problems as Z, with the unknown block at 0; any leading batch dimensions."""
        A, B, C, _ = blocks
        AB = jnp.concatenate([A, B], axis=-2)
        if self.regime == "estimation":
            return jnp.concatenate([AB.mT, jnp.zeros_like(AB.mT[..., :1, :])], axis=-2)
        AB = attention.split(AB, self.blocks)
        hidden = jnp.zeros((*C.shape[:-2], self.d_out, self.n_out), C.dtype)
        CD = jnp.concatenate([C, hidden], axis=-2)[..., None, :, :]
        CD = jnp.broadcast_to(CD, (*AB.shape[:-1], self.n_out))
        return attention.merge(jnp.concatenate([AB, CD], axis=-1))

    def read_out(self, Z):
        """The prediction of D (d' x n'; in "distributed" one for each machine: M x d' x n'), or of W* (1 x d)."""
        if self.regime == "estimation":
            return Z[..., -1:, : self.d]
        D = attention.split(Z[..., -self.d_out :, :], self.blocks)[..., -self.n_out :]
        return self.sign * (D if self.regime == "distributed" else D[..., 0, :, :])

    def apply(self, weights: Weights, Z):
        return attention.stack(Z, weights, self.keys, self.blocks)

    def activations(self, weights: Weights, Z):
        return attention.activations(Z, weights, self.keys, self.blocks)

    def predict(self, weights: Weights, Z, metric=None):
        """read_out(apply(weights, Z)), without the tokens of the last layer that nobody reads; `metric` as in layer."""
        *layers, last = weights.layers()
        keys = self.keys if metric is None else metric.shape[-1]
        for layer in layers:
            Z = attention.layer(Z, layer, keys, self.blocks, metric=metric)
        return self.read_out(attention.layer(Z, last, keys, self.blocks, first=keys, metric=metric))


class Transformer(nnx.Module):
    """Flax container: `Transformer(Architecture("distributed"), rngs=nnx.Rngs(0))(Z)` runs all layers on one Z."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs, std: float = 0.02):
        self.architecture = architecture
        weights = architecture.init(rngs.params(), std)
        self.query = nnx.Param(weights.query)
        self.key = nnx.Param(weights.key)
        self.value = nnx.Param(weights.value)
        self.projection = nnx.Param(weights.projection)
        self.bias = None if weights.bias is None else nnx.Param(weights.bias)

    @property
    def weights(self) -> Weights:
        bias = None if self.bias is None else self.bias[...]
        return Weights(self.query[...], self.key[...], self.value[...], self.projection[...], bias)

    def __call__(self, Z):
        return self.architecture.apply(self.weights, Z)

    def predict(self, blocks: Blocks):
        return self.architecture.predict(self.weights, self.architecture.tokens(blocks))
