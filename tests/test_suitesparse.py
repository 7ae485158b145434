"""R1 on matrices made here: the permutation to a full-rank block, the methods, the verdict."""

import dataclasses
import gzip

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import eagle_jax
from eagle_jax import baselines
from eagle_jax.problems import Problem
from experiments import claims, common, report, solver_claims, suitesparse

pytestmark = pytest.mark.usefixtures("x64", "cheap_compilation")


def low_rank(rows: int, columns: int, rank: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))


def block(X: np.ndarray) -> Problem:
    found = suitesparse.full_rank_block(X)
    assert found is not None
    return found


@pytest.mark.parametrize("shape", [(12, 9, 5), (9, 12, 5), (12, 7, 7), (7, 12, 7)])
def test_block_has_full_rank_and_fixes_the_rest(shape):
    A, B, C, D = block(low_rank(*shape))
    rows, columns, rank = shape
    if rank == rows:  # transposed: B would be empty
        rows, columns = columns, rows
    assert A.shape == (rank, rank) and np.linalg.matrix_rank(A) == rank and D.shape == (1, columns - rank)
    np.testing.assert_allclose(B @ np.linalg.solve(A, C), D, atol=1e-10)


def test_leading_columns_need_not_be_independent():
    X = low_rank(8, 6, 3)
    X[:, 1] = X[:, 0]
    X[1] = 0
    A, *_ = block(X)
    assert np.linalg.cond(A) < 1e3


def test_the_row_is_one_whose_D_is_not_zero():
    X = np.diag([3.0, 2.0, 1.0, 0, 0, 0])[:, :5]
    X[:3, 4] = 0.5 * X[:3, 0]  # a dependent column
    X[4, :3], X[5, [0, 4]] = (0, 1, 0.5), (0.2, 0.1)  # a long row without a part in that column, a short one with it
    *_, D = block(X)
    assert D.shape == (1, 2) and np.abs(D).max() > 0


def test_where_the_dependent_rows_are_zero_there_is_a_row_all_the_same():
    X = np.zeros((5, 4))
    X[1:4, 1:] = low_rank(3, 3, 3)
    A, B, C, D = block(X)
    assert A.shape == (3, 3) and np.linalg.norm(B) > 0
    np.testing.assert_allclose(B @ np.linalg.solve(A, C), D, atol=1e-10)


def test_a_nonsingular_square_matrix_has_nothing_to_fill():
    assert suitesparse.full_rank_block(np.eye(4)) is None


