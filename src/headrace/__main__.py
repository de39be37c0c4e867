"""`python -m headrace`, which torchrun can start: `torchrun --nproc-per-node=8 -m headrace train DATA`."""

from headrace.cli import main

main()
