"""Upper bounds on steps, and which of their predictions hold for measured sweeps.

:mod:`.measured` compares the predictions of the bounds (:mod:`.closed_form`) with the steps of a sweep: :mod:`.checks`
for one optimizer at a time, :mod:`.variants` for several settings of momentum and weight decay. :mod:`.settings` says
which bound applies to which optimizer.

Every prediction is one of an upper bound. Measured steps may violate the prediction without violating the bound.
"""
