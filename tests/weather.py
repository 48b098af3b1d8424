"""What a machine that others use makes of a check: nobody's fault, so a test may ask again."""

MACHINES_FAULT = ("INCONCLUSIVE", "too busy", "protocol itself takes", "Other programs kept")
"""The outcome that says so, and words of an ERROR that does. Any other ERROR is a fault of ours."""


def machines_fault(said: str) -> bool:
    """Whether an outcome with its summary lays it on the machine, and says nothing about the work."""
    return any(words in said for words in MACHINES_FAULT)
