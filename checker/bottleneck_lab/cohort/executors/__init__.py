"""Where checks run: an executor is asked for room, told to start a job, and asked how it is.

`local` on this machine, `slurm` and `ray` on a cluster. None of them is trusted to run a job once: the lease makes it one verdict.
"""
