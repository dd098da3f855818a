"""Parts of the ``images`` workload: glyphs, readers for the user's own data, and classifiers."""
