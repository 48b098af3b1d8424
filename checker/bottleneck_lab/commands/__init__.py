"""One file per subcommand. A command reads its arguments, calls the layers below, and prints; it
decides nothing.
"""
