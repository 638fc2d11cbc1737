"""Plans of torch programs in the forms that tools of PyTorch split a model by."""
