"""Answers as a person or a script wants them: terminal, CSV, LaTeX, JSON, figures, HTML."""
