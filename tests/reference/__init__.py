"""Reference values from the papers' own code, and checks of every mechanism against them.

`python -m tests.reference FOLDER` checks each case of a folder: NAME.npz (in__* inputs, out__* expected values, grad__*
expected gradients) and NAME.json (description, constants, tolerance).
"""
