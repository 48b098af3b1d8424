"""From samples to a verdict: statistics, the sequential decision, criteria, the conclusion, and its
attestation. No NumPy here.
"""
