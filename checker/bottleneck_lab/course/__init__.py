"""The use cases of the course: diagnose, check, prove a lab, play it through.

A use case reads a workspace, has the work measured and graded, and records the result. It knows
nothing of the terminal: progress and remarks go to functions that it is given.
"""
