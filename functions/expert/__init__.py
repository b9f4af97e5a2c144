"""An expert, or a group of experts: rows of hidden states in, rows out."""
