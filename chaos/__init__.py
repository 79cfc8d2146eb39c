"""Hours of faults on real processes, judged like simulated runs: `python -m chaos`."""
