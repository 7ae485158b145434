"""Milliseconds per training step, against a PyTorch loop of the same model on the same machine in the same run.

    python -m experiments.bench_train        # needs PyTorch: pip install 'eagle_jax[torch]'

Both train the unconstrained network (4 layers, 20 x 20 tokens, batch 1024, float32) with fresh tasks, clip and Adam in
every step, in turns of --steps steps; the ratio is the median over the turns. The floor is the time that the step's
multiplications would take at the rate of one large float32 product.
"""

import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from eagle_jax import training
from eagle_jax.training import TrainConfig
from experiments import common

_ROUNDS = flags.DEFINE_integer("rounds", 7, "turns of each")
_STEPS = flags.DEFINE_integer("steps", 50, "steps per turn")
_OUT = flags.DEFINE_string("out", "results", "folder for bench_train.json")


def torch_loop(config: TrainConfig):
    """A function that trains `count` steps: the layer as the paper writes it, with products of weights and a mask-free
    slice of the keys, autograd, fused-multi-tensor Adam, default threads.
    """
    import torch  # pyright: ignore[reportMissingImports]

    a = config.architecture
    torch.manual_seed(config.seed)
    width = a.n + a.n_out
    shape = (a.layers, width, width)
    weights = [torch.nn.Parameter(config.std * torch.randn(shape)) for _ in range(4)]
    optimiser = torch.optim.Adam(weights, lr=config.learning_rate, foreach=True)
    scale = torch.tensor(0.7 ** np.arange(1, config.factors + 1) / config.factors**0.5, dtype=torch.float32)

    def step():
        R1 = torch.randn(config.batch, a.d + a.d_out, config.factors) * scale
        X = R1 @ torch.randn(config.batch, width, config.factors).mT
        wanted = X[:, a.d :, a.n :].clone()
        Z = X.clone()
        Z[:, a.d :, a.n :] = 0
        query, key, value, projection = weights
        QK, VP = query @ key.mT, value @ projection.mT
        for layer in range(a.layers):
            keys = Z[:, : a.d]
            Z = Z + ((Z @ QK[layer]) @ keys.mT) @ (keys @ VP[layer])
        loss = torch.mean((a.sign * Z[:, a.d :, a.n :] - wanted) ** 2)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, config.clip)
        optimiser.step()

    def run(count):
        for _ in range(count):
            step()

    return run


def jax_loop(config: TrainConfig):
    state = training.init(config)

    def run(count):
        nonlocal state
        state, _ = jax.block_until_ready(training.train_steps(config, state, count))

    return run


def floor(config: TrainConfig) -> tuple[float, float]:
    """(Multiplications and additions of one step / 1e9, milliseconds they take in a large float32 product).

    Per task and layer: Z W_QK, the Gram matrix of d keys, its product with the queries, and W_VP; the gradient takes
    twice that, and the last layer only serves d' tokens.
    """
    a = config.architecture
    t, w, d = a.d + a.d_out, a.n + a.n_out, a.d
    gram = 2 * d * w * w
    whole, last = 3 * (2 * t * w * w) + gram, 3 * (2 * a.d_out * w * w) + gram
    task = 2 * t * config.factors * w
    flops = config.batch * (3 * ((a.layers - 1) * whole + last) + task)
    n = 1024
    x = jnp.ones((n, n), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    product(x).block_until_ready()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        product(x).block_until_ready()
        times.append(time.perf_counter() - start)
    rate = 2 * n**3 / min(times)
    return flops / 1e9, 1e3 * flops / rate


def main(_):
    config = TrainConfig()
    loops = {"eagle_jax": jax_loop(config)}
    try:
        loops["PyTorch"] = torch_loop(config)
    except ImportError:
        print("PyTorch is not installed: no comparison (pip install 'eagle_jax[torch]')")
    for run in loops.values():
        run(_STEPS.value)
    times = {name: [] for name in loops}
    for _ in range(_ROUNDS.value):
        for name, run in loops.items():
            start = time.perf_counter()
            run(_STEPS.value)
            times[name].append(1e3 * (time.perf_counter() - start) / _STEPS.value)
    gigaflop, milliseconds = floor(config)
    for name, values in times.items():
        print(f"{name:10s} {np.median(values):6.1f} ms/step (least {min(values):.1f})")
    ours = np.array(times["eagle_jax"])
    print(f"floor      {milliseconds:6.1f} ms/step: {gigaflop:.2f} GFLOP at the rate of a 1024^3 product; "
          f"we take {np.median(ours) / milliseconds:.1f} times that")  # fmt: skip
    result = {"ms per step": times, "floor ms": milliseconds, "gigaflop": gigaflop}
    if "PyTorch" in times:
        result["ratio"] = float(np.median(ours / np.array(times["PyTorch"])))
        print(f"eagle_jax / PyTorch: {result['ratio']:.2f}")
    common.write_report(pathlib.Path(_OUT.value) / "bench_train.json", result)


if __name__ == "__main__":
    app.run(main)
