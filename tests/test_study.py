"""Networks that are trained otherwise keep their form, resume, and are told from the paper's."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from absl import app

from eagle_jax import pretrained, training
from eagle_jax.training import Run, TrainConfig
from eagle_jax.transformer import Architecture
from experiments import study
from experiments.study import Study


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's Adam multiplies floats with integers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def config(**changes) -> Study:
    a = Architecture("computation_limited", n=6, d=4, n_out=1, d_out=1, layers=3, rank=2)
    return dataclasses.replace(Study(a, steps=8, batch=16, factors=3, std=0.3, learning_rate=1e-2), **changes)


def leading(weights):
    return np.asarray(weights.QK)[:, 0, :6, :6], np.asarray(weights.VP)[:, 0, :6, :6]


@pytest.mark.parametrize(
    ("share", "source"), [("layer", [0, 1, 2]), ("all", [0, 0, 0]), ("next", [1, 2, 0])], ids=("layer", "all", "next")
)
def test_tied_blocks_stay_multiples_while_they_are_trained(tmp_path, share, source):
    run = Run(config(share=share), tmp_path / "whole", chunk=4).fit()
    trained = run.state.weights
    QK, VP = leading(run.config.network(trained))
    scale = np.asarray(trained.scale)
    assert np.all(scale[:-1] != -1)  # nothing reads what the last layer writes there
    np.testing.assert_allclose(VP, scale[:, None, None] * QK[source], atol=1e-6)
    parts = Run(config(share=share), tmp_path / "parts", chunk=4)
    parts.advance()
    parts.save()
    del parts._lock  # as if the process had ended
    chex.assert_trees_all_equal(Run(config(share=share), tmp_path / "parts", chunk=4).fit().state, run.state)


def test_one_read_and_other_starts():
    c = config(one_read=True)
    state, _ = training.train_steps(c, training.init(c), 8)
    weights = c.network(state.weights)
    chex.assert_trees_all_equal(weights.query, weights.key)
    QK, VP = leading(config(begin="symmetric").start(jax.random.key(0)))
    assert all(np.linalg.eigvalsh(q).min() > -1e-6 for q in QK) and all(np.trace(v) < 0 for v in VP)
    for w in config(begin="orthogonal").start(jax.random.key(0)):
        if w is not None:
            gram = np.asarray(w.mT @ w)
            np.testing.assert_allclose(
                gram, np.broadcast_to(gram[0, 0, 0, 0] * np.eye(w.shape[-1]), gram.shape), atol=1e-6
            )


def test_part_of_the_tasks_is_noisy():
    keys = jax.random.split(jax.random.key(0), 16)
    some = config(noise=0.01, noisy=0.25).tasks(keys)
    rank = lambda A: np.linalg.matrix_rank(np.asarray(A, np.float64), tol=1e-5)  # noqa: E731
    assert [int(rank(A)) for A in some.A] == [4] * 4 + [3] * 12
    chex.assert_trees_all_equal(config(noise=0.01).tasks(keys), training.draw(config(), keys, 0.01))


def test_a_study_without_changes_is_the_papers_training():
    plain = TrainConfig(**{f.name: getattr(config(), f.name) for f in dataclasses.fields(TrainConfig)})
    states = [training.train_steps(c, training.init(c), 4)[0] for c in (config(), plain)]
    chex.assert_trees_all_equal(*states)


def test_files_of_a_study_are_not_read_as_the_papers(tmp_path):
    path = tmp_path / "x.npz"
    pretrained.save(path, pretrained.Pretrained(training.init(config()).weights, config(), np.ones((2, 3)), {}))
    assert pretrained.read(path, Study).config == config()
    with pytest.raises(ValueError, match="not a whole file of trained weights"):
        pretrained.read(path)


def test_words():
    c = study.from_words(["regime=computation_limited", "rank=9", "one_read=True", "seed=2", "noise=0.01"])
    assert c == Study(Architecture("computation_limited", rank=9), seed=2, noise=0.01, one_read=True)
    for words, message in (
        (["ranks=9"], "'ranks=9'; expected name=value"),
        (["rank=x"], "expected a value of type int"),
        (["one_read=yes"], "expected a value of type bool"),
        (["share=some"], "share='some'; expected one of"),
        (["regime=distributed", "share=all"], "only 'computation_limited' has tied weights"),
    ):
        with pytest.raises(app.UsageError, match=message):
            study.from_words(words)
