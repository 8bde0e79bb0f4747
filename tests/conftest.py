"""Settings for every test."""

import os

# Before numpy and torch load: the matrices here are small, and threads that wait for each other on
# a busy machine make the suite several times slower.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
