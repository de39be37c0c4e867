"""Files that Headrace makes beside or from the user's data, so that reading it costs less."""
