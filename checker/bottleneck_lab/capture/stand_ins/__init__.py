"""NVIDIA's tools, stood in for where there is no GPU (bottleneck_lab/measure/rehearsal.py): each
knows its tool's options and refuses any other, runs the program, and leaves a file in its tool's
form that describes one made-up kernel.
"""
