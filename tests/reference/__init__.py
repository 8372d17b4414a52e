"""Figures obtained by running the papers' own code, and every mechanism of ours checked against them.

`python -m tests.reference FOLDER` checks each case of a folder: NAME.npz (in__* inputs, out__* expected values, grad__*
expected gradients) beside NAME.json (what it is, constants, tolerance).
"""
