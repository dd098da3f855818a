"""Steps bounds, and which of their predictions hold on measured sweeps.

:mod:`.measured` holds what the bounds (:mod:`.closed_form`) predict against the steps of a sweep: :mod:`.checks` for
one optimizer at a time, :mod:`.variants` for several settings of momentum and weight decay, :mod:`.settings` says which
optimizer which bound is about.

Every prediction is one of an upper bound. Measured steps may go against it without going against the bound.
"""
