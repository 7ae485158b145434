"""Doing the expensive thing only for those who need it, under jit and under vmap."""

import jax
import jax.numpy as jnp
from jax import lax

from eagle_jax.linalg import varying_like

# A batch's unanswered lanes go through the fallback this fraction of the batch at a time.
_LANES = 16


def unless(answered, answer, fallback, *operands):
    """`answer` if `answered`, else fallback(*operands), which must not close over traced values.

    Costs nothing when not needed, and under vmap it costs what the lanes that need it cost: a lax.cond would run both
    branches for all of them, and out of a vmapped loop of one trip XLA hoists the fallback as loop-invariant. So
    this loops over groups of unanswered lanes, which the carry decides; without lanes a barrier ties operands to it.
    """

    @jax.custom_batching.custom_vmap
    def choose(answered, answer, *operands):
        def body(carry):
            *tied, _ = lax.optimization_barrier((*operands, carry[1]))
            return fallback(*tied), carry[1] | True

        return lax.while_loop(lambda carry: ~carry[1], body, varying_like((answer, answered), answer, operands))[0]

    @choose.def_vmap
    def _(size, batched, answered, answer, *operands):
        def spread(x, has_lanes):
            return x if has_lanes else jnp.broadcast_to(x, (size, *jnp.shape(x)))

        answered, answer, *operands = jax.tree.map(spread, (answered, answer, *operands), tuple(batched))

        def body(carry):
            answer, answered = carry
            lanes = jnp.argsort(answered)[: -(-size // _LANES)]  # unanswered ones first
            lanes = jnp.where(answered[lanes], lanes[0], lanes)  # spare places repeat the first
            new = jax.vmap(fallback)(*jax.tree.map(lambda x: x[lanes], operands))
            answer = jax.tree.map(lambda old, new: old.at[lanes].set(new), answer, new)
            return answer, answered.at[lanes].set(True)

        start = varying_like((answer, answered), answer, operands)
        answer, _ = lax.while_loop(lambda carry: ~jnp.all(carry[1]), body, start)
        return answer, jax.tree.map(lambda _: True, answer)

    return choose(answered, answer, *operands)
