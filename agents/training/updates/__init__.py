"""One step of training: self-labelling on the best plans."""
