"""One module per item of the paper's evaluation; `python -m experiments.reproduce` runs them all."""
