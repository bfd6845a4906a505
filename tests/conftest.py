import os

# One thread a process: two cores and several processes lose more by spinning than a second thread gains.
os.environ.setdefault("OMP_NUM_THREADS", "1")
