"""Experiments that anyone can rerun: `headrace bench`. Public names of Headrace only."""
