"""Decide which trial to run next: a learning-rate search for every study, as a pure function of finished trials."""