def test_cg_counts_the_first_step_that_meets_the_target():
    A, B, _, _ = block(low_rank(20, 12, 12))
    W, steps = baselines.conjugate_gradients_until(A, B, target=1e-6, limit=100)
    history = baselines.conjugate_gradients(A, B, A, steps=int(steps)).history
    residuals = ((history - B) ** 2).sum((1, 2)) / (B**2).sum()
    assert residuals[-1] <= 1e-6 < residuals[-2]
    np.testing.assert_allclose(W @ A, history[-1], rtol=1e-9, atol=1e-9)
    assert int(baselines.conjugate_gradients_until(A, B, target=1e-6, limit=1)[1]) == common.NOT_REACHED


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("matrices")
    scipy.io.mmwrite(path / "Maragal_4.mtx", scipy.sparse.coo_matrix(low_rank(10, 8, 4)))
    scipy.io.mmwrite(path / "nonsingular.mtx", scipy.sparse.coo_matrix(np.eye(3)))
    scipy.io.mmwrite(path / "large.mtx", scipy.sparse.coo_matrix(low_rank(40, 30, 4)))
    plain = path / "large.mtx"
    (path / "large.mtx.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return path


def test_run_verdict_and_figure(folder, tmp_path):
    cfg = dataclasses.replace(suitesparse.PRESETS["quick"], matrix_dir=str(folder), most_entries=100, timing=0.01)
    r = suitesparse.run(cfg)
    assert r["names"].tolist() == ["Maragal_4"] and r["rank"].tolist() == [4]
    assert r["skipped"].tolist() == ["large (larger than this preset takes)", "nonsingular (square and nonsingular)"]
    assert np.isfinite(r["seconds"]).all() and (r["steps"] > 0).all()
    assert r["error"][0, 1].max() < 1e-6 and r["status"][0] == int(eagle_jax.Status.CONVERGED)
    # the loose target leaves a visible error, or it was not loose
    assert r["error"][0, 0, 1] > 1e-6
    common.save(tmp_path, suitesparse.ITEM, cfg, r, 0.1, "test", "digest")
    (record,) = [c for c in claims.judge(tmp_path) if c["id"] == "R1"]
    assert record["verdict"] != claims.NOT_RUN and "1 of the paper's 7 matrices" in record["brief"]
    assert record["runs"] == 1 and set(record["parts"]) == {"EAGLE, paper steps", "block LQ (default)"}
    table = record["numbers"]["table"]
    assert [len(row) for row in table["rows"]] == [len(table["columns"])]
    assert [p.stem for p in report.draw_all(tmp_path)] == ["r1_suitesparse"]


def test_only_the_papers_matrices_decide():
    """The paper's steps are the fastest on the paper's matrices, and do not get there on another; block LQ is slow."""
    seconds = np.ones((5, 2, 5))
    seconds[:, :, 1], seconds[:, :, 0], seconds[4, :, :2] = 0.5, 2.0, np.nan
    names = {"names": [*suitesparse.WANTED[:4], "other"], "methods": list(suitesparse.METHODS), "skipped": ["x (y)"]}
    r = {name: np.array(value) for name, value in names.items()} | {"seconds": seconds, "rank": np.ones(5)}
    r |= {"error": np.full((5, 2, 5), np.nan), "kappa": np.ones(5), "shapes": np.ones((5, 2), int)}
    finding = solver_claims.real_matrices(r)
    assert finding.parts == {"EAGLE, paper steps": "reproduced", "block LQ (default)": "refuted"}
    assert finding.runs == 4 and "x (y)" in finding.measured and "4 of the paper's 7" in finding.brief
    rows = finding.numbers["table"]["rows"]
    assert rows[4][4] == "missed / missed" and [row[-2] for row in rows] == ["reproduced"] * 4 + ["refuted"]
    cg = list(suitesparse.METHODS).index("cg")
    seconds[2, 0, cg] = 0.1  # on pf2177 the paper's CG is faster as well
    assert solver_claims.real_matrices(r).parts == finding.parts
    seconds[0, 0, cg] = 0.1
    assert (solver_claims.real_matrices(r).parts or {})["EAGLE, paper steps"] == "in part"
    seconds[:, 0, 2:] = np.nan  # the others do not get there
    assert (solver_claims.real_matrices(r).parts or {})["block LQ (default)"] == "reproduced"
    none = solver_claims.real_matrices(r | {"names": np.array(list("abcde"))})
    assert none.verdict == claims.NOT_RUN and "dwt_1007" in none.measured


@pytest.mark.parametrize(
    ("X", "reason"),
    [
        (np.zeros((4, 3)), "zero"),
        (np.eye(3) * 1j, "complex"),
        (np.eye(3), "square and nonsingular"),
    ],
)
def test_matrices_without_a_problem_say_why(X, reason, tmp_path):
    scipy.io.mmwrite(tmp_path / "x.mtx", scipy.sparse.coo_matrix(X))
    assert suitesparse.read(tmp_path / "x.mtx", 100) == (X.shape, reason)


def test_entries_that_are_not_finite_name_the_file(tmp_path):
    scipy.io.mmwrite(tmp_path / "x.mtx", scipy.sparse.coo_matrix(np.array([[1.0, np.nan]])))
    with pytest.raises(ValueError, match=r"x\.mtx has entries that are not finite"):
        suitesparse.read(tmp_path / "x.mtx", 100)


def test_huge_entries_and_a_second_copy(tmp_path):
    X = low_rank(6, 5, 3)
    scipy.io.mmwrite(tmp_path / "x.mtx", scipy.sparse.coo_matrix(X * 1e200))
    (tmp_path / "x.mtx.gz").write_bytes(gzip.compress((tmp_path / "x.mtx").read_bytes()))
    assert [path.name for path in suitesparse.files(tmp_path)] == ["x.mtx"]
    _, problem = suitesparse.read(tmp_path / "x.mtx", 100)
    assert isinstance(problem, Problem) and np.abs(problem.A).max() <= 1
    before = suitesparse.Config(matrix_dir=str(tmp_path)).matrices
    text = (tmp_path / "x.mtx").read_text()
    (tmp_path / "x.mtx").write_text(text[:-3] + ("1" if text[-3] == "2" else "2") + text[-2:])
    assert suitesparse.Config(matrix_dir=str(tmp_path)).matrices != before


def test_without_matrices_the_claim_names_them(tmp_path):
    (record,) = [c for c in claims.judge(tmp_path) if c["id"] == "R1"]
    assert all(f"{name}.mtx" in record["reason"] for name in suitesparse.WANTED) and "--matrix_dir" in record["reason"]
    with pytest.raises(FileNotFoundError, match="Maragal_4"):
        suitesparse.files(tmp_path)
