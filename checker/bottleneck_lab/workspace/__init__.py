"""The learner's folder and the learner's progress: state that survives whatever happens to the
process that writes it.

Every module here keeps these rules. A file is replaced completely or not at all. A record is never
overwritten. A folder gets its name only when it is complete. Temporary names belong to whoever
holds the lock, so the next holder recognises and removes the leftovers of a killed process.
"""
