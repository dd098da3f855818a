"""Which trial next: a search of the learning rate for every study, as a pure function of finished trials."""
