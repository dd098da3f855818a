"""The commands of this extension, in their group."""
