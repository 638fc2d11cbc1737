"""One step of training: the best plans that were drawn become likelier."""
