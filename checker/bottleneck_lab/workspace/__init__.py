"""The learner's folder and the learner's progress: state that survives whatever happens to the
process that writes it.

Rules kept by every module here: a file is replaced as a completely or not at all; what is recorded
is never overwritten; a folder appears under its name only when it is complete; a temporary name
belongs to whoever holds the lock, so a leftover of a killed process is known as one and cleared by
the next.
"""
