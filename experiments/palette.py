"""One colour and one name for whatever appears in more than one figure.

Methods have colours of Okabe and Ito, networks those of Tol's muted scheme, so that no colour stands for both.
"""

METHODS = {
    "paper": "#0072B2",
    "optimal": "#D55E00",
    "cg": "#009E73",
    "gd": "#8C8C8C",
    "lstsq": "#222222",
    "estimation": "#CC79A7",
    "averaging": "#0072B2",
    "krylov": "#D55E00",
    "plain": "#0072B2",
    "columns": "#56B4E9",
    "deflation": "#D55E00",
    "sgd": "#8C8C8C",
    "sketch_cg": "#009E73",
    "lsmr": "#7B5EA7",
    "emergent": "#117733",
}
METHOD_NAMES = {
    "paper": "EAGLE, paper steps",
    "optimal": "block LQ (default)",
    "cg": "CG",
    "gd": "GD",
    "lstsq": "lstsq (SVD)",
    "estimation": "EAGLE, estimation form",
    "averaging": "EAGLE, averaging",
    "krylov": "mean projector (default)",
    "plain": "EAGLE, fresh sketches (paper)",
    "columns": "EAGLE, columns in turn",
    "deflation": "deflation (default)",
    "sgd": "SGD",
    "sketch_cg": "sketch-and-CG",
    "lsmr": "LSMR",
    "emergent": "EAGLE, emergent steps",
}
NETWORKS = {"U": "#332288", "D": "#CC6677", "CL": "#999933", "E": "#AA4499", "U8": "#88CCEE"}
NETWORK_NAMES = {
    "U": "unconstrained",
    "D": "distributed",
    "CL": "computation-limited",
    "E": "estimation",
    "U8": "8 heads",
}
# What is compared with a network and is none: its extracted steps, simplified weights.
EXTRACTED = "#882255"
GREY = "#777777"
