"""Extensions that serve one paper or one service: folders of the shape of a question, found like third-party packages.

Nothing imports an extension: :mod:`cbs.registry.extensions` says how they are found. Deleting a folder removes what it
adds, without any other effect.
"""
