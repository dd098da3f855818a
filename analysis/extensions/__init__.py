"""What serves one paper or one service: folders of the shape of a question, found as a stranger's package is.

Nothing imports an extension: :mod:`cbs.registry.extensions` says how they are found. Deleting a folder removes what it
adds, and nothing else notices.
"""
