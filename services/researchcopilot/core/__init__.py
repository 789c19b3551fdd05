"""Words of the house: states, errors, models, settings. Pure: no I/O, no product parts."""
