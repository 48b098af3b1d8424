"""`python -m bottleneck_lab` is `lab`."""

from bottleneck_lab.cli import main

main()
