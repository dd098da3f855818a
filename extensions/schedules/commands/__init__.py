"""The command of this extension, in its group."""
