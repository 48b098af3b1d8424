"""Signing in with an account that learners have elsewhere: OpenID Connect, and LTI 1.3."""
