"""From readings to observations: the paper's state features (section 4.2). Pure functions of values."""
