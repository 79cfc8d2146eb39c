"""Hours of faults on real processes, checked like simulated runs: `python -m chaos`."""
