"""Milliseconds per training step, against a PyTorch loop of the same model on the same machine in the same run.

    python -m experiments.bench_train        # needs PyTorch: pip install 'eagle_jax[torch]'

All but one train the unconstrained network (4 layers, 20 x 20 tokens, batch 1024, float32) with fresh tasks, clip and
Adam in every step, in turns of --steps steps; ratios are medians over the turns. "eagle_jax" is one device;
"data-parallel" is experiments.train's --devices=2, one for each of two cores; "full tokens" is noisy data, whose rows
are not of low rank (and which need twice the random numbers), and "narrow heads" the computation-limited network on it;
"tasks alone" draws the tasks of "eagle_jax" and no more. The floor is the time that the multiplications of "eagle_jax"
would take at the rate of one large float32 product.
"""

import dataclasses
import pathlib
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from eagle_jax import training
from eagle_jax.training import TrainConfig
from eagle_jax.transformer import Architecture
from experiments import common, train


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


def jax_loop(config: TrainConfig, mesh=None):
    state = training.init(config)

    def run(count):
        nonlocal state
        state, _ = jax.block_until_ready(training.train_steps(config, state, count, mesh))

    return run


def drawing_loop(config: TrainConfig):
    key = training.init(config).key

    @partial(jax.jit, static_argnums=0)
    def draw(count):
        def step(total, i):
            inputs = jax.tree.leaves(training._inputs(config, training.task_keys(config, key, i)))
            return total + sum(map(jnp.sum, inputs)), None

        return jax.lax.scan(step, jnp.float32(0), jnp.arange(count))[0]

    return lambda count: draw(count).block_until_ready()


def floor(config: TrainConfig) -> tuple[float, float]:
    """(Multiplications and additions of one step / 1e9, milliseconds they take in a large float32 product).

    Noiseless tasks have rank s, and their d keys are given as s rows. Per task and layer: Z W_QK, the Gram matrix of
    the keys, its product with the queries, and W_VP; the gradient takes twice that, and the last layer serves d'
    tokens, without the Gram matrix.
    """
    a, s = config.architecture, config.factors
    t, w = s + a.d_out, a.n + a.n_out
    metric = 2 * s * s * w
    whole = 3 * (2 * t * w * w) + 2 * s * w * w + metric
    last = 2 * (2 * a.d_out * w * w) + 2 * (2 * a.d_out * s * w) + metric
    task = 2 * a.d_out * s * w + 2 * a.d * s * s
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


def main(argv):
    common.begin(argv)
    mesh = train.data_mesh(2)
    config = TrainConfig()
    loops = {
        "eagle_jax": jax_loop(config),
        "data-parallel": jax_loop(config, mesh),
        "full tokens": jax_loop(dataclasses.replace(config, noise=0.01)),
        "narrow heads": jax_loop(TrainConfig(Architecture("computation_limited"), noise=0.01)),
        "tasks alone": drawing_loop(config),
    }
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
        print(f"{name:13s} {np.median(values):6.1f} ms/step (least {min(values):.1f})")
    ours = np.median(times["eagle_jax"]) / milliseconds
    print(f"{'floor':13s} {milliseconds:6.1f} ms/step: {gigaflop:.2f} GFLOP at the rate of a 1024^3 product; "
          f"eagle_jax takes {ours:.1f} times that")  # fmt: skip
    result = {"ms per step": times, "floor ms": milliseconds, "gigaflop": gigaflop}
    if "PyTorch" in times:
        result["ratio"] = {
            name: float(np.median(np.array(values) / times["PyTorch"])) for name, values in times.items()
        }
        print("over PyTorch: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in result["ratio"].items()))
    common.write_report(pathlib.Path(_OUT.value) / "bench_train.json", result)


if __name__ == "__main__":
    _ROUNDS = flags.DEFINE_integer("rounds", 7, "turns of each")
    _STEPS = flags.DEFINE_integer("steps", 50, "steps per turn")
    _OUT = flags.DEFINE_string("out", "results", "folder for bench_train.json")
    app.run(main)
