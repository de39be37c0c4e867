"""The doctor's verbs, one file each. What does their work is imported when they are called."""
