"""What can be packed: one file a kind of source."""
