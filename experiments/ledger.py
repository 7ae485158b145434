"""What the paper says: one entry for every statement that gets a verdict, in the order of the report.

`claims.py` has the rules. An id without a rule there is "not run" in claims.json; no id is left out. Figures are
numbered by their captions in the order of the paper's source. v2 is the paper's later version.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    id: str
    where: str
    says: str


# letter: (short title, title)
GROUPS = {
    "E": ("Emergence", "What the transformer learns"),
    "N": ("Centralised", "The extracted algorithm on one machine"),
    "D": ("Distributed", "The extracted algorithm among machines"),
    "S": ("Sketched", "The extracted algorithm on sketches"),
    "R": ("Real data", "Real data"),
}

LEDGER = (
    Entry("E1", "Fig. 2", "The median test error falls 10 to 50 times over 4 layers, to about 1e-3, in three regimes."),
    Entry("E2", "Figs. 3, 12", "W_QK is close to diag(a1 I, 0) and W_VP to diag(a2 I, a3 I)."),
    Entry("E3", "Figs. 2, 5", "−a1 a2 max‖A_l‖² is constant over layers, about 1; a3/a2 is about 1.9."),
    Entry("E4", "Table 1", "The extracted algorithm follows the activations to 6e-4 (squared, per entry)."),
    Entry("E5", "App. A.5", "Fixing a3 = 1.92 a2 changes predictions by 3.5e-4, below the model's own error of 1e-3."),
    Entry("E6", "Sec. 4", "One head is enough: pruning from eight to one has little effect on the test error."),
    Entry("E7", "Fig. 3", "Off-diagonal blocks are diag(0, a3 I): machines send only (C, D), with the same factor."),
    Entry("E8", "Figs. 3, 4", "Computation-limited: rank-r blocks, W_QK and W_VP 0.28 apart, spectrum of a sketch."),
    Entry("E9", "Figs. 13, 14", "The same structure emerges under noise of variance 0.01."),
    Entry("E10", "Fig. 11", "W_QK in 2 values and W_VP in 3 keep the prediction within the model's own error."),
    Entry("E11", "Fig. 10", "Spikes of the training loss typically occur when ‖A‖ attains untypically large values."),
    Entry("E12", "Fig. 2", "The median condition number of A_l falls from layer to layer."),
    Entry("E13", "Fig. 17", "A transformer trained to estimate learns the estimation form of the update."),
    Entry("E14", "not in the paper", "Read-out sign and initial scale decide which algorithm emerges (our question)."),
    Entry("E15", "not in the paper", "The network learned an algorithm, not a table (our question)."),
    Entry("E16", "not in the paper", "The paper's form is what longer training tends to (our question)."),
    Entry("E17", "not in the paper", "What the computation-limited network does: it reads ahead (our question)."),
    Entry("N1", "Fig. 7", "Error against iteration confirms a slope of about 2 (n = d = 240, kappa = 1e2)."),
    Entry("N2", "Fig. 7", "Iterations to 1e-20 grow only with log kappa, kappa = 1e2 to 1e5; times beside lstsq, CG."),
    Entry("N3", "Sec. 5.1", "About 100x fewer iterations than CG at kappa = 1e4."),
    Entry("N4", "Fig. 7", "Converges at ranks 30, 60, 120, 240; CG does not converge reliably on low-rank matrices."),
    Entry("N5", "Fig. 15", "The estimation form recovers the same second-order convergence, W_l C = D_l."),
    Entry("N6", "Fig. 18", "Converges on six data distributions."),
    Entry("N7", "Fig. 19", "Converges at n = d = 1920, ranks 240 to 1920; CG does not converge reliably on low rank."),
    Entry("N8", "Fig. 20", "With noise of deviation 0.01, early stopping regularises as for GD, in three regimes."),
    Entry("N9", "Fig. 21", "Scaling the steps, or their ratio, by factors in [0.2, 2] has minimal effect."),
    Entry("N10", "Sec. 5.1", "A simple ‖D_l − D_(l−1)‖ < tau stopping rule suffices in practice."),
    Entry("N11", "Sec. 6", "Stability beyond kappa = 1e8 is untested."),
    Entry("D1", "Fig. 6", "Error 1e-2 in at most 15 iterations for M = 1, 3, 5, 8 (d = n = 1000, alpha about 1)."),
    Entry("D2", "Fig. 9", "The iteration count grows linearly with 1/alpha."),
    Entry("D3", "Sec. 5.2", "First-order GD requires 10 to 100 times more rounds."),
    Entry("D4", "Sec. 4", "Each machine sends (d + d') n' floats a round."),
    Entry("D5", "Fig. 16", "Freezing A and B once conditioned: the same iterations in less time (alpha about 0.1)."),
    Entry("D6", "Sec. 5.2", "Conjugate gradients are unavailable at O(d) communication a round."),
    Entry("S1", "Fig. 8", "Iterations grow linearly with n/r for r = n/8, n/4, n/2, n."),
    Entry("S2", "Sec. 5.3", "A step takes 5, 7, 16, 21 ms at r = 30, 60, 120, 240."),
    Entry("S3", "Fig. 8", "Faster than SGD in wall-clock time for r >= n/4."),
    Entry("S4", "Sec. 5.3", "A third of the time of sketch-and-CG to 1e-6 at kappa = 1e4 (dropped in v2)."),
    Entry("R1", "v2", "SuiteSparse matrices, against SVD, CG and LSMR to a residual of 1e-3 ‖B‖_F²."),
)


def group(id: str) -> str:
    """The letter before the number."""
    return id.rstrip("0123456789")
