"""Runs a workload, with or without a profiler around it, and leaves a capture: `capture.json` and
what the tool wrote.

Capture and analysis meet only at these files. The code that runs here is the learner's own, in
their own folder, as when they start it by hand; nothing it reports reaches a verdict.
"""
