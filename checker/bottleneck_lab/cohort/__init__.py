"""A cohort: a room of learners, and the runners that grade them.

Learners submit over HTTP. The database is the queue of record: one lease per attempt, one verdict a
submission and round. A runner measures with `check_lab` in its sandbox and signs what it measured,
bound to the learner and to a nonce that only this attempt had. What a page shows as a verdict has
been verified against that signature.
"""
