"""What pages, exports and the learner's client show: read from the database, computed when it is
asked for.
"""
