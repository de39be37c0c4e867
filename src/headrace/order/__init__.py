"""Which sample comes when."""
