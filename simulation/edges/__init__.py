"""Edges of the rules: what a run or a test would have noticed, had a comparison or an order been another.

A mutant is the code with one edge moved. Mutmut and cosmic-ray do the same to files; here a mutant is a
code object that a forked process puts into a function, so that it costs what its tests and runs cost.
"""
