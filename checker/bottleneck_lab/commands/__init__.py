"""One file per command, and a few that they share: `ui`, `screen`, `plain`, `completion`.

A command reads its arguments, calls the layers below, and prints; it decides nothing.
"""
