"""Plans of torch programs in the formats by which PyTorch tools split a model."""
