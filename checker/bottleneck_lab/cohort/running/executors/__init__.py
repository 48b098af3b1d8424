"""Where checks run: an executor is asked for a slot, told to start a job, and polled for its state.

`local` on this machine, `slurm` and `ray` on a cluster. None of them is trusted to run a job once:
the lease makes it one verdict.
"""
