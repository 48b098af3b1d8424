"""Executors run checks: each is asked for a slot, starts a job in it, and is polled for its state.

`local` on this machine, `slurm` and `ray` on a cluster. None of them is trusted to run a job once:
the lease makes it one verdict.
"""
