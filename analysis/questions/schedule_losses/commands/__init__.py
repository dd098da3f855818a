"""The command of this question, in its group."""
